"""Backward FLOPs of each operation, operand by operand, counted on the graph of a step.

Autograd computes the gradient of an operand only if something trained lies behind it. So the price of a step with any
frozen part is a sum over operands.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from edgesim.learning.models.flop_counter import flop_counter
from edgesim.learning.models.trace import Node, NotMeasured, Owners, Trace, operands, operation
from edgesim.learning.train.loop import backward_from, gradients


class NodeFlops(NamedTuple):
    """Backward FLOPs of one node for a whole batch.

    `operands`: for each operand in forward order, the layers behind it and the FLOPs that its gradient takes.
    """

    node: Node
    operands: tuple[tuple[Owners, float], ...]
    per_step: bool  # whether the FLOPs do not depend on the batch size


def node_flops(trace: Trace, larger: Trace) -> Iterator[NodeFlops]:
    """Yield the FLOPs of every node of a trace, in forward order. `larger`: the same step with a larger batch.

    Raises NotMeasured for work that neither grows in proportion to the batch nor stays constant.
    """
    found = [_Backward(trace), _Backward(larger)]
    totals = [backward.totals() for backward in found]
    for node, one, other in zip(trace.nodes, *totals, strict=True):
        if other * trace.batch != one * larger.batch and other != one:
            raise NotMeasured(f"the work of {operation(node)} is in no proportion to the batch")
        yield NodeFlops(node, found[0].by_operand(node, one), per_step=0 < one == other)


class _Backward:
    """Runs the backward pass of a trace, whole or from one node to some of its operands, and counts."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._place = {node: place for place, node in enumerate(trace.nodes)}
        self._counter = flop_counter()
        self._passes = [_Pass(self._counter) for _ in trace.nodes]
        for node, last in zip(trace.nodes, self._passes, strict=True):
            node.register_prehook(last.enter)
            node.register_hook(last.leave)

    def totals(self) -> list[float]:
        """Return the FLOPs of each node if everything is trained and the data has a gradient, in forward order."""
        with self._counter:
            gradients(self._trace.loss, self._trace.leaves, again=True)
        return [last.flops for last in self._passes]

    def by_operand(self, node: Node, total: float) -> tuple[tuple[Owners, float], ...]:
        """Split a node's FLOPs among the gradients of its operands. `totals` must have been called before.

        Operands are added from the last in forward order to the first, so that no operand already added depends on the
        next one.
        """
        sources = sorted({source for source, _ in operands(node)}, key=lambda source: self._place[source])
        reach = [self._trace.reach[source] for source in sources]
        if not total or len(set(reach)) < 2:
            return tuple((owners, total * (place == 0)) for place, owners in enumerate(reach))
        sums = [total, *(self._alone(node, sources[first:]) for first in range(1, len(sources))), 0.0]
        flops = [more - less for more, less in pairwise(sums)]
        if total in flops:  # perhaps a kernel that computes the gradients of all operands at once
            whole = flops.index(total)
            joint = [place for place, source in enumerate(sources) if self._alone(node, [source]) == total]
            reach[whole] = reach[whole].union(*(reach[place] for place in joint))
        return tuple(zip(reach, flops, strict=True))

    def _alone(self, node: Node, ends: Sequence[Node]) -> float:
        """Measure the FLOPs of a node if only these operands need a gradient."""
        last = self._passes[self._place[node]]
        with self._counter:
            backward_from(node, last.received, ends)
        return last.flops


@dataclass
class _Pass:
    """The last backward pass through a node: its FLOPs, and the gradients that reached the node.

    `enter` and `leave` are hooks of the node. They hold no reference to it, or the node would never be freed.
    """

    counter: FlopCounterMode
    flops: float = 0.0
    received: tuple[Tensor | None, ...] = ()

    def enter(self, received: tuple[Tensor | None, ...]) -> None:
        self.flops, self.received = -float(self.counter.get_total_flops()), received

    def leave(self, *_: Any) -> None:
        self.flops += float(self.counter.get_total_flops())
