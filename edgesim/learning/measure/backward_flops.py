"""What the backward pass of each operation costs, operand by operand, counted on the graph of a step.

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

    `operands`: in forward order, what lies behind each and how many FLOPs its gradient takes.
    """

    node: Node
    operands: tuple[tuple[Owners, float], ...]
    per_step: bool  # as many for every batch


def node_flops(trace: Trace, larger: Trace) -> Iterator[NodeFlops]:
    """Yield what every node of a trace costs, in forward order; `larger`: the same step with a larger batch.

    Raises NotMeasured for work that neither grows with the batch nor is the same for any.
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
        self._passes = [_watched(node, self._counter) for node in trace.nodes]

    def totals(self) -> list[float]:
        """Return the FLOPs of each node if everything is trained and the data has a gradient, in forward order."""
        with self._counter:
            gradients(self._trace.loss, self._trace.leaves, again=True)
        return [last.flops for last in self._passes]

    def by_operand(self, node: Node, total: float) -> tuple[tuple[Owners, float], ...]:
        """Return how much of a node's FLOPs the gradient of each operand takes, after `totals`.

        Operands are added from the last in forward order to the first, so that none of those there depends on the next.
        """
        sources = sorted({source for source, _ in operands(node)}, key=lambda source: self._place[source])
        reach = [self._trace.reach[source] for source in sources]
        if not total or len(set(reach)) < 2:
            return tuple((owners, total * (place == 0)) for place, owners in enumerate(reach))
        sums = [total, *(self._alone(node, sources[first:]) for first in range(1, len(sources))), 0.0]
        flops = [more - less for more, less in pairwise(sums)]
        if total in flops:  # perhaps of all operands at once, by a kernel that cannot do less
            whole = flops.index(total)
            joint = [place for place, source in enumerate(sources) if self._alone(node, [source]) == total]
            reach[whole] = reach[whole].union(*(reach[place] for place in joint))
        return tuple(zip(reach, flops, strict=True))

    def _alone(self, node: Node, ends: Sequence[Node]) -> float:
        """Return the FLOPs of a node if only these operands need a gradient."""
        last = self._passes[self._place[node]]
        with self._counter:
            backward_from(node, last.received, ends)
        return last.flops


@dataclass
class _Pass:
    """The last backward pass through a node: its FLOPs, and the gradients that came to the node."""

    flops: float = 0.0
    received: tuple[Tensor | None, ...] = ()


def _watched(node: Node, counter: FlopCounterMode) -> _Pass:
    """Return what tells of the last pass through a node. The hooks do not know the node, or it would never be freed."""
    last = _Pass()

    def enter(received: tuple[Tensor | None, ...]) -> None:
        last.flops, last.received = -float(counter.get_total_flops()), received

    def leave(*_: Any) -> None:
        last.flops += float(counter.get_total_flops())

    node.register_prehook(enter)
    node.register_hook(leave)
    return last
