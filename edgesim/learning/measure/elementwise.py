"""FLOPs of the operations that PyTorch's counter scores as zero, by formula.

Conventions. A sum, product, quotient, comparison or elementary function (exp, tanh, erf, root) of numbers is one FLOP.
A sum of n numbers takes n FLOPs. Moving, choosing and randomly drawing numbers is free, and so is work done once per
row (the logarithm of a softmax) or once per step. The optimiser's work per step is priced by
`edgesim.core.price_list.update_flops`. Matrix products and convolutions are counted with 2 FLOPs per
multiply-accumulate, which includes adding the bias: only the gradient of the bias is priced here. Every formula is the
written-out definition of the operation and of its derivative.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

from edgesim.core.price_list import OperationCost
from edgesim.learning.models.trace import (
    DATA,
    Node,
    Owners,
    Trace,
    layer_of,
    numel,
    operand,
    operands,
    operation,
    shape_of,
)


class Rate(NamedTuple):
    """FLOPs per element, forward and backward."""

    name: str
    forward: float
    backward: float


# Per element of the result.
PER_RESULT = {
    "Relu": Rate("activation", 1, 1),  # compare; choose by product with 0 or 1
    "LeakyRelu": Rate("activation", 2, 2),  # compare, multiply
    "Hardtanh": Rate("activation", 2, 2),  # two comparisons
    "Sigmoid": Rate("activation", 4, 3),  # 1 / (1 + exp(-x)); g s (1 - s)
    "Tanh": Rate("activation", 1, 3),  # g (1 - t^2)
    "Elu": Rate("activation", 4, 3),  # compare, a (exp(x) - 1); compare, g (y + a)
    "Silu": Rate("activation", 5, 9),  # x s; s again, g s (1 + x (1 - s))
    "Gelu": Rate("activation", 5, 11),  # x (1 + erf(c x)) / 2; g (cdf + x pdf), of which cdf and pdf take 4 each
    "Hardsigmoid": Rate("activation", 4, 3),  # add, two comparisons, quotient; two comparisons, quotient
    "Hardswish": Rate("activation", 5, 5),  # x hardsigmoid(x)
    "Softmax": Rate("softmax", 5, 4),  # maximum, difference, exp, sum, quotient; y (g - sum of g y)
    "SafeSoftmax": Rate("softmax", 5, 4),
    "LogSoftmax": Rate("softmax", 5, 4),  # maximum, difference, exp, sum, difference; g - exp(y) sum of g
    "Exp": Rate("function", 1, 1),
    "Log": Rate("function", 1, 1),
    "Sqrt": Rate("function", 1, 2),
    "Pow": Rate("function", 1, 3),
    "Neg": Rate("function", 1, 1),
    "Abs": Rate("function", 1, 1),
    "NativeDropout": Rate("dropout", 2, 2),  # times mask, times scale
    "Embedding": Rate("embedding", 0, 1),  # each row read gets its gradient added
    "MseLoss": Rate("loss", 2, 2),  # difference, square; its product with the difference, kept, and 2
    # max(x, 0) - x y + log(1 + exp(-|x|)): 8; g (sigmoid(x) - y), of which the sigmoid takes 4
    "BinaryCrossEntropyWithLogits": Rate("loss", 8, 6),
}
# Per element of the operand.
PER_OPERAND = {
    "Mean": Rate("mean", 1, 1),  # sum; every element's gradient is a quotient
    "Sum": Rate("sum", 1, 0),
    "AdaptiveAvgPool2D": Rate("pooling", 1, 1),
}
# Per element of the result: forward, and backward for each of the two operands.
PAIRS = {"Add": (1, (0, 0)), "Sub": (1, (0, 1)), "Mul": (1, (1, 1)), "Div": (1, (1, 3))}
# Batch normalisation per element. Forward: mean 1, variance 3, then difference, factor of the root, gain and offset 4.
# Backward: x^ 2, the sums of g and g x^ 3, which are also the gradients of gain and offset, then
# gain (g - mean g - x^ mean g x^) 4, or only the first factor if the statistics are fixed.
# Source: Ioffe and Szegedy, 2015. The 4 of fixed statistics is what thop counts.
STATISTICS, NORMALISE, SUMS, CENTRED, FIXED = 4.0, 4.0, 5.0, 4.0, 1.0
# Group and layer normalisation have the same forward. The sums run over g times gain and are not shared: product with
# gain 1, x^ 2, sums 3, then 4. The gradients of gain and offset take 3. Source: Wu and He, 2018; Ba et al., 2016.
SAMPLE_NORM_INPUT, SAMPLE_NORM_WEIGHTS = 10.0, 3.0
# Place of the bias among operands; None: no bias that trains.
_COUNTED = {"Convolution": 2, "Addmm": 0, "Mm": None, "Bmm": None, "Baddbmm": 0, "QuantisedProduct": None}
_MOVES = {
    *("T", "View", "UnsafeView", "ReshapeAlias", "Clone", "Transpose", "Permute", "Expand", "Select", "Slice"),
    *("Squeeze", "Unsqueeze", "Cat", "Stack", "Split", "UnsafeSplit", "SplitWithSizes", "Unbind", "Chunk"),
    *("AsStrided", "CopySlices", "Alias", "Index", "IndexSelect", "Gather", "Roll", "ConstantPadNd", "ToCopy"),
    *("MaskedFill", "Detach", "AccumulateGrad"),
}


class _Work(NamedTuple):
    """FLOPs of one operation for a whole batch."""

    name: str
    forward: float
    backward: float
    upstream: Owners
    only_with: str = ""


def price_operations(trace: Trace, growing: Collection[Node]) -> Iterator[tuple[Node, list[OperationCost]]]:
    """Yield the nodes whose work grows with the batch and has a formula, with their costs per sample, ungrouped.

    `growing`: nodes whose results grow with the batch.
    """
    uses = Counter(use for node in trace.nodes for use in operands(node))
    for node in trace.nodes:
        if DATA not in trace.reach[node] and node not in growing:
            continue
        kind, behind, work = operation(node), trace.behind(node), list[_Work]()
        if kind in PER_RESULT or kind in PER_OPERAND:
            rate = PER_RESULT[kind] if kind in PER_RESULT else PER_OPERAND[kind]
            size = numel(node) if kind in PER_RESULT else numel(*operands(node)[0])
            work.append(_Work(rate.name, rate.forward * size, rate.backward * size, behind))
        elif kind in _FORMULAS:
            work.extend(_FORMULAS[kind](node, trace))
        # A result that is used several times gets one gradient from each use, and the gradients are summed.
        extra = [(uses[node, place] - 1) * numel(node, place) for place in range(len(node._input_metadata))]
        if sums := sum(count for count in extra if count > 0):
            work.append(_Work("gradient_sum", 0, sums, behind))
        yield (
            node,
            [
                OperationCost(w.name, w.forward / trace.batch, w.backward / trace.batch, w.upstream, w.only_with)
                for w in work
                if w.forward or (w.backward and w.upstream)
            ],
        )


def left_at_zero(trace: Trace) -> tuple[str, ...]:
    """Return the operations that are neither counted nor priced nor free, sorted."""
    priced = {*PER_RESULT, *PER_OPERAND, *_FORMULAS, *_MOVES}
    return tuple(sorted({operation(node) for node in trace.nodes}.difference(priced)))


def _pair(node: Node, trace: Trace) -> list[_Work]:
    """Arithmetic of two operands. The gradient of a repeated operand is also summed over the repetitions."""
    forward, backward = PAIRS[operation(node)]
    work = [_Work("arithmetic", forward * numel(node), 0, frozenset())]
    for place, (source, nth) in enumerate(node.next_functions):
        if source is not None:
            repeated = numel(source, nth) < numel(node)
            work.append(_Work("arithmetic", 0, (backward[place] + repeated) * numel(node), trace.behind(source)))
    return work


def _bias(node: Node, trace: Trace) -> list[_Work]:
    place = _COUNTED[operation(node)]
    bias = None if place is None else operand(node, place)
    return [] if bias is None else [_Work("bias", 0, numel(node), trace.behind(bias))]


def _batch_norm(node: Node, trace: Trace) -> list[_Work]:
    size, layer = numel(node), trace.running_norms.get(node, "")
    source = trace.behind(operand(node, 0))
    weight = trace.parameter(operand(node, 1))
    if not layer or not weight:  # the trained part is unknown: priced as if always in training mode
        return [_Work("batch_norm", (STATISTICS + NORMALISE) * size, (SUMS + CENTRED) * size, trace.behind(node))]
    return [
        _Work("batch_norm", NORMALISE * size, FIXED * size, source),
        _Work("batch_norm", 0, (STATISTICS + SUMS) * size, frozenset({layer})),
        _Work("batch_norm", 0, (CENTRED - FIXED) * size, source, layer),
    ]


def _sample_norm(node: Node, trace: Trace) -> list[_Work]:
    size = numel(node)
    forward = (STATISTICS + NORMALISE) * size
    work = [_Work("group_norm", forward, SAMPLE_NORM_INPUT * size, trace.behind(operand(node, 0)))]
    weight = trace.parameter(operand(node, 1))
    if weight:
        work.append(_Work("group_norm", 0, SAMPLE_NORM_WEIGHTS * size, frozenset({layer_of(weight)})))
    return work


def _pool(node: Node, trace: Trace) -> list[_Work]:
    """Pooling over windows of k numbers, per result.

    Largest: k - 1 comparisons and, backward, one sum at the place of the largest. Average: k - 1 sums and a quotient
    and, backward, a quotient and k sums.
    """
    window = math.prod(node._saved_kernel_size)
    forward, backward = (window - 1, 1) if operation(node) == "MaxPool2DWithIndices" else (window, window + 1)
    return [_Work("pooling", forward * numel(node), backward * numel(node), trace.behind(node))]


def _likelihood(node: Node, trace: Trace) -> list[_Work]:
    """One sum and one quotient for each label. A sample has one label, or one at each position."""
    [(source, place)] = operands(node)
    sizes = shape_of(source, place)
    labels = numel(source, place) // sizes[1]  # all dimensions except the classes
    return [_Work("loss", labels, labels, trace.behind(node))]


_FORMULAS: dict[str, Callable[[Node, Trace], list[_Work]]] = {
    **dict.fromkeys(PAIRS, _pair),
    **dict.fromkeys(_COUNTED, _bias),
    "NativeBatchNorm": _batch_norm,
    "NativeGroupNorm": _sample_norm,
    "NativeLayerNorm": _sample_norm,
    "MaxPool2DWithIndices": _pool,
    "AvgPool2D": _pool,
    "NllLoss": _likelihood,
    "NllLoss2D": _likelihood,
}


def merged(costs: Collection[OperationCost]) -> tuple[OperationCost, ...]:
    """Return the costs with equal ones (operation, layers and groups) added up, in order of first appearance."""
    totals: dict[tuple[str, Owners, str, tuple[str, ...]], tuple[float, float]] = {}
    for cost in costs:
        alike = (cost.operation, cost.upstream, cost.only_with, cost.groups)
        forward, backward = totals.get(alike, (0.0, 0.0))
        totals[alike] = (forward + cost.forward_flops, backward + cost.backward_flops)
    return tuple(
        OperationCost(name, forward, backward, upstream, only_with, groups)
        for (name, upstream, only_with, groups), (forward, backward) in totals.items()
    )
