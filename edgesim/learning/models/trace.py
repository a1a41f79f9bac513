"""Graph of one training step without numbers: autograd's operations, their dependencies and their kept tensors.

Only shapes and layouts are computed, so that any network takes moments.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from edgesim.learning.models.build import applied, blank_inputs, on_meta
from edgesim.learning.models.checkpointing import plain_blocks
from edgesim.learning.objectives.base import Objective
from edgesim.learning.objectives.classification import CLASSIFICATION

DATA = "\0data"  # represents the data among owners. No module can have this name
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


class NotMeasured(Exception):
    """Error for a network that does something without a price in edgesim. The message names it."""


Owners: TypeAlias = frozenset[str]  # layers whose parameters something depends on
Node: TypeAlias = Any  # torch's graph nodes share no public type


@dataclass
class Trace:
    """The graph of one step, before any backward pass through it. The data is a leaf like the parameters.

    A parameter belongs to the first layer that has it, even if other layers use it too.
    """

    loss: Tensor
    batch: int
    data: Tensor
    weights: Mapping[str, Tensor]  # parameters and buffers by name
    running_norms: Mapping[Node, str]  # layer of each batch normalisation that keeps running statistics
    kept: Keeper
    of_data: Collection[Node]  # results of functions with data among their arguments, even if only as indices
    nodes: list[Node] = field(default_factory=list)  # each after its operands
    reach: dict[Node, Owners] = field(default_factory=dict)  # everything that a node depends on, with DATA
    _leaves: dict[int, tuple[str, Owners]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """List the nodes and the owners behind each of them."""
        self._leaves = {id(value): (name, frozenset({layer_of(name)})) for name, value in self.weights.items()}
        self._leaves[id(self.data)] = ("", frozenset({DATA}))
        self.nodes = nodes_behind(self.loss.grad_fn)
        for node in self.nodes:
            behind = (self.reach[operand] for operand, _ in operands(node))
            own = frozenset({DATA}) if node in self.of_data else frozenset[str]()
            self.reach[node] = own.union(self._leaf(node)[1], *behind)

    @property
    def leaves(self) -> list[Tensor]:
        """All parameters, and the data."""
        return [value for value in (*self.weights.values(), self.data) if value.requires_grad]

    def behind(self, node: Node | None) -> Owners:
        """Return the layers behind an operand, and none behind a constant."""
        return self.reach.get(node, frozenset()) - {DATA}

    def parameter(self, node: Node | None) -> str:
        """Return the name of the parameter that a node represents, or "" for any other node."""
        return self._leaf(node)[0]

    def _leaf(self, node: Node | None) -> tuple[str, Owners]:
        return self._leaves.get(id(getattr(node, "variable", None)), ("", frozenset()))


class KeptTensor(NamedTuple):
    """A tensor that a node of a checkpointed block keeps."""

    place: int  # among all kept tensors
    node: int  # sequence number of the node
    done: int  # work done before it was kept, by a clock


@dataclass
class Block:
    """A checkpointed block in a trace, where it keeps all that it would compute again."""

    inputs: Sequence[Tensor]
    done: int  # work done before the block, by a clock
    nodes: range = range(0)  # sequence numbers of its nodes
    kept: list[KeptTensor] = field(default_factory=list)

    @property
    def places(self) -> Collection[int]:
        """Places of its kept tensors among all."""
        return [each.place for each in self.kept]


class Keeper:
    """Saved-tensor hooks that record the tensors that a forward pass keeps for backward, and checkpointed blocks."""

    def __init__(self, clock: Callable[[], int] = lambda: 0) -> None:
        """`clock`: a measure of the work that has been done, such as a number of operations."""
        self.tensors: list[Tensor] = []
        self.blocks: list[Block] = []
        self._asked: list[int] = []
        self._clock = clock
        self._within: Block | None = None

    def hooks(self) -> torch.autograd.graph.saved_tensors_hooks:
        """Return the context in which the forward pass must run."""

        def pack(tensor: Tensor) -> int:
            place = len(self.tensors)
            if self._within is not None:
                self._within.kept.append(KeptTensor(place, _next_sequence_number() - 1, self._clock()))
            self.tensors.append(tensor)
            return place

        def unpack(place: int) -> Tensor:
            self._asked.append(place)
            return self.tensors[place]

        return torch.autograd.graph.saved_tensors_hooks(pack, unpack)

    @contextmanager
    def block(self, inputs: Sequence[Tensor]) -> Iterator[None]:
        """Record what runs in the with-block as a checkpointed block."""
        found = self._within = Block(inputs, self._clock())
        first = _next_sequence_number()
        yield
        found.nodes, self._within = range(first, _next_sequence_number()), None
        self.blocks.append(found)

    @property
    def in_blocks(self) -> Collection[int]:
        """Places of the tensors that nodes of checkpointed blocks keep."""
        return {place for block in self.blocks for place in block.places}

    def forget(self) -> None:
        """Let go of all tensors. They and the graph refer to each other, so that neither would be freed."""
        self.tensors.clear()
        self.blocks.clear()

    def by_node(self, node: Node) -> Iterator[tuple[str, int]]:
        """Yield the kept tensors of a node as (its name in the node, place in `tensors`)."""
        for name in dir(node):
            if name.startswith("_saved_"):
                self._asked.clear()
                getattr(node, name)  # if it is a tensor, it is unpacked now
                yield from ((name.removeprefix("_saved_"), place) for place in self._asked)


class _Follower(TorchFunctionMode):
    """Record of the results that depend on the data, even without a gradient. It refuses other saved-tensor hooks."""

    def __init__(self, data: Tensor) -> None:
        super().__init__()
        self.nodes: set[Node] = set()
        self._found = {id(data): data}  # the tensors are kept, because an id is reused once its tensor is gone
        self._hooks = _saving_hooks()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function of torch. If an argument depends on the data, the results depend on it too."""
        if _saving_hooks() != self._hooks:
            raise NotMeasured("it saves tensors in its own way, as torch.utils.checkpoint does; leave that out")
        result = func(*args, **(kwargs or {}))
        if any(id(value) in self._found for value in tree_leaves((args, kwargs))):
            for value in tree_leaves(result):
                if isinstance(value, Tensor) and not (value.is_leaf and value.requires_grad):
                    self._found[id(value)] = value
                    self.nodes.add(value.grad_fn)
        return result


def _next_sequence_number() -> int:
    number: int = torch._C._autograd._get_sequence_nr()
    return number


def _saving_hooks() -> Any:
    return torch._C._autograd._top_saved_tensors_default_hooks(True)


def trace_step(
    module: nn.Module,
    input_shape: Sequence[int],
    batch: int,
    objective: Objective = CLASSIFICATION,
    around: AbstractContextManager[Any] | None = None,
    tokens: bool = False,
    clock: Callable[[], int] = lambda: 0,
) -> Trace:
    """Return the graph of a step of a network in training mode, with its mean loss. Its weights are not read.

    `around`: the context in which the network and its loss run. `tokens`: the inputs are int64, without a gradient.
    `clock`: see `Keeper`.
    """
    data = blank_inputs(batch, input_shape, tokens).requires_grad_(not tokens)
    return _trace(module, on_meta(module), data, objective, around, clock)


def trace_on_cpu(
    module: nn.Module,
    input_shape: Sequence[int],
    batch: int,
    objective: Objective = CLASSIFICATION,
    tokens: bool = False,
) -> Trace:
    """Return the same as `trace_step` with the kernels and memory layouts of a CPU."""
    with FakeTensorMode(allow_non_fake_inputs=True):  # for constants that a network holds
        weights = stand_ins_on_cpu(module)
        data = blank_inputs(batch, input_shape, tokens, "cpu").requires_grad_(not tokens)
        return _trace(module, weights, data, objective)


def stand_ins_on_cpu(module: nn.Module) -> dict[str, Tensor]:
    """Return tensors with the layouts of a network's parameters, buffers and base, by name; for a FakeTensorMode."""
    return {
        name: torch.empty_strided(
            value.size(),
            value.stride(),
            dtype=value.dtype,
            device="cpu",
            requires_grad=isinstance(value, nn.Parameter),
        )
        for name, value in (*module.named_parameters(), *module.named_buffers())
    }


def loss_of(module: nn.Module, weights: Mapping[str, Tensor], data: Tensor, objective: Objective) -> Tensor:
    """Return the mean loss of data with arbitrary labels."""
    outputs = applied(module, weights, data)
    return objective.loss(outputs, objective.some_labels(outputs))


def grown(trace: Trace, larger: Trace) -> Collection[Node]:
    """Return the nodes of a trace whose results are larger in the trace of a larger batch.

    Raises NotMeasured if the two traces have different operations.
    """
    if [operation(node) for node in trace.nodes] != [operation(node) for node in larger.nodes]:
        raise NotMeasured("its operations are not the same in every pass and for every batch")
    pairs = zip(trace.nodes, larger.nodes, strict=True)
    return {node for node, other in pairs if _shapes(node) != _shapes(other)}


def _trace(
    module: nn.Module,
    weights: Mapping[str, Tensor],
    data: Tensor,
    objective: Objective,
    around: AbstractContextManager[Any] | None = None,
    clock: Callable[[], int] = lambda: 0,
) -> Trace:
    running_norms: dict[Node, str] = {}

    def note(name: str, *called: Any) -> None:
        running_norms[called[-1].grad_fn] = name

    norms = [(name, inner) for name, inner in module.named_modules() if isinstance(inner, BATCH_NORMS)]
    hooks = [norm.register_forward_hook(partial(note, name)) for name, norm in norms if norm.track_running_stats]
    kept = Keeper(clock)
    given = data.clone()  # not a leaf, so that a network may change it in place
    try:
        with kept.hooks(), _Follower(given) as followed, around or nullcontext(), plain_blocks(kept.block):
            loss = loss_of(module, weights, given, objective)
    finally:
        for hook in hooks:
            hook.remove()
    return Trace(loss, len(data), data, weights, running_norms, kept, followed.nodes)


def nodes_behind(last: Node) -> list[Node]:
    """Return the nodes of a graph that ends in `last`, each after its operands."""
    found: list[Node] = []
    seen: set[Node] = set()
    stack: list[tuple[Node, bool]] = [(last, False)]  # not recursive, because graphs are deep
    while stack:
        node, operands_done = stack.pop()
        if operands_done:
            found.append(node)
        elif node not in seen:
            seen.add(node)
            stack.append((node, True))
            stack.extend((operand, False) for operand, _ in reversed(operands(node)))
    return found


def layer_of(tensor: str) -> str:
    """Return the layer that owns a parameter or buffer."""
    return tensor.rpartition(".")[0]


def operation(node: Node) -> str:
    """Return the operation of a node, such as "Convolution"."""
    return re.sub(r"Backward\d*$", "", node.name().rpartition("::")[2])


def operands(node: Node) -> list[tuple[Node, int]]:
    """Return the nodes that a node reads, with the places of the outputs read. Constants are left out."""
    return [(operand, place) for operand, place in node.next_functions if operand is not None]


def operand(node: Node, place: int) -> Node | None:
    """Return the node behind an argument, or None for a constant."""
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
