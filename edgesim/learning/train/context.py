"""Context of local training: the network bound to a device's weights, and the device's samples."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from edgesim.core.backend import Assignment
from edgesim.core.errors import ContractError
from edgesim.core.local_sgd import Precision
from edgesim.core.model_state import named
from edgesim.core.task import Submodel, Task
from edgesim.core.update import BASE, ModelState, Update
from edgesim.learning.data.dataset import Dataset
from edgesim.learning.models.build import applied, base_digest, copy_of, sent_buffers
from edgesim.learning.objectives.base import Objective
from edgesim.learning.objectives.classification import CLASSIFICATION
from edgesim.learning.submodel.slicing import corners
from edgesim.learning.train.meter import Meter

if TYPE_CHECKING:
    from edgesim.learning.compiled.programs import Programs

_FIRST = "first_weights"  # attribute of a network whose original weights were replaced
_ORIGINAL = "original_base"  # attribute of a network whose frozen parameters were replaced: the original ones


class Batch(NamedTuple):
    """Inputs (images NCHW, float32) and labels (classes, int64, or those of another objective) of one SGD step."""

    x: Tensor
    y: Tensor


class PublicRows(NamedTuple):
    """Samples that the server and all devices share: rows of one split of the data set."""

    split: Literal["train", "test"]
    rows: Tensor


class Context:
    """Argument of every hook of a LocalRule.

    `global_model`: the received model. `device_state`: the state that the device kept. `received`: the messages of
    peers. `first`: the model at the start of the run. `trained`: names of the parameters that take gradients, in the
    order of the gradients.
    """

    def __init__(
        self,
        module: nn.Module,
        data: Dataset,
        shard: Tensor,
        assignment: Assignment,
        drop_single: bool,
        public: PublicRows | None = None,
        objective: Objective = CLASSIFICATION,
        precision: Precision = "float32",
    ) -> None:
        self.task: Task = assignment.task
        self.global_model: ModelState = assignment.global_model
        self.device_state: ModelState | None = assignment.device_state
        self.received: Sequence[Update] = assignment.received
        self.device = assignment.device
        self.key = assignment.key
        self.objective = objective
        self.shard = shard
        self.drop_single = drop_single
        self._module = module
        self._layers = dict(module.named_modules())
        self._params = dict(module.named_parameters())
        self._freeze(frozenset())
        self._data = data
        self._device = next(module.parameters()).device
        self._bound: ModelState = {}
        self._public = public
        self.is_mixed = precision == "bfloat16"
        self.meter: Meter | None = None  # of losses, if the device reports them
        self.programs: Programs | None = None  # compiled steps; None: no step is compiled
        self.relabelled: Tensor | None = None  # of an attacker: the label that it uses for each class, (classes,)
        self._set_modes()

    @property
    def first(self) -> ModelState:
        """The whole model at the start of the run, which must not be changed. Any device can draw it from the seed."""
        return first_of(self._module)

    @property
    def public(self) -> Batch:
        """The samples that server and devices share, as they are; of a method whose `server_set` is public."""
        if self._public is None:
            raise ContractError("the method has no public samples: its server_set is None or not public")
        x, y = self._data.batch(*self._public)
        return Batch(x.to(self._device), y.to(self._device))

    def copy(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Return a copy of a model state, or of one of its collections, that training may change."""
        return copy_for(self._module, state)

    @property
    def classes(self) -> int:
        """Number of classes, or of numbers or flags of a label."""
        return self._data.classes

    @property
    def torch_device(self) -> torch.device:
        """Device of torch on which the network lies."""
        return self._device

    @property
    def augments(self) -> bool:
        """True if the data set augments the training samples of devices. `batch` then needs a generator."""
        return self._data.augment is not None

    def batch(self, positions: Tensor, augmenting: torch.Generator | None) -> Batch:
        """Return the samples at these positions of the device's data, augmented if the data set augments."""
        return next(self.batches([positions], augmenting))

    def batches(self, order: Iterable[Tensor], augmenting: torch.Generator | None) -> Iterator[Batch]:
        """Yield the batch at each of these positions in turn, as `batch` returns it."""
        for x, y in self._data.batches("train", order, among=self.shard):
            if self._data.augment is not None:
                assert augmenting is not None
                x = self._data.augment.apply(x, augmenting)
            y = y if self.relabelled is None else self.relabelled[y]
            yield Batch(x, y)

    def hold_out(self, positions: Tensor) -> None:
        """Remove the samples at these positions, int64, from the device's data from now on.

        Raises ContractError unless their number equals `held_out` of the task, on which its price is based.
        """
        if len(positions) != self.task.held_out:
            raise ContractError(f"a device holds out {len(positions)} samples, but its task says {self.task.held_out}")
        kept = torch.ones(len(self.shard), dtype=torch.bool)
        kept[positions] = False
        self.shard = self.shard[kept.to(self.shard.device)]

    def bind(self, w: ModelState, frozen: frozenset[str] = frozenset()) -> list[Tensor]:
        """Make `w` the network's own weights, choose the trained tensors and return them.

        `frozen`: layers that are not trained, in addition to those that the task freezes.
        """
        load(self._module, w)
        self._freeze(frozen)
        self._set_modes()
        for name, parameter in self._params.items():
            parameter.requires_grad_(_layer(name) not in self._frozen)
        self._bound = w
        return self.bound

    def network(self, w: ModelState) -> nn.Module:
        """Return a copy of the network, in training mode, that holds copies of these weights and the shared base."""
        self.bind(w)
        base_digest(self._module)  # noted in the network, so that its copies need not calculate it
        first = vars(self._module)[_FIRST]
        found = copy_of(self._module, {id(first): {}})
        delattr(found, _FIRST)
        return found

    def _freeze(self, more: frozenset[str]) -> None:
        self._frozen = self.task.submodel.frozen | more
        self.trained = [name for name in self._params if _layer(name) not in self._frozen]

    def _set_modes(self) -> None:
        for name, layer in self._layers.items():
            if layer.training == (name in self._frozen):  # setting takes longer than reading
                layer.training = name not in self._frozen

    @property
    def module(self) -> nn.Module:
        """The network, which holds the weights bound last. They must not be changed through it."""
        return self._module

    @property
    def untrained(self) -> dict[str, Tensor]:
        """The other tensors of the network with the weights bound last, by name: frozen parameters and buffers."""
        fixed = {name: parameter for name, parameter in self._params.items() if not parameter.requires_grad}
        return {**fixed, **dict(self._module.named_buffers())}

    @property
    def bound(self) -> list[Tensor]:
        """The trained tensors of the weights bound last, in the order of `trained`."""
        return [parameter for parameter in self._params.values() if parameter.requires_grad]

    def forward(self, w: ModelState, x: Tensor, moving: bool = False) -> Tensor:
        """Return the logits of weights `w`, shape (batch, classes). It is fastest for the weights being trained.

        The running statistics of the weights being trained move. The statistics of other weights move only with
        `moving`. Weights without statistics use those of the received model.
        """
        if w is self._bound:
            with self._mixed():
                logits: Tensor = self._module(x)
            logits = self._whole(logits)
            if self.meter is not None:
                self.meter.see(x, logits)
            return logits
        buffers = w.get("buffers", self.global_model.get("buffers", {}))
        if not moving and buffers is not self._bound.get("buffers"):
            buffers = {name: buffer.clone() for name, buffer in buffers.items()}
        with self._mixed():
            return self._whole(applied(self._module, {**w["params"], **buffers}, x))

    def _mixed(self) -> AbstractContextManager[Any]:
        """Return the context in which the network runs: products are in bfloat16 if training is."""
        return torch.autocast(self._device.type, torch.bfloat16) if self.is_mixed else nullcontext()

    def _whole(self, values: Tensor) -> Tensor:
        """Return outputs of the network as losses read them: in float32 after a run in bfloat16."""
        return values.float() if self.is_mixed else values

    def features(self, w: ModelState, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits of weights `w` and the inputs of their last layer, shape (batch, features)."""
        entered: dict[str, Tensor] = {}

        def watch(_: nn.Module, given: tuple[Any, ...]) -> None:
            if given:  # some layers have no input and only return a parameter
                entered["last"] = given[0]

        layers = [layer for layer in self._module.modules() if next(layer.parameters(recurse=False), None) is not None]
        hooks = [layer.register_forward_pre_hook(watch) for layer in layers]
        try:
            logits = self.forward(w, x)
        finally:
            for hook in hooks:
                hook.remove()
        return logits, self._whole(entered["last"].flatten(1))

    def tested_features(self, w: ModelState, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the same as `features` in a test: without dropout and gradients, with fixed statistics."""
        with self.as_in_a_test(), torch.no_grad():
            return self.features(w, x)

    @contextmanager
    def as_in_a_test(self) -> Iterator[None]:
        """Let the network run without dropout and with fixed statistics. Gradients can be taken."""
        modes = {layer: layer.training for layer in self._module.modules()}
        self._module.eval()
        try:
            yield
        finally:
            for layer, mode in modes.items():
                layer.training = mode

    def bind_for_test(self, w: ModelState) -> list[Tensor]:
        """Bind weights as `bind` does. The network then runs as in a test until it is bound again."""
        trained = self.bind(w)
        self._module.eval()
        return trained

    @property
    def layers(self) -> tuple[str, ...]:
        """Names of the network's modules in the order of their definition, which normally is the order of running."""
        return tuple(self._layers)

    def forward_seen(self, w: ModelState, x: Tensor, layers: Sequence[str]) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the logits of weights `w` and the outputs of these layers, for use in a loss."""
        found: dict[str, Tensor] = {}

        def watch(name: str) -> Callable[[nn.Module, Any, Tensor], None]:
            def note(_: nn.Module, given: Any, out: Tensor) -> None:
                found[name] = self._whole(out.clone())  # later layers may change it in place

            return note

        hooks = [self._module.get_submodule(name).register_forward_hook(watch(name)) for name in layers]
        try:
            logits = self.forward(w, x)
        finally:
            for hook in hooks:
                hook.remove()
        return logits, {name: found[name] for name in layers}

    def outputs(self, w: ModelState, x: Tensor, layers: Sequence[str]) -> dict[str, Tensor]:
        """Return the outputs of these layers in a test of the weights `w`."""
        self.bind_for_test(w)
        with torch.no_grad():
            return self.forward_seen(w, x, layers)[1]

    def corners(self, submodel: Submodel) -> dict[str, tuple[slice, ...]]:
        """Return the places of a smaller part's tensors within those of the network. See `slicing.corners`."""
        return corners(self._module, submodel)


def copy_for(module: nn.Module, state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a model state, or of a collection, on the network's device and in the network's layout."""
    like: dict[str, Tensor] = {**dict(module.named_parameters()), **dict(module.named_buffers())}

    def copied(name: str, tensor: Tensor) -> Tensor:
        return torch.empty_like(like.get(name, tensor), requires_grad=False).copy_(tensor, non_blocking=True)

    return named(copied, state)


def load(module: nn.Module, w: ModelState) -> None:
    """Let a network use the tensors of a model state as its own, without copying. Its integer buffers stay.

    Frozen parameters of the collection `BASE` take the places of the network's own until the next call. Others stay.
    """
    first_of(module)
    restore_base(module)
    setattr(module, _ORIGINAL, _Shared({name: module.get_buffer(name) for name in w.get(BASE, {})}))
    for name, parameter in module.named_parameters():
        parameter.data = w["params"][name]
    for name, buffer in sent_buffers(module).items():
        buffer.data = w["buffers"][name]
    for name, tensor in w.get(BASE, {}).items():
        _put(module, name, tensor)


class _Shared(dict[str, Tensor]):
    """Tensors that copies of a network share, because nothing changes them."""

    def __deepcopy__(self, _: Any) -> _Shared:
        return self


def _put(module: nn.Module, name: str, tensor: Tensor) -> None:
    path, _, own = name.rpartition(".")
    setattr(module.get_submodule(path), own, tensor)


def restore_base(module: nn.Module) -> None:
    """Put the frozen parameters with which a network was built back in their places."""
    originals: Mapping[str, Tensor] = vars(module).get(_ORIGINAL, {})
    for name, tensor in originals.items():
        _put(module, name, tensor)


def original_base(module: nn.Module, name: str) -> Tensor:
    """Return a frozen parameter as the network was built with it, which must not be changed."""
    originals: Mapping[str, Tensor] = vars(module).get(_ORIGINAL, {})
    return originals[name] if name in originals else module.get_buffer(name)


def first_of(module: nn.Module) -> ModelState:
    """Return the original weights of a network, which must not be changed.

    They are aliases: `load` binds other tensors and leaves these unchanged.
    """
    if _FIRST not in vars(module):
        floats = {name: buffer.data for name, buffer in sent_buffers(module).items()}
        params = {name: parameter.data for name, parameter in module.named_parameters()}
        setattr(module, _FIRST, {"params": params, "buffers": floats})
    first: ModelState = vars(module)[_FIRST]
    return first


def _layer(parameter: str) -> str:
    return parameter.rpartition(".")[0]
