"""Work of a step by kind: bytes, operations and the shares of convolutions, counted operation by operation.

A dispatch mode sees every operation that a step runs. Forward is counted module by module. It is counted in training,
with all layers frozen, and in a test, because the modes of dropout and normalisation differ. Backward is counted node
by node of autograd's graph. The gradients of a node's operands share work, so that amounts of operands do not add up:
the gradient of a convolution's input reads the same bytes as the gradient of its weights. A node that does f(S) for the
set S of operands with a gradient is therefore written as a sum over sets T of c_T, paid if T meets S. That is exact for
any f, and T stands for the layers behind its operands.

Conventions. An operation reads its operands and writes its results: the bytes of each count once, so that a result in
place of an operand counts as read and as written. Views and tensors without values cost nothing. Kernels are those of
tensors without numbers: attention is not fused. Products with frozen matrices run as those with trained ones. But a
module torch.nn.LSTM runs as one kernel a layer on CPUs, so that operations that it repeats count once.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import combinations
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.hooks import RemovableHandle

from edgesim.core.price_list import WorkCost
from edgesim.learning.measure.channel_groups import find_groups
from edgesim.learning.measure.operation_work import convolving, does_work
from edgesim.learning.measure.run_again import parts_run_again
from edgesim.learning.models.build import blank_inputs, on_meta
from edgesim.learning.models.trace import (
    DATA,
    Node,
    NotMeasured,
    Owners,
    Trace,
    layer_of,
    loss_of,
    numel,
    operand,
    operands,
    operation,
    shape_of,
    trace_step,
)
from edgesim.learning.objectives.base import Objective
from edgesim.learning.train.loop import backward_from, gradients

_MOST_SOURCES = 8  # of the operands of one node: 255 backward passes through it

_Groups: TypeAlias = tuple[str, ...]
_Amounts: TypeAlias = Counter[tuple[str, _Groups]]  # by kind and channel groups, for a whole batch
_Costs: TypeAlias = dict[tuple[str, Owners | None, _Groups], float]
_Shape: TypeAlias = tuple[int, ...]


def work_costs(
    module: nn.Module,
    input_shape: Sequence[int],
    batch: int,
    objective: Objective,
    own_work: Collection[str],
    tokens: bool = False,
) -> tuple[WorkCost, ...]:
    """Return the work of a step of a network in training mode, by kind. Its weights are neither read nor changed.

    `own_work`: layers that do exactly their weights' work. Raises NotMeasured for a node that depends on too many sets
    of layers.
    """
    small, large = (_step_costs(module, input_shape, size, objective, own_work, tokens) for size in (batch, batch + 1))
    found: list[WorkCost] = []
    for kind, upstream, groups in dict.fromkeys((*small, *large)):
        one, other = (costs.get((kind, upstream, groups), 0.0) for costs in (small, large))
        if one or other:
            found.append(WorkCost(kind, other - one, one - batch * (other - one), upstream, groups))
    return tuple(found)


def _step_costs(
    module: nn.Module,
    input_shape: Sequence[int],
    batch: int,
    objective: Objective,
    own_work: Collection[str],
    tokens: bool = False,
) -> _Costs:
    tensors = (*module.named_parameters(), *module.named_buffers())
    layers = frozenset(layer_of(name) for name, value in tensors if value.is_floating_point())
    names = {name for name, _ in module.named_modules()}
    runs: list[_Run] = []
    for training in (set[str](), names - layers, names):
        with _in_modes(module, training):
            runs.append(_Run(module, input_shape, batch, objective, own_work, tokens))
    tested, frozen, trained = runs
    costs: _Costs = {}
    _charge(costs, None, _total(tested.forward.values()))
    rest = _total(frozen.forward.values())  # such as dropout, whichever layers are trained
    rest.subtract(_total(tested.forward.values()))
    switching: set[str] = set()  # layers that run otherwise if they are frozen
    for name in {**trained.forward, **frozen.forward}:
        more = Counter(trained.forward.get(name, Counter()))
        more.subtract(frozen.forward.get(name, Counter()))
        if name not in layers:
            rest.update(more)
        elif any(more.values()):
            switching.add(name)
            _charge(costs, frozenset({name}), more)
    _charge(costs, layers, rest)
    for owners, amounts in (*trained.copies, *trained.again):
        _charge(costs, owners, amounts)
    trained.run_backward()
    if list(map(operation, trained.trace.nodes)) != list(map(operation, frozen.trace.nodes)):
        switching.clear()
    if switching:
        frozen.run_backward()
    for place in range(len(trained.trace.nodes)):
        layer = trained.module_of(place)
        for owners, amounts in _node_costs(place, trained, frozen, layer if layer in switching else None):
            _charge(costs, owners, amounts)
    for owners, amounts in trained.between():
        _charge(costs, owners, amounts)
    for done in runs:
        done.trace.kept.forget()
    return costs


def _charge(costs: _Costs, upstream: Owners | None, amounts: _Amounts) -> None:
    if upstream is None or upstream:  # what depends on the data alone is never trained
        for (kind, groups), amount in amounts.items():
            if amount:
                key = kind, upstream, groups
                costs[key] = costs.get(key, 0.0) + amount


def _total(parts: Iterable[_Amounts]) -> _Amounts:
    total: _Amounts = Counter()
    for part in parts:
        total.update(part)
    return total


@contextmanager
def _in_modes(module: nn.Module, trained: set[str]) -> Iterator[None]:
    """Let these modules run as in training and the others as in a test."""
    modes = {inner: inner.training for inner in module.modules()}
    for name, inner in module.named_modules():
        inner.training = name in trained
    try:
        yield
    finally:
        for inner, mode in modes.items():
            inner.training = mode


def _node_costs(place: int, trained: _Run, frozen: _Run, layer: str | None) -> Iterator[tuple[Owners, _Amounts]]:
    """Yield the terms c_T of a node with the layers behind T.

    `frozen`: the step with all layers as if frozen. `layer`: the layer of the node, if it runs otherwise when frozen.
    """
    whole = trained.backward.get(place)
    if not whole:
        return
    sources: dict[Owners, list[int]] = {}
    for source in trained.sources(place):
        sources.setdefault(trained.trace.reach[trained.trace.nodes[source]] - {DATA}, []).append(source)
    if layer is None and len(sources) == 1:
        yield next(iter(sources)), whole
        return
    never = sources.pop(frozenset(), [])
    if layer is not None:  # it is trained or frozen even if it has no weights
        sources.setdefault(frozenset({layer}), [])
    each = list(sources)
    if len(each) > _MOST_SOURCES:
        raise NotMeasured(f"{operation(trained.trace.nodes[place])} depends on {len(each)} sets of layers")
    done: dict[tuple[bool, frozenset[int]], _Amounts] = {}

    def amounts(chosen: Collection[Owners]) -> _Amounts:
        """Return f(S) for these sources and those that cannot be without a gradient if these have one."""
        needed = [owners for owners in each if any(owners >= given for given in chosen)]
        ends = frozenset(source for owners in needed for source in sources[owners])
        run = trained if layer is None or frozenset({layer}) in needed else frozen
        key = run is trained, ends
        if key not in done:
            everything = run is trained and not never and len(needed) == len(each)
            done[key] = whole if everything else run.alone(place, sorted(ends)) if ends else Counter()
        return done[key]

    subsets = [set(chosen) for size in range(len(each) + 1) for chosen in combinations(each, size)]
    lost: list[_Amounts] = []  # without these sources, from all
    for chosen in subsets:
        less = Counter(amounts(each))
        less.subtract(amounts([owners for owners in each if owners not in chosen]))
        lost.append(less)
    for chosen in subsets[1:]:
        term: _Amounts = Counter()
        for part, less in zip(subsets, lost, strict=True):
            if part <= chosen:
                (term.subtract if (len(chosen) - len(part)) % 2 else term.update)(less)
        yield frozenset[str]().union(*chosen), term


class _Values(NamedTuple):
    """Shape and size of a tensor."""

    shape: _Shape
    nbytes: int


class _Op(NamedTuple):
    """An operation that ran. `place`: the module or the node that it is charged to."""

    name: str
    place: Any
    sequence: int  # number of the next node of the graph when it started
    read: tuple[_Values, ...]
    written: tuple[_Values, ...]
    convolving: Mapping[str, int]  # work of a convolution, beside its bytes


class _Run:
    """A step whose operations are counted: forward at once, backward if asked.

    `forward`: amounts by module. `copies`: of tensors that are then changed in place, with the layers of which one must
    be trained for them. `again`: of parts of forward that run again in backward, likewise.
    """

    def __init__(
        self,
        module: nn.Module,
        input_shape: Sequence[int],
        batch: int,
        objective: Objective,
        own_work: Collection[str],
        tokens: bool,
    ) -> None:
        self._counter = _Counter()
        with _by_module(module, self._counter) as self._moves:
            self.trace: Trace = trace_step(
                module, input_shape, batch, objective, self._counter, tokens, lambda: len(self._counter.log)
            )
        plain = _Counter()
        with _by_module(module, plain), torch.no_grad(), plain:
            loss_of(module, on_meta(module), blank_inputs(batch, input_shape, tokens), objective)
        self._layout = find_groups(self.trace, module, own_work)
        self._places = {node: place for place, node in enumerate(self.trace.nodes)}
        made = sorted((node._sequence_nr(), place) for place, node in enumerate(self.trace.nodes))
        self._made = [(number, place) for number, place in made if operands(self.trace.nodes[place])]
        self._received: dict[int, tuple[Tensor | None, ...]] = {}
        fused = {name for name, inner in module.named_modules() if isinstance(inner, nn.LSTM) and not inner.proj_size}
        alike: dict[Any, int] = {}
        self._repeated: set[int] = set()  # nodes of these modules like one before
        for place, node in enumerate(self.trace.nodes):
            if fused and (name := self.module_of(place)) in fused:
                sizes = [shape_of(*source) for source in operands(node)]
                if alike.setdefault((name, operation(node), shape_of(node), *sizes), place) != place:
                    self._repeated.add(place)
        self.backward: Mapping[Any, _Amounts] = {}
        self.forward: dict[str, _Amounts] = {}
        self.copies: list[tuple[Owners, _Amounts]] = []
        untracked = iter(plain.log)
        awaited = next(untracked, None)
        ran: set[Any] = set()
        each: list[_Amounts] = []
        for op in self._counter.log:
            node = self._node_at(op.sequence)
            same = op.place, op.name, op.read, op.written
            amounts: _Amounts = Counter() if op.place in fused and same in ran else self._amounts(op, node)
            ran.add(same)
            each.append(amounts)
            if awaited is not None and (op.name, op.place, op.read) == (awaited.name, awaited.place, awaited.read):
                self.forward.setdefault(op.place, Counter()).update(amounts)
                awaited = next(untracked, None)
            else:
                self.copies.append((self._behind_copy(node), amounts))
        if awaited is not None:
            raise NotMeasured("its operations are not the same with and without gradients")
        parts = parts_run_again(self.trace)
        self.again = [(part.upstream, _total(each[part.since : part.until])) for part in parts]

    def _node_at(self, sequence: int) -> Node | None:
        place = bisect_left(self._made, (sequence, -1)) - 1
        return self.trace.nodes[self._made[place][1]] if place >= 0 else None

    def _behind_copy(self, node: Node | None) -> Owners:
        """Return the layers that need the old values of a tensor that a node changes in place."""
        factor = node is not None and operation(node) in ("Mul", "Div")  # kept for the gradient of the other one
        return self.trace.behind(operand(node, 1) if factor else node)

    def module_of(self, place: int) -> str:
        """Return the module that made a node."""
        number = self.trace.nodes[place]._sequence_nr()
        return self._moves[bisect_left(self._moves, (number + 1, "")) - 1][1]

    def run_backward(self) -> None:
        """Count the backward pass in which everything is trained and the data has a gradient."""

        def enter(place: int, received: tuple[Tensor | None, ...]) -> None:
            self._received[place] = received
            self._counter.place = place

        def leave(*_: object) -> None:
            self._counter.place = None

        for place, node in enumerate(self.trace.nodes):
            node.register_prehook(partial(enter, place))
            node.register_hook(leave)
        self.backward = self._counted(partial(gradients, self.trace.loss, self.trace.leaves, again=True))

    def sources(self, place: int) -> list[int]:
        """Return the places of a node's operands."""
        return [self._places[source] for source, _ in operands(self.trace.nodes[place])]

    def alone(self, place: int, ends: Sequence[int]) -> _Amounts:
        """Return the amounts of a node if only these operands need a gradient."""
        nodes, received = self.trace.nodes, self._received[place]
        counted = self._counted(partial(backward_from, nodes[place], received, [nodes[end] for end in ends]), place)
        return counted.get(place, Counter())

    def between(self) -> Iterator[tuple[Owners, _Amounts]]:
        """Yield the amounts of backward outside nodes: sums of the gradients of results that are used several times."""
        left = Counter(self.backward.get(None, Counter()))
        uses = Counter(use for node in self.trace.nodes for use in operands(node))
        once = Counter(
            use for place, node in enumerate(self.trace.nodes) if place not in self._repeated for use in operands(node)
        )
        for (node, place), times in uses.items():
            nbytes = numel(node, place) * node._input_metadata[place].dtype.itemsize
            groups = _kept(self._labels(node)) if place == 0 else ()
            added = max(once[node, place] - 1, 0)
            sums: _Amounts = Counter({("operations", ()): added, ("bytes", groups): 3 * added * nbytes})
            left.subtract({("operations", ()): times - 1, ("bytes", ()): 3 * (times - 1) * nbytes})
            yield self.trace.behind(node), sums
        yield self.trace.behind(self.trace.loss.grad_fn), left  # the gradient of the loss itself

    def _counted(self, step: Callable[[], object], only: int | None = None) -> dict[Any, _Amounts]:
        """Run a backward pass and return its amounts by node, or those of one node."""
        self._counter.log, self._counter.place = [], None
        with self._counter:
            step()
        found: dict[Any, _Amounts] = {}
        for op in self._counter.log:
            if op.place not in self._repeated and (only is None or op.place == only):
                node = None if op.place is None else self.trace.nodes[op.place]
                found.setdefault(op.place, Counter()).update(self._amounts(op, node, backward=True))
        return found

    def _amounts(self, op: _Op, node: Node | None, backward: bool = False) -> _Amounts:
        """Return the work of an operation of a node, by the channel groups of its tensors."""
        sources: list[_Labelled] = []
        results: list[_Labelled] = []
        if node is not None and self._layout.groups:
            sources = [(shape_of(*source), self._labels(source[0])) for source in operands(node)]
            results = [(shape_of(node), self._labels(node))]
        either = results + sources
        read = _groups_of(op.read, either if backward else sources + results, either)
        written = _groups_of(op.written, sources + results if backward else either, either)
        amounts: _Amounts = Counter({("operations", ()): 1})
        for values, groups in zip((*op.read, *op.written), (*read, *written), strict=True):
            amounts["bytes", groups] += values.nbytes
            if op.convolving.get("dense"):
                amounts["conv_bytes", groups] += values.nbytes
        for kind, amount in op.convolving.items():
            if kind != "dense":
                amounts[kind, read[1 + backward]] += amount
        if op.convolving:
            amounts["convolutions", ()] += 1
        return amounts

    def _labels(self, node: Node) -> _Groups:
        """Return the channel group of each dimension of a node's result, "" where nothing can be left out."""
        turned = operation(node) == "T" and self.trace.parameter(operand(node, 0)) != ""
        name = self.trace.parameter(operand(node, 0) if turned else node)
        if not name:
            return self._layout.axes[node]
        layer, dimensions = layer_of(name), len(shape_of(node))
        both = (self._layout.rows.get(layer, ""), self._layout.columns.get(layer, ("", 1))[0])
        labels = (*both, *[""] * dimensions)[:dimensions]
        return labels[::-1] if turned else labels


_Labelled: TypeAlias = tuple[_Shape, _Groups]


def _groups_of(tensors: Sequence[_Values], known: Sequence[_Labelled], parts_of: Sequence[_Labelled]) -> list[_Groups]:
    """Return the channel groups of tensors of an operation, by shape and, of equal shapes, by order.

    A tensor with the shape of none that is known goes with the first of `parts_of` that it fits in some dimension.
    """
    unused = list(known)
    found: list[_Groups] = []
    for shape, _ in tensors:
        match = next((each for each in unused if shape in (each[0], each[0][::-1])), None)
        if match is not None:
            unused.remove(match)
            found.append(_kept(match[1]))
        else:
            found.append(next(filter(None, (_partly(shape, *each) for each in parts_of)), ()))
    return found


def _partly(shape: _Shape, sizes: _Shape, labels: _Groups) -> _Groups:
    """Return the groups that a tensor has in common with one that it goes with: a sum of it or a number a channel."""
    if len(shape) == 1 and len(sizes) > 1:
        return _kept(label for size, label in zip(sizes[1:2], labels[1:2], strict=True) if (size,) == shape)
    if len(shape) != len(sizes):
        return ()
    return _kept(label for have, size, label in zip(shape, sizes, labels, strict=True) if have == size)


def _kept(labels: Iterable[str]) -> _Groups:
    return tuple(filter(None, labels))


@contextmanager
def _by_module(module: nn.Module, counter: _Counter) -> Iterator[list[tuple[int, str]]]:
    """Charge operations to the innermost running module. Yields its changes, with the number of the next node."""
    moves = [(0, "")]
    running = [""]

    def move() -> None:
        counter.place = running[-1]
        moves.append((torch._C._autograd._get_sequence_nr(), running[-1]))

    def enter(name: str, *_: object) -> None:
        running.append(name)
        move()

    def leave(*_: object) -> None:
        running.pop()
        move()

    counter.place = ""
    hooks: list[RemovableHandle] = []
    for name, inner in module.named_modules():
        hooks += [inner.register_forward_pre_hook(partial(enter, name)), inner.register_forward_hook(leave)]
    try:
        yield moves
    finally:
        for hook in hooks:
            hook.remove()


class _Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Logs every operation that does work, with a place that its owner moves."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.place: Any = None
        self.log: list[_Op] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation of torch and log its work."""
        sequence = torch._C._autograd._get_sequence_nr()
        result = func(*args, **(kwargs or {}))
        written, name = _values(result), func.overloadpacket.__name__
        if written and does_work(func):
            conv = convolving(name, args, result)
            self.log.append(_Op(name, self.place, sequence, _values((args, kwargs)), written, conv))
        return result


def _values(found: Any) -> tuple[_Values, ...]:
    once = {id(value): value for value in tree_leaves(found) if isinstance(value, Tensor)}
    return tuple(_Values(tuple(value.shape), value.nbytes) for value in once.values())
