"""One training step without numbers, as autograd's graph: its operations, what each depends on, what each keeps.

Only shapes and layouts are worked out, so any network takes moments.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from edgesim.learning.models.build import applied, on_meta
from edgesim.learning.objectives.base import Objective
from edgesim.learning.objectives.classification import CLASSIFICATION

DATA = "\0data"  # stands for the data among owners; no module can have this name
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


class NotMeasured(Exception):
    """A network does what edgesim has no price for; the message says what."""


Owners: TypeAlias = frozenset[str]  # layers whose parameters something depends on
Node: TypeAlias = Any  # torch's graph nodes share no public type


@dataclass
class Trace:
    """The graph of one step, before any backward pass through it. The data is a leaf like the parameters.

    A parameter belongs to the first layer that has it, whoever else uses it too.
    """

    loss: Tensor
    batch: int
    data: Tensor
    weights: Mapping[str, Tensor]  # parameters and buffers by name
    running_norms: Mapping[Node, str]  # batch normalisations that keep running statistics: their layer
    kept: Keeper
    of_data: Collection[Node]  # results of functions that were given data, if only as indices
    nodes: list[Node] = field(default_factory=list)  # each after its operands
    reach: dict[Node, Owners] = field(default_factory=dict)  # all that a node depends on, DATA included
    _leaves: dict[int, tuple[str, Owners]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """List the nodes and what lies behind each."""
        self._leaves = {id(value): (name, frozenset({layer_of(name)})) for name, value in self.weights.items()}
        self._leaves[id(self.data)] = ("", frozenset({DATA}))
        self.nodes = _forward_order(self.loss.grad_fn)
        for node in self.nodes:
            behind = (self.reach[operand] for operand, _ in operands(node))
            own = frozenset({DATA}) if node in self.of_data else frozenset[str]()
            self.reach[node] = own.union(self._leaf(node)[1], *behind)

    @property
    def leaves(self) -> list[Tensor]:
        """All parameters, and the data."""
        return [value for value in (*self.weights.values(), self.data) if value.requires_grad]

    def behind(self, node: Node | None) -> Owners:
        """Return the layers behind an operand; none behind a constant."""
        return self.reach.get(node, frozenset()) - {DATA}

    def parameter(self, node: Node | None) -> str:
        """Return the name of the parameter that a node stands for; "" if it is something else."""
        return self._leaf(node)[0]

    def _leaf(self, node: Node | None) -> tuple[str, Owners]:
        return self._leaves.get(id(getattr(node, "variable", None)), ("", frozenset()))


class Keeper:
    """Saved-tensor hooks that remember what a forward pass keeps for backward."""

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []
        self._asked: list[int] = []

    def hooks(self) -> torch.autograd.graph.saved_tensors_hooks:
        """Return the context under which to run forward."""
        return torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack)

    def by_node(self, node: Node) -> Iterator[tuple[str, int]]:
        """Yield what a node keeps as (its name there, place in `tensors`)."""
        for name in dir(node):
            if name.startswith("_saved_"):
                self._asked.clear()
                getattr(node, name)  # what is a tensor is unpacked now
                yield from ((name.removeprefix("_saved_"), place) for place in self._asked)

    def _pack(self, tensor: Tensor) -> int:
        self.tensors.append(tensor)
        return len(self.tensors) - 1

    def _unpack(self, place: int) -> Tensor:
        self._asked.append(place)
        return self.tensors[place]


class _Follower(TorchFunctionMode):
    """Notes what depends on the data, also where no gradient goes that way, and that nobody else saves tensors."""

    def __init__(self, data: Tensor) -> None:
        super().__init__()
        self.nodes: set[Node] = set()
        self._found = {id(data): data}  # with the tensors, as an id means nothing once its tensor is gone
        self._hooks = _saving_hooks()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function of torch; if it is given data, so is whoever gets its results."""
        if _saving_hooks() != self._hooks:
            raise NotMeasured("it saves tensors in its own way, as torch.utils.checkpoint does; leave that out")
        result = func(*args, **(kwargs or {}))
        if any(id(value) in self._found for value in tree_leaves((args, kwargs))):
            for value in tree_leaves(result):
                if isinstance(value, Tensor) and not (value.is_leaf and value.requires_grad):
                    self._found[id(value)] = value
                    self.nodes.add(value.grad_fn)
        return result


def _saving_hooks() -> Any:
    return torch._C._autograd._top_saved_tensors_default_hooks(True)


def trace_step(
    module: nn.Module, input_shape: Sequence[int], batch: int, objective: Objective = CLASSIFICATION
) -> Trace:
    """Return the graph of a step of a network in training mode, on its mean loss; its weights are not read."""
    data = torch.empty(batch, *input_shape, device="meta", requires_grad=True)
    return _trace(module, on_meta(module), data, objective)


def trace_on_cpu(
    module: nn.Module, input_shape: Sequence[int], batch: int, objective: Objective = CLASSIFICATION
) -> Trace:
    """Return the same as `trace_step` with the kernels and memory layouts that a CPU would choose."""
    with FakeTensorMode(allow_non_fake_inputs=True):  # constants that a network holds
        weights = {
            name: torch.empty_strided(
                value.size(),
                value.stride(),
                dtype=value.dtype,
                device="cpu",
                requires_grad=isinstance(value, nn.Parameter),
            )
            for name, value in (*module.named_parameters(), *module.named_buffers())
        }
        data = torch.empty(batch, *input_shape, device="cpu", requires_grad=True)
        return _trace(module, weights, data, objective)


def loss_of(module: nn.Module, weights: Mapping[str, Tensor], data: Tensor, objective: Objective) -> Tensor:
    """Return the mean loss of data with some labels."""
    outputs = applied(module, weights, data)
    return objective.loss(outputs, objective.some_labels(outputs))


def grown(trace: Trace, larger: Trace) -> Collection[Node]:
    """Return the nodes of a trace whose results are larger in that of a larger batch.

    Raises NotMeasured if they are not traces of the same operations.
    """
    if [operation(node) for node in trace.nodes] != [operation(node) for node in larger.nodes]:
        raise NotMeasured("its operations are not the same in every pass and for every batch")
    pairs = zip(trace.nodes, larger.nodes, strict=True)
    return {node for node, other in pairs if _shapes(node) != _shapes(other)}


def _trace(module: nn.Module, weights: Mapping[str, Tensor], data: Tensor, objective: Objective) -> Trace:
    running_norms: dict[Node, str] = {}
    norms = [(name, inner) for name, inner in module.named_modules() if isinstance(inner, BATCH_NORMS)]
    hooks = [
        norm.register_forward_hook(partial(_note, running_norms, name))
        for name, norm in norms
        if norm.track_running_stats
    ]
    kept = Keeper()
    given = data.clone()  # no leaf, so that a network may change it in place
    try:
        with kept.hooks(), _Follower(given) as followed:
            loss = loss_of(module, weights, given, objective)
    finally:
        for hook in hooks:
            hook.remove()
    return Trace(loss, len(data), data, weights, running_norms, kept, followed.nodes)


def layer_of(tensor: str) -> str:
    """Return the layer that owns a parameter or buffer."""
    return tensor.rpartition(".")[0]


def operation(node: Node) -> str:
    """Return the operation of a node, such as "Convolution"."""
    return re.sub(r"Backward\d*$", "", node.name().rpartition("::")[2])


def operands(node: Node) -> list[tuple[Node, int]]:
    """Return the nodes a node reads, with which of their outputs; constants are left out."""
    return [(operand, place) for operand, place in node.next_functions if operand is not None]


def operand(node: Node, place: int) -> Node | None:
    """Return the node behind an argument; None for a constant."""
    found = node.next_functions
    return found[place][0] if place < len(found) else None


def _shapes(node: Node) -> list[tuple[int, ...]]:
    return [shape_of(node, place) for place in range(len(node._input_metadata))]


def shape_of(node: Node, place: int = 0) -> tuple[int, ...]:
    """Return the shape of an output of a node."""
    return tuple(node._input_metadata[place].shape)  # the gradient that enters a node has its output's shape


def numel(node: Node, place: int = 0) -> int:
    """Return the number of elements of an output of a node."""
    return math.prod(shape_of(node, place))


def _note(found: dict[Node, str], name: str, *called: Any) -> None:
    found[called[-1].grad_fn] = name


def _forward_order(last: Node) -> list[Node]:
    """Return all nodes behind `last`, each after its operands; deterministic. Not recursive: graphs are deep."""
    order: list[Node] = []
    seen: set[Node] = set()
    stack = [(last, False)]
    while stack:
        node, operands_done = stack.pop()
        if operands_done:
            order.append(node)
        elif node not in seen:
            seen.add(node)
            stack.append((node, True))
            stack.extend((operand, False) for operand, _ in reversed(operands(node)))
    return order
