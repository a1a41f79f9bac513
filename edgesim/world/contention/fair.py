"""Links shared max-min fairly by the transfers that cross them: a state machine that owns no clock.

All changes of one instant are settled together, when time moves on or somebody asks what they led to. A settling costs
time in proportion to the contended links and shared paths connected to the change, not to the transfers in
them, and links without a transfer have no state at all.
"""

from __future__ import annotations

import math
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
from edgesim.world.contention.paths import GRAINS, Agenda, Line, PathFlow, SharedPath, connected, fill


class FairLinks(SharedLinks):
    """Links on which every transfer gets its max-min fair share over its whole path. Implements SharedLinks.

    No transfer's rate could be raised without lowering one that is no faster. Rates change when a transfer starts or
    ends and when a capacity changes. A transfer without bytes, or over no link, ends at once.
    Source: Bertsekas and Gallager, Data Networks, 2nd ed., section 6.5.2 (max-min fairness, progressive filling).
    """

    def __init__(self, capacity_bps: Mapping[Any, float]) -> None:
        self._capacity = Capacities(capacity_bps)
        self._flows: dict[int, PathFlow] = {}
        self._lines: dict[Link, Line] = {}
        self._paths: dict[tuple[Line, ...], SharedPath] = {}
        self._stamps = count()
        self._ends = Agenda(self._stamps)
        self._now_s = -math.inf
        # since the last settling, all at _now_s
        self._changed: dict[Line, None] = {}
        self._unplaced: dict[int, PathFlow] = {}

    @property
    def busy(self) -> int:
        """Number of transfers under way."""
        return len(self._flows)

    def queue_length(self, link: Link) -> int:
        """Return the number of transfers under way whose path crosses a link."""
        return len(self._lines[link].flows) if link in self._lines else 0

    def admit(self, flow: int, path: Sequence[Link], nbytes: float, now_s: float) -> None:
        """Start a transfer of `nbytes`. Raises as in SharedLinks."""
        check_start(flow, self._flows, path, nbytes)
        speeds = {link: self._capacity[link] for link in path if nbytes}
        self._move_to(now_s)
        new = self._flows[flow] = PathFlow(flow, tuple(speeds), 8.0 * nbytes, 8.0 * nbytes, now_s)
        for link, bps in speeds.items():
            if link not in self._lines:
                self._lines[link] = Line(bps)
            self._lines[link].flows[flow] = new
            self._changed[self._lines[link]] = None
        if speeds:
            self._unplaced[flow] = new
        else:
            self._attach(new)

    def drop(self, flow: int, now_s: float) -> float:
        """Abort a transfer; return the bytes it has moved. Raises as in SharedLinks."""
        moved_bytes = self.moved_bytes(flow, now_s)
        self._end(flow, now_s)
        return moved_bytes

    def next_done(self) -> tuple[float, int] | None:
        """Return second and flow of the next end if nothing changes before; None if no transfer moves."""
        first = self._ends.first()
        # what is due now has had its share: ends of one instant stay together and are settled once
        if self._changed and (first is None or first[0] > self._now_s):
            self._settle()
            first = self._ends.first()
        if first is None or first[0] == math.inf:
            return None
        return max(first[0], self._now_s), first[1]

    def finish(self, flow: int, now_s: float) -> None:
        """End a transfer at the second that `next_done` gave. Raises as in SharedLinks."""
        check_end(flow, self._under_way(flow, now_s).due_s(), now_s)
        self._end(flow, now_s)

    def rate_bps(self, flow: int) -> float:
        """Return the rate of a transfer from the last change on."""
        return self._under_way(flow, math.inf).rate_bps()

    def moved_bytes(self, flow: int, now_s: float) -> float:
        """Return the bytes that a transfer has moved by `now_s`, not earlier than the last change."""
        found = self._under_way(flow, now_s)
        return (found.bits - found.left_at(now_s)) / 8.0

    def set_capacity(self, link: Link, bps: float, now_s: float) -> None:
        """Change the speed of a link; at 0 its transfers wait. Raises as in SharedLinks."""
        self._capacity.change(link, bps)
        self._move_to(now_s)
        if link in self._lines:
            line = self._lines[link]
            line.capacity_bps = self._capacity[link]
            self._changed[line] = None
            if not line.contended:  # then it is in the caps of its flows
                self._unplaced.update(line.flows)

    def _under_way(self, flow: int, until_s: float) -> PathFlow:
        """Return a flow whose rate holds from the last change until a second."""
        check_under_way(flow, self._flows)
        self._settle_before(until_s)
        return self._flows[flow]

    def _settle_before(self, now_s: float) -> None:
        check_order(self._now_s, now_s)
        if self._changed and now_s > self._now_s:
            self._settle()

    def _move_to(self, now_s: float) -> None:
        self._settle_before(now_s)
        self._now_s = now_s

    def _end(self, flow: int, now_s: float) -> None:
        self._move_to(now_s)
        ended = self._flows.pop(flow)
        self._unplaced.pop(flow, None)
        self._detach(ended)
        for link in ended.path:
            line = self._lines[link]
            self._changed[line] = None
            del line.flows[flow]
            if not line.flows:
                del self._lines[link]

    def _settle(self) -> None:
        """Place the flows that the changes have moved and give every connected path its new level."""
        for line in self._changed:
            if line.recount():
                self._unplaced.update(line.flows)
        moving = tuple(self._unplaced.values())
        for flow in moving:
            self._detach(flow)
        seeds = [line for line in self._changed if line.contended]
        for flow in moving:
            seeds.extend(self._attach(flow))
        self._changed, self._unplaced = {}, {}
        self._level(seeds, [flow for flow in moving if flow.shared_path is not None])

    def _level(self, seeds: Sequence[Line], newcomers: Sequence[PathFlow]) -> None:
        lines, shared_paths = connected(seeds)
        before = [shared_path.capped for shared_path in shared_paths]
        levels = fill(lines)
        for shared_path, capped in zip(shared_paths, before, strict=True):
            shared_path.relevel(levels[shared_path], self._now_s)
            low, high = sorted((capped, shared_path.capped))
            for _, _, flow in shared_path.members[low:high]:
                self._restart(flow)
        for flow in newcomers:
            self._restart(flow)
        for shared_path in shared_paths:
            self._announce(shared_path)

    def _detach(self, flow: PathFlow) -> None:
        flow.stop(self._now_s)
        shared_path, flow.shared_path = flow.shared_path, None
        if shared_path is None:
            return
        shared_path.leave(flow)
        self._announce(shared_path)
        if not shared_path.members:
            del self._paths[shared_path.lines]
            for line in shared_path.lines:
                del line.shared_paths[shared_path]

    def _attach(self, flow: PathFlow) -> tuple[Line, ...]:
        """Put a flow where its links say that it belongs; return the contended ones."""
        lines = [self._lines[link] for link in flow.path]
        contended = tuple(line for line in lines if line.contended)
        flow.cap_bps = min((line.capacity_bps for line in lines if not line.contended), default=math.inf)
        if not contended:
            self._restart(flow)
            return ()
        flow.cap_grains = round(flow.cap_bps * GRAINS) if flow.cap_bps < math.inf else 0
        if contended not in self._paths:
            self._paths[contended] = SharedPath(contended, Agenda(self._stamps), self._now_s)
            for line in contended:
                line.shared_paths[self._paths[contended]] = None
        flow.shared_path = self._paths[contended]
        flow.shared_path.join(flow)
        return contended

    def _restart(self, flow: PathFlow) -> None:
        """Let a flow go on from now, at its own cap or with the clock of its shared path."""
        flow.stop(self._now_s)
        if flow.shared_path is not None and not flow.shared_path.is_capped(flow):
            flow.ride(flow.shared_path)
        else:
            flow.run()
            self._ends.enter(flow.due_s(), flow.id, flow)

    def _announce(self, shared_path: SharedPath) -> None:
        """Enter the first end on the path's clock among all ends, unless it stands there already."""
        lead = shared_path.first_end()
        if lead == shared_path.lead:
            return
        shared_path.lead, shared_path.stamp = lead, -1
        if lead is not None:
            self._ends.enter(*lead, shared_path)


@dataclass(frozen=True, kw_only=True)
class Fair(DisciplinePart):
    """Every transfer gets its max-min fair share over its whole path.

    Source: Bertsekas and Gallager, Data Networks, 2nd ed., section 6.5.2.
    """

    def links(self, capacity_bps: Mapping[Any, float]) -> SharedLinks:
        """Return links of these speeds, in bit/s, without a transfer."""
        return FairLinks(capacity_bps)


PLUGINS = {"fair": Fair}
