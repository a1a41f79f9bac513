"""Links that serve the transfers that cross them one at a time, in order of arrival: no clock of its own either."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from edgesim.world.contention.base import (
    Capacities,
    DisciplinePart,
    Link,
    SharedLinks,
    check_end,
    check_order,
    check_start,
    check_under_way,
)
from edgesim.world.contention.paths import Agenda


@dataclass(slots=True, eq=False)
class _Transfer:
    """A transfer with `left_bits` at `since_s`; `ahead`: on how many of its links another one comes first."""

    id: int
    path: tuple[Link, ...]
    bits: float
    left_bits: float
    since_s: float
    ahead: int = 0
    rate_bps: float = 0.0
    stamp: int = -1

    def left_at(self, now_s: float) -> float:
        if self.left_bits == 0:  # the rate may be infinite
            return 0.0
        return max(0.0, self.left_bits - self.rate_bps * (now_s - self.since_s))

    def due_s(self) -> float:
        if self.ahead:
            return math.inf
        if self.left_bits == 0:
            return self.since_s
        return self.since_s + self.left_bits / self.rate_bps if self.rate_bps > 0 else math.inf


class FifoLinks(SharedLinks):
    """Links with a queue each, in order of admission. Implements SharedLinks.

    A transfer holds its whole path. It starts when it is first in the queue of every link of its path, moves at the
    speed of the slowest of them, and leaves all queues at its end. So a link may stand idle while its first transfer
    waits for another link; but the transfer admitted first of all is first everywhere, so somebody always moves.
    A transfer without bytes waits for its turn too; one over no link ends at once.
    """

    def __init__(self, capacity_bps: Mapping[Any, float]) -> None:
        self._capacity = Capacities(capacity_bps)
        self._transfers: dict[int, _Transfer] = {}
        self._queues: dict[Link, OrderedDict[int, _Transfer]] = {}
        self._ends = Agenda(count())
        self._now_s = -math.inf

    @property
    def busy(self) -> int:
        """Number of transfers under way, waiting ones included."""
        return len(self._transfers)

    def queue_length(self, link: Link) -> int:
        """Return the number of transfers in the queue of a link, the one served included."""
        return len(self._queues.get(link, ()))

    def admit(self, flow: int, path: Sequence[Link], nbytes: float, now_s: float) -> None:
        """Queue a transfer of `nbytes` at every link of its path. Raises as in SharedLinks."""
        check_start(flow, self._transfers, path, nbytes)
        for link in path:
            self._capacity[link]  # an unknown link is refused before anything has changed
        self._move_to(now_s)
        new = self._transfers[flow] = _Transfer(flow, tuple(path), 8.0 * nbytes, 8.0 * nbytes, now_s)
        for link in path:
            queue = self._queues.setdefault(link, OrderedDict())
            new.ahead += bool(queue)
            queue[flow] = new
        if not new.ahead:
            self._serve(new)

    def drop(self, flow: int, now_s: float) -> float:
        """Abort a transfer, moving or waiting; return the bytes it has moved. Raises as in SharedLinks."""
        moved_bytes = self.moved_bytes(flow, now_s)
        self._end(flow, now_s)
        return moved_bytes

    def next_done(self) -> tuple[float, int] | None:
        """Return second and flow of the next end if nothing changes before; None if no transfer moves."""
        first = self._ends.first()
        return first if first and first[0] < math.inf else None

    def finish(self, flow: int, now_s: float) -> None:
        """End a transfer at the second that `next_done` gave. Raises as in SharedLinks."""
        check_under_way(flow, self._transfers)
        check_end(flow, self._transfers[flow].due_s(), now_s)
        self._end(flow, now_s)

    def rate_bps(self, flow: int) -> float:
        """Return the rate of a transfer from the last change on; 0 while it waits."""
        check_under_way(flow, self._transfers)
        return self._transfers[flow].rate_bps

    def moved_bytes(self, flow: int, now_s: float) -> float:
        """Return the bytes that a transfer has moved by `now_s`, not earlier than the last change."""
        check_under_way(flow, self._transfers)
        check_order(self._now_s, now_s)
        found = self._transfers[flow]
        return (found.bits - found.left_at(now_s)) / 8.0

    def set_capacity(self, link: Link, bps: float, now_s: float) -> None:
        """Change the speed of a link; at 0 its first transfer waits. Raises as in SharedLinks."""
        self._capacity.change(link, bps)
        self._move_to(now_s)
        if link in self._queues:
            first = next(iter(self._queues[link].values()))
            if not first.ahead:
                self._serve(first)

    def _move_to(self, now_s: float) -> None:
        check_order(self._now_s, now_s)
        self._now_s = now_s

    def _serve(self, transfer: _Transfer) -> None:
        """Let a transfer that is first everywhere go on at the present speed of its links."""
        transfer.left_bits, transfer.since_s = transfer.left_at(self._now_s), self._now_s
        transfer.rate_bps = min((self._capacity[link] for link in transfer.path), default=math.inf)
        if transfer.rate_bps == math.inf:
            transfer.left_bits = 0.0
        self._ends.enter(transfer.due_s(), transfer.id, transfer)

    def _end(self, flow: int, now_s: float) -> None:
        self._move_to(now_s)
        ended = self._transfers.pop(flow)
        ended.stamp = -1
        freed = []
        for link in ended.path:
            queue = self._queues[link]
            was_first = next(iter(queue)) == flow
            del queue[flow]
            if not queue:
                del self._queues[link]
            elif was_first:
                freed.append(next(iter(queue.values())))
        for heir in freed:
            heir.ahead -= 1
            if not heir.ahead:
                self._serve(heir)


@dataclass(frozen=True, kw_only=True)
class Fifo(DisciplinePart):
    """Transfers pass one at a time in the order in which they came; one that waits holds its place on all its links."""

    def links(self, capacity_bps: Mapping[Any, float]) -> SharedLinks:
        """Return links of these speeds, in bit/s, without a transfer."""
        return FifoLinks(capacity_bps)


PLUGINS = {"fifo": Fifo}
