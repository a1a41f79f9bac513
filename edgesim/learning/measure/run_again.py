"""Work that a step does twice, because its network has checkpointed blocks.

A block runs again when backward first needs one of its tensors. PyTorch ends the second run at the last tensor that a
node keeps, so that the operations after it, such as a block's last product, run only once. Which tensors nodes keep
depends on the trained layers. So each part of a block has the layers of which one must be trained for it to run again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import NamedTuple

from edgesim.learning.measure.memory import KeptInBlock, kept_in_blocks
from edgesim.learning.models.trace import Block, Node, Owners, Trace


class Again(NamedTuple):
    """A part of the work of a step that runs again, between two readings of the clock of the trace."""

    since: int
    until: int
    upstream: Owners  # runs again only if one of these layers is trained


def parts_run_again(trace: Trace) -> Iterator[Again]:
    """Yield the work that runs again, in the order in which forward does it."""
    kept = kept_in_blocks(trace)
    for block in trace.kept.blocks:
        yield from parts_of(block, kept)


def parts_of(block: Block, kept: Mapping[int, KeptInBlock]) -> list[Again]:
    """Return the work of a block that runs again, in the order in which forward does it."""
    behind: Owners = frozenset()
    parts: list[Again] = []
    times = [block.done, *(each.done for each in block.kept)]
    for each, (since, until) in zip(reversed(block.kept), reversed(list(pairwise(times))), strict=True):
        behind |= kept[each.place].upstream if each.place in kept else frozenset()
        if since < until and behind:
            parts.append(Again(since, until, behind))
    return parts[::-1]


def nodes_run_again(trace: Trace) -> Mapping[Node, Owners]:
    """Return the nodes whose operations run again, with the layers of which one must be trained for it."""
    kept, found = kept_in_blocks(trace), dict[Node, Owners]()
    for block in trace.kept.blocks:
        inside = [node for node in trace.nodes if node._sequence_nr() in block.nodes]
        left = [kept[each.place] for each in block.kept if each.place in kept]
        behind: Owners = frozenset()
        for node in sorted(inside, key=lambda node: -node._sequence_nr()):
            while left and (left[-1].node._sequence_nr(), left[-1].after) >= (node._sequence_nr(), True):
                behind |= left.pop().upstream
            found[node] = behind
    return found
