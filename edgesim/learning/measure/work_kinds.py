"""Work of a step by kind: bytes, operations and the shares of convolutions, counted operation by operation.

A dispatch mode sees every operation that a step runs. Forward is counted module by module. It is counted in training,
with all layers frozen, and in a test, because the modes of dropout and normalisation differ. Backward is counted node
by node of autograd's graph. The gradients of a node's operands share work, so that amounts of operands do not add up:
the gradient of a convolution's input reads the same bytes as the gradient of its weights. A node that does f(S) for the
set S of operands with a gradient is therefore written as a sum over sets T of c_T, paid if T meets S. That is exact for
any f, and T stands for the layers behind its operands.

Conventions. An operation reads its operands and writes its results: the bytes of each count once, so that a result in
place of an operand counts as read and as written. Views and tensors without values cost nothing. Kernels are those of
tensors without numbers: attention is not fused. Sums of gradients are separate operations.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import combinations
from typing import Any, TypeAlias

from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.hooks import RemovableHandle

from edgesim.core.price_list import WorkCost
from edgesim.learning.models.trace import (
    DATA,
    NotMeasured,
    Owners,
    Trace,
    layer_of,
    numel,
    operands,
    operation,
    trace_step,
)
from edgesim.learning.objectives.base import Objective
from edgesim.learning.train.loop import backward_from, gradients

_WITHOUT_VALUES = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "_unsafe_view"}
_MOST_SOURCES = 8  # of the operands of one node: 255 backward passes through it

_Amounts: TypeAlias = Counter[str]  # by kind, for a whole batch
_Costs: TypeAlias = dict[tuple[str, Owners | None], float]


def work_costs(module: nn.Module, input_shape: Sequence[int], batch: int, objective: Objective) -> tuple[WorkCost, ...]:
    """Return the work of a step of a network in training mode, by kind. Its weights are neither read nor changed.

    Raises NotMeasured for a node that depends on too many sets of layers.
    """
    small, large = (_step_costs(module, input_shape, size, objective) for size in (batch, batch + 1))
    found: list[WorkCost] = []
    for kind, upstream in dict.fromkeys((*small, *large)):
        one, other = (costs.get((kind, upstream), 0.0) for costs in (small, large))
        per_step = one - batch * (other - one)
        if one or other:
            found.append(WorkCost(kind, other - one, per_step, upstream))
    return tuple(found)


def _step_costs(module: nn.Module, input_shape: Sequence[int], batch: int, objective: Objective) -> _Costs:
    tensors = (*module.named_parameters(), *module.named_buffers())
    layers = frozenset(layer_of(name) for name, value in tensors if value.is_floating_point())
    names = {name for name, _ in module.named_modules()}
    run = partial(_Run, module, input_shape, batch, objective)
    with _in_modes(module, trained=set()):
        tested = run().forward
    with _in_modes(module, trained=names - layers):
        frozen = run()
    with _in_modes(module, trained=names):
        trained = run()
    costs: _Costs = {}
    _charge(costs, None, _total(tested.values()))
    rest = _total(frozen.forward.values())  # such as dropout, whichever layers are trained
    rest.subtract(_total(tested.values()))
    for name in {**trained.forward, **frozen.forward}:
        more = Counter(trained.forward.get(name, Counter()))
        more.subtract(frozen.forward.get(name, Counter()))
        if name in layers:
            _charge(costs, frozenset({name}), more)
        else:
            rest.update(more)
    _charge(costs, layers, rest)
    trained.run_backward()
    alike = list(map(operation, trained.trace.nodes)) == list(map(operation, frozen.trace.nodes))
    if alike and trained.trace.running_norms:
        frozen.run_backward()
    for place in range(len(trained.trace.nodes)):
        for owners, amounts in _node_costs(place, trained, frozen if alike else trained):
            _charge(costs, owners, amounts)
    for owners, amounts in trained.between():
        _charge(costs, owners, amounts)
    for done in (trained, frozen):
        done.trace.kept.tensors.clear()  # tensors and graph refer to each other, so that neither would be freed
    return costs


def _charge(costs: _Costs, upstream: Owners | None, amounts: _Amounts) -> None:
    if upstream is None or upstream:  # what depends on the data alone is never trained
        for kind, amount in amounts.items():
            if amount:
                costs[kind, upstream] = costs.get((kind, upstream), 0.0) + amount


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


def _node_costs(place: int, trained: _Run, frozen: _Run) -> Iterator[tuple[Owners, _Amounts]]:
    """Yield the terms c_T of a node with the layers behind T. `frozen`: the step in which all layers are frozen."""
    whole, norm = trained.backward.get(place), trained.trace.running_norms.get(trained.trace.nodes[place])
    if not whole:
        return
    sources: dict[Owners, list[int]] = {}
    for source in trained.sources(place):
        sources.setdefault(trained.trace.reach[trained.trace.nodes[source]] - {DATA}, []).append(source)
    if norm is None and len(sources) == 1:
        yield next(iter(sources)), whole
        return
    never = sources.pop(frozenset(), [])
    if norm is not None:  # the layer is trained or frozen even if it has no weights
        sources.setdefault(frozenset({norm}), [])
    each = list(sources)
    if len(each) > _MOST_SOURCES:
        raise NotMeasured(f"{operation(trained.trace.nodes[place])} depends on {len(each)} sets of layers")
    done: dict[frozenset[int], _Amounts] = {frozenset(): Counter()}

    def amounts(chosen: Collection[Owners]) -> _Amounts:
        """Return f(S) for these sources and those that cannot be without a gradient if these have one."""
        needed = [owners for owners in each if any(owners >= given for given in chosen)]
        ends = frozenset(source for owners in needed for source in sources[owners])
        run = frozen if norm is not None and frozenset({norm}) not in needed else trained
        key = ends if run is trained else ends | {-1}
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


class _Run:
    """A step whose operations are counted: forward at once, backward if asked."""

    def __init__(self, module: nn.Module, input_shape: Sequence[int], batch: int, objective: Objective) -> None:
        self._counter = _Counter()
        running = [""]
        hooks: list[RemovableHandle] = []

        def enter(name: str, *_: object) -> None:
            running.append(name)
            self._counter.place = name

        def leave(*_: object) -> None:
            running.pop()
            self._counter.place = running[-1]

        self._counter.place = ""
        for name, inner in module.named_modules():
            hooks += [inner.register_forward_pre_hook(partial(enter, name)), inner.register_forward_hook(leave)]
        try:
            self.trace: Trace = trace_step(module, input_shape, batch, objective, self._counter)
        finally:
            for hook in hooks:
                hook.remove()
        self.forward: Mapping[str, _Amounts] = self._counter.found
        self.backward: Mapping[Any, _Amounts] = {}
        self._received: dict[int, tuple[Tensor | None, ...]] = {}
        self._places = {node: place for place, node in enumerate(self.trace.nodes)}

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
        nodes = self.trace.nodes
        counted = self._counted(
            partial(backward_from, nodes[place], self._received[place], [nodes[end] for end in ends])
        )
        return counted.get(place, Counter())

    def between(self) -> Iterator[tuple[Owners, _Amounts]]:
        """Yield the amounts of backward outside nodes: sums of the gradients of results that are used several times."""
        left = Counter(self.backward.get(None, Counter()))
        uses = Counter(use for node in self.trace.nodes for use in operands(node))
        for (node, place), times in uses.items():
            nbytes = numel(node, place) * node._input_metadata[place].dtype.itemsize
            sums: _Amounts = Counter(operations=times - 1, bytes=3 * (times - 1) * nbytes)
            left.subtract(sums)
            yield self.trace.behind(node), sums
        yield self.trace.behind(self.trace.loss.grad_fn), left  # the gradient of the loss itself

    def _counted(self, step: Any) -> dict[Any, _Amounts]:
        self._counter.found, self._counter.place = {}, None
        with self._counter:
            step()
        return self._counter.found


class _Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Charges the work of every operation to a place, which its owner moves."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.place: Any = None
        self.found: dict[Any, _Amounts] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation of torch and charge its work."""
        result = func(*args, **(kwargs or {}))
        written = _distinct(result)
        name = func.overloadpacket.__name__
        if written and not func.is_view and name not in _WITHOUT_VALUES:
            nbytes = sum(value.nbytes for value in (*_distinct((args, kwargs)), *written))
            amounts = self.found.setdefault(self.place, Counter())
            amounts.update(operations=1, bytes=nbytes)
            if name == "convolution":
                amounts.update(_convolution(args, result, nbytes))
            elif name == "convolution_backward":
                amounts.update(_convolution_backward(args, nbytes))
        return result


def _distinct(values: Any) -> list[Tensor]:
    return list({id(value): value for value in tree_leaves(values) if isinstance(value, Tensor)}.values())


def _convolution(args: Sequence[Any], result: Tensor, nbytes: int) -> Mapping[str, int]:
    given, weight, transposed, groups = args[0], args[1], args[6], args[8]
    flops = 2 * len(given) * math.prod((given if transposed else result).shape[2:]) * weight.numel()
    if groups > 1:
        return {"depthwise_flops": flops, "depthwise_channels": groups}
    pointwise = math.prod(weight.shape[2:]) == 1
    return {"conv_bytes": nbytes, **({"forward_pointwise_flops": flops} if pointwise else {})}


def _convolution_backward(args: Sequence[Any], nbytes: int) -> Mapping[str, int]:
    received, given, weight, transposed, groups, wanted = args[0], args[1], args[2], args[7], args[9], args[10]
    if groups == 1:
        return {"conv_bytes": nbytes}
    passes = sum(wanted[:2])
    positions = math.prod((given if transposed else received).shape[2:])
    flops = 2 * len(given) * positions * weight.numel() * passes
    return {"depthwise_flops": flops, "depthwise_channels": groups * passes}
