"""Building of networks with their initial weights, the model state of a network, and its base.

The base of a network are the parameters that its author froze (`requires_grad=False`). They are constants: they stay in
the module, and are no part of a model state. So nothing sends, copies, encodes or aggregates them.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from hashlib import blake2b
from pathlib import Path
from typing import Any, get_type_hints

import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.func import functional_call
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from edgesim.config.plugin_fields import Foreign
from edgesim.config.plugins import meant
from edgesim.core.errors import ConfigError
from edgesim.core.limits import check_memory
from edgesim.core.rng import Key
from edgesim.files.reading import check_regular, in_short, quoted, reading
from edgesim.learning.models.base import ModelPlugin
from edgesim.learning.models.seeding import seeded
from edgesim.learning.objectives.base import Objective
from edgesim.learning.objectives.classification import CLASSIFICATION

_QUICK = 1_000_000  # numbers of a network up to which a trial run is faster than loading torch's compiler, a second
_SHOWN = 3  # differences named in an error line
_BASE = "names_of_base"  # attribute of a module: which of its own buffers belong to the base
_DIGEST = "digest_of_base"  # attribute of a network: hash of its base, once it is known
_NAMED = 12  # layers named in an error line
_FILLED = {torch.arange, torch.zeros, torch.ones, torch.full}  # functions whose results follow from sizes and numbers
_UNFILLED = {torch.empty_like, Tensor.new_empty, torch.randint_like, torch.bernoulli, torch.multinomial}
_ASKS = {Tensor.__bool__, Tensor.__int__, Tensor.__index__, Tensor.item, Tensor.tolist}


def build_model(
    plugin: ModelPlugin | Foreign,
    input_shape: Sequence[int],
    classes: int,
    key: Key,
    priced: bool = False,
    objective: Objective = CLASSIFICATION,
    vocabulary: int | None = None,
    weights: bool = True,
) -> nn.Module:
    """Return a new network in channels-last layout. Equal keys give equal weights.

    `input_shape`: shape of one sample, without the batch. Raises ConfigError if the inputs do not fit the network, if
    its output does not fit the objective, (batch, classes) in classification, if it has no parameters to train or not
    in float32, if it changes its base when it runs, or if `init_from` cannot be loaded into it. `priced`: the network
    already has a price and is not tried, because a trial takes longer than building it. `vocabulary`: see
    `check_fits`. `weights`: False where only sizes are asked for. Then a large network has no numbers: its tensors are
    on the meta device, and of files with weights no more is read than names and shapes.
    """
    module: nn.Module | None = None
    if isinstance(plugin, ModelPlugin):
        if not (weights and priced):
            module = _without_numbers(plugin, input_shape, classes)
            if weights:
                _check_room(plugin, module)
    elif not weights:
        with seeded(key), torch.device("meta"), suppress(ConfigError):  # of code that computes with numbers
            module = users_network(plugin)
    if weights or module is None or sum(each.numel() for each in _tensors(module)) <= _QUICK:
        with seeded(key):
            module = plugin.build(input_shape, classes) if isinstance(plugin, ModelPlugin) else users_network(plugin)
    if isinstance(plugin, ModelPlugin):
        _freeze(module, plugin.freeze)
    _fix_base(module)
    if not priced:
        check_fits(module, input_shape, classes, objective, vocabulary)
        for name, value in module.named_parameters():
            if value.dtype != torch.float32:
                raise ConfigError(
                    f"model.name: parameters of {type(module).__name__} must be of torch.float32, "
                    f"{name} is of {value.dtype}"
                )
    if isinstance(plugin, ModelPlugin) and plugin.init_from is not None:
        _load(module, plugin.init_from)
    for tensor in _tensors(module):
        if tensor.dim() == 4:  # PyTorch's own conversion of a module fails at tensors of five dimensions
            tensor.data = tensor.data.to(memory_format=torch.channels_last)
    return module


def _tensors(module: nn.Module) -> Iterator[Tensor]:
    yield from module.parameters()
    yield from module.buffers()


def _freeze(module: nn.Module, patterns: Sequence[str]) -> None:
    """Let the parameters of layers whose names match take no gradient.

    Raises ConfigError if a pattern has none, or if no parameter is left to train.
    """
    for pattern in patterns:
        found = [layer for name, layer in module.named_modules() if name and fnmatchcase(name, pattern)]
        parameters = [value for layer in found for value in layer.parameters()]
        if not parameters:
            layers = list(dict.fromkeys(name.rpartition(".")[0] for name, _ in module.named_parameters()))
            hint = meant(pattern, layers)
            names = ", ".join(layers[:_NAMED]) + (", ..." if len(layers) > _NAMED else "")
            raise ConfigError(
                f"model.freeze: no layer with parameters has a name like {quoted(pattern)}{hint} (layers: {names})"
            )
        for value in parameters:
            value.requires_grad_(False)
    if patterns and not any(value.requires_grad for value in module.parameters()):
        raise ConfigError("model.freeze: all layers with parameters have such names; one at least must not be frozen")


def _fix_base(module: nn.Module) -> None:
    """Hold the parameters that their author froze as buffers, and note that they are the base."""
    frozen = {id(value): value.detach() for value in module.parameters() if not value.requires_grad}
    owned = [(inner, name, own) for inner in module.modules() for name, own in own_tensors(inner)]
    for inner, name, own in owned:
        if id(own) in frozen:
            delattr(inner, name)
            inner.register_buffer(name, frozen[id(own)])
            setattr(inner, name, frozen[id(own)])  # recurrent layers update a list of their own here
            setattr(inner, _BASE, vars(inner).get(_BASE, frozenset()) | {name})


def base_of(module: nn.Module) -> dict[str, Tensor]:
    """Return the base of a network by name, each tensor once. Its tensors must not be changed: copies share them."""
    own = {id(inner.get_buffer(name)) for inner in module.modules() for name in vars(inner).get(_BASE, ())}
    return {name: value for name, value in module.named_buffers() if id(value) in own}


def sent_buffers(module: nn.Module) -> dict[str, Tensor]:
    """Return the buffers of a model state by name: those of floating point that are not of the base."""
    base = base_of(module)
    return {name: value for name, value in module.named_buffers() if value.is_floating_point() and name not in base}


def copy_of(module: nn.Module, instead: Mapping[int, Any] | None = None) -> nn.Module:
    """Return a deep copy of a network that shares its base. `instead`: replacements of other objects, by id."""
    shared: dict[int, Any] = {id(value): value for value in base_of(module).values()}
    return copy.deepcopy(module, {**shared, **(instead or {})})


def base_digest(module: nn.Module) -> bytes:
    """Return the hash of the base as it was when this was first called for the network or its original."""
    if _DIGEST not in vars(module):
        setattr(module, _DIGEST, digest_of(base_of(module)))
    digest: bytes = vars(module)[_DIGEST]
    return digest


def digest_of(tensors: Mapping[str, Tensor]) -> bytes:
    """Return a hash of the names, types, shapes and numbers of tensors on any device."""
    found = blake2b(digest_size=16)
    for name, value in tensors.items():
        found.update(f"{name} {value.dtype} {tuple(value.shape)};".encode())
        found.update(value.detach().cpu().reshape(-1).view(torch.uint8).numpy().data)
    return found.digest()


def bare_copy(module: nn.Module) -> nn.Module:
    """Return a copy of a network in training mode without numbers, in which frozen parameters are the base.

    The network itself is neither changed nor copied.
    """
    tensors = (*module.parameters(), *module.buffers())
    instead: dict[int, Any] = {id(value): torch.empty_like(value, device="meta") for value in tensors}
    for value in module.parameters():
        instead[id(value)] = nn.Parameter(instead[id(value)], requires_grad=value.requires_grad)
    bare = copy.deepcopy(module, instead).train()
    _fix_base(bare)
    return bare


def output_shape(module: nn.Module, input_shape: Sequence[int]) -> tuple[int, ...]:
    """Return the shape of a network's output for one sample. Raises ConfigError if it cannot take the input."""
    given = "x".join(map(str, input_shape))
    try:
        output = applied(module, on_meta(module), torch.empty(2, *input_shape, device="meta"))
    except Exception as error:  # any error of a user's own network
        raise ConfigError(f"{type(module).__name__} cannot take inputs of {given}: {reason_of(error)}") from error
    if not isinstance(output, Tensor):
        raise ConfigError(f"{type(module).__name__} must give a tensor, gives {type(output).__name__}")
    return tuple(output.shape[1:])


def _without_numbers(plugin: ModelPlugin, input_shape: Sequence[int], classes: int) -> nn.Module:
    """Return a network whose weights are on the meta device, where they take no memory."""
    try:
        try:
            with torch.device("meta"):
                return plugin.build(input_shape, classes)
        except NotImplementedError:  # it computes sizes of layers with tensors, which must have numbers
            with _WithoutNumbers():
                return plugin.build(input_shape, classes)
    except RuntimeError as error:  # a tensor of more bytes than 64 bits count
        raise ConfigError(f"model: cannot make {type(plugin).__name__}: {reason_of(error)}") from error


def _check_room(plugin: ModelPlugin, module: nn.Module) -> None:
    """Raise ConfigError if a network and one copy of its weights would not fit into memory.

    `module`: the network without numbers.
    """
    numbers, nbytes = sum(each.numel() for each in _tensors(module)), sum(each.nbytes for each in _tensors(module))
    base_bytes = sum(each.nbytes for each in module.parameters() if not each.requires_grad)
    beside = "beside a copy of those that are not frozen," if base_bytes else "beside a copy of them,"
    check_memory("model", 2.0 * nbytes - base_bytes, f"{type(plugin).__name__} with {numbers:.3g} numbers, {beside}")


class _WithoutNumbers(TorchFunctionMode):
    """Makes new tensors without numbers if they are not filled, as those of weights are, and leaves all others."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function of torch, `torch.empty` with its result on the meta device."""
        return func(*args, **{**(kwargs or {}), **({"device": "meta"} if func is torch.empty else {})})


def blank_inputs(batch: int, input_shape: Sequence[int], tokens: bool, device: str = "meta") -> Tensor:
    """Return inputs of a network whose values mean nothing: int64 if they are tokens, otherwise float32."""
    return torch.empty(batch, *input_shape, dtype=torch.int64 if tokens else torch.float32, device=device)


def check_fits(
    module: nn.Module,
    input_shape: Sequence[int],
    classes: int,
    objective: Objective = CLASSIFICATION,
    vocabulary: int | None = None,
) -> None:
    """Raise ConfigError unless the network maps (2, *input_shape) to outputs that the objective takes for two samples.

    In classification these are (2, classes). `vocabulary`: the inputs are int64 tokens below it, all of which the
    network must take. None: they are float32. No weight changes.
    """
    wanted = (2, *objective.shapes(classes, input_shape))
    name, given = type(module).__name__, "x".join(map(str, input_shape))
    if next(module.parameters(), None) is None:
        raise ConfigError(f"model.name: {name} has no parameters to train; one at least must not be frozen")
    tensors, base = _for_a_trial(module, input_shape), base_of(module)
    before = {own: tensors[own]._version for own in base}
    try:
        output = _tried(module, tensors, input_shape, vocabulary)
    except ConfigError:
        raise
    except Exception as error:  # any error of a user's own network
        raise ConfigError(f"model.name: {name} cannot take inputs of {given}: {reason_of(error)}") from error
    if changed := [own for own in base if tensors[own]._version != before[own]]:
        raise ConfigError(
            f"model.name: {name} changes its frozen parameter {changed[0]} when it runs; make it a buffer, which is "
            "sent with each model"
        )
    if not isinstance(output, Tensor):
        raise ConfigError(
            f"model.name: {name} must give {wanted} for two inputs of {given}, gives {type(output).__name__}; "
            "in training too it has to give its main output alone, without auxiliary ones"
        )
    if tuple(output.shape) != wanted:
        shape = tuple(output.shape)
        raise ConfigError(f"model.name: {name} must give {wanted} for two inputs of {given}, gives {shape}")


def _for_a_trial(module: nn.Module, input_shape: Sequence[int]) -> dict[str, Tensor]:
    """Return tensors for a trial of a network: copies, or for a large one, stand-ins without numbers."""
    named = (*module.named_parameters(), *module.named_buffers())
    numbers = max(sum(value.numel() for _, value in named), math.prod(input_shape))
    if numbers > _QUICK or any(value.device.type != "cpu" for _, value in named):
        return on_meta(module)
    return {name: value.detach().clone() for name, value in named}


def _tried(module: nn.Module, tensors: Mapping[str, Tensor], input_shape: Sequence[int], vocabulary: int | None) -> Any:
    """Run a network on two inputs. Without numbers it only computes shapes, which loads torch's compiler."""
    if any(value.is_meta for value in tensors.values()):
        x = blank_inputs(2, input_shape, vocabulary is not None)
        with _smaller_tables_refused(module, x, vocabulary):
            return applied(module, tensors, x)
    x = torch.zeros(2, *input_shape) if vocabulary is None else torch.full((2, *input_shape), vocabulary - 1)
    with seeded(Key(0)), torch.no_grad(), _smaller_tables_refused(module, x, vocabulary):
        return applied(module, tensors, x)


@contextmanager
def _smaller_tables_refused(module: nn.Module, x: Tensor, vocabulary: int | None) -> Iterator[None]:
    """Raise ConfigError in the with-block where an embedding reads the tokens `x` and has not a row for each token."""

    def check(table: nn.Embedding, given: tuple[Any, ...]) -> None:
        if vocabulary is not None and given and given[0] is x and table.num_embeddings < vocabulary:
            raise ConfigError(
                f"model.name: {type(module).__name__} knows {table.num_embeddings} tokens, the data have {vocabulary}"
            )

    tables = [inner for inner in module.modules() if isinstance(inner, nn.Embedding)]
    hooks = [table.register_forward_pre_hook(check) for table in tables]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def applied(module: nn.Module, weights: Mapping[str, Tensor], *x: Tensor) -> Any:
    """Return the output of a network for `x` with other parameters and buffers, by name. Others are its own.

    A tensor that the network has in several places is replaced in all of them.
    """
    named = (*module.named_parameters(), *module.named_buffers())
    instead = {id(own): weights[name] for name, own in named if name in weights}
    places: dict[str, Tensor] = {}
    for path, inner in module.named_modules():  # each module once: a tensor replaced twice would not be restored
        for name, own in own_tensors(inner):
            if id(own) in instead:
                places[f"{path}.{name}" if path else name] = instead[id(own)]
    if not any(value.is_meta for value in x):
        return functional_call(module, places, x, tie_weights=False)
    with _autocast_without_numbers(), _KnownIntegers():
        return functional_call(module, places, x, tie_weights=False)


@contextmanager
def _autocast_without_numbers() -> Iterator[None]:
    """Let `torch.autocast` take tensors without numbers, of which it changes nothing. torch knows no such device."""
    begin = torch.autocast.__init__

    def begin_here(self: torch.autocast, device_type: str, *args: Any, **kwargs: Any) -> None:
        begin(self, "cpu" if device_type == "meta" else device_type, *args, **kwargs)

    torch.autocast.__init__ = begin_here  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.autocast.__init__ = begin  # type: ignore[method-assign]


class _KnownIntegers(TorchFunctionMode):
    """Values of integers and flags that no input decides, such as positions, for networks that ask for them.

    Tensors without numbers have none, so each of these is calculated a second time, with numbers. transformers asks
    whether positions count up by one, for instance, and chooses its mask of attention by the answer.
    """

    def __init__(self) -> None:
        super().__init__()
        self._known: dict[int, tuple[Tensor, int, Tensor]] = {}  # the tensor keeps its id; its version; its values

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function of torch. Return the value of a known integer or flag, and note a known result."""
        kwargs = kwargs or {}
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        known = func in _FILLED if not tensors else all(self._is_known(each) for each in tensors)
        if known and func in _ASKS:
            return func(*tree_map(self._value, args), **tree_map(self._value, kwargs))
        result = func(*args, **kwargs)
        if (
            known
            and func not in _UNFILLED
            and isinstance(result, Tensor)
            and result.is_meta
            and not (result.is_floating_point() or result.is_complex() or result.is_inference())
            and result.numel() <= _QUICK
            and id(result) not in self._known  # changed in place
        ):
            value = func(*tree_map(self._value, args), **tree_map(self._value, kwargs))
            self._known[id(result)] = (result, result._version, value)
        return result

    def _is_known(self, tensor: Tensor) -> bool:
        own, version, _ = self._known.get(id(tensor), (None, 0, None))
        return own is tensor and tensor._version == version

    def _value(self, given: Any) -> Any:
        """Return the values of a known tensor, and "cpu" in place of the meta device; all else unchanged."""
        if isinstance(given, Tensor):
            return self._known[id(given)][2]
        return "cpu" if isinstance(given, str | torch.device) and str(given) == "meta" else given


def on_meta(module: nn.Module) -> dict[str, Tensor]:
    """Return tensors without data for all parameters, which require gradients, buffers and base, by name."""
    stand_ins: dict[str, Tensor] = {}
    for name, value in (*module.named_parameters(), *module.named_buffers()):
        trains = isinstance(value, nn.Parameter)
        stand_ins[name] = torch.empty_like(value, device="meta", requires_grad=trains)
    return stand_ins


def model_state_of(module: nn.Module) -> dict[str, dict[str, Tensor]]:
    """Return copies of the tensors that are sent: {"params": by name, "buffers": by name}.

    Buffers are floating-point only. Integer ones (batch counters) stay on the device, and so does the base.
    """
    return {
        "params": {name: value.detach().clone() for name, value in module.named_parameters()},
        "buffers": {name: value.detach().clone() for name, value in sent_buffers(module).items()},
    }


def own_tensors(layer: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the parameters and buffers of a module itself, under each of their names."""
    yield from layer.named_parameters(recurse=False, remove_duplicate=False)
    yield from layer.named_buffers(recurse=False, remove_duplicate=False)


def users_network(plugin: Foreign) -> nn.Module:
    """Return the network of a user's own class, or of a function that declares that it returns one."""
    made: Any = plugin.cls
    if not isinstance(made, type):
        try:
            made = get_type_hints(made).get("return")
        except Exception:  # hints may use names that only their author knows
            made = None
    if not isinstance(made, type) or not issubclass(made, nn.Module):  # before the call: it may be anything
        raise ConfigError(
            f"model.name: {plugin.cls.__name__} is not a torch.nn.Module, nor a function with the annotation "
            "-> nn.Module"
        )
    try:
        module = plugin.cls(**plugin.args)
    except Exception as error:  # any error of a user's own class
        raise ConfigError(f"model: cannot make {plugin.cls.__name__}: {reason_of(error)}") from error
    if not isinstance(module, nn.Module):
        raise ConfigError(f"model.name: {plugin.cls.__name__} gives no torch.nn.Module but {quoted(module)}")
    return module


def reason_of(error: Exception) -> str:
    """Return the first line of an error's message, shortened, or its type if it has no message."""
    line = next(iter(str(error).splitlines()), "")
    line = in_short(line) if line else ""
    return f"{type(error).__name__} {line}".rstrip() if not line or isinstance(error, KeyError) else line


def refuse_differences(weights: str, differences: Sequence[str]) -> None:
    """Raise ConfigError with the first differences between weights and model, if there are any.

    `weights`: key and path of the weights.
    """
    if differences:
        more = f" and {len(differences) - _SHOWN} more" if len(differences) > _SHOWN else ""
        raise ConfigError(f"{weights} does not fit: {'; '.join(differences[:_SHOWN])}{more}")


def _load(module: nn.Module, path: Path) -> None:
    check_regular(path, ConfigError)
    with reading(f"model.init_from: {path}", "safetensors file", ConfigError):
        if any(value.is_meta for value in module.parameters()):
            with safe_open(path, "pt") as file:
                shapes_of = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
            found = {name: torch.empty(shape, device="meta") for name, shape in shapes_of.items()}
        else:
            found = load_file(path)
    state, once = module.state_dict(), {name for collection in model_state_of(module).values() for name in collection}
    wanted = {n: v for n, v in state.items() if n in once or n in found}
    base = base_of(module)
    if any(name in found for name in base):  # a run's own weights are without it, so it may be absent as a whole
        wanted |= {name: state[name] for name in base}
    missing = [f"{name} is missing" for name in wanted if name not in found]
    unknown = [f"{name} is not in the model" for name in sorted(found) if name not in wanted]
    both = [name for name in wanted if name in found]
    shapes = [(name, tuple(found[name].shape), tuple(wanted[name].shape)) for name in both]
    wrong = [f"{name} is {have}, the model has {want}" for name, have, want in shapes if have != want]
    refuse_differences(f"model.init_from: {path}", missing + unknown + wrong)
    module.load_state_dict(found, strict=False)  # only batch counters and second names of a tensor may be absent
