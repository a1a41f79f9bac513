"""Transfers on shared paths, and the fair level of each path: what the fair discipline of `sharing` computes with.

A link with one transfer only caps that transfer. Transfers that cross the same *contended* links (those with two or
more) have a shared path, of which they are members. Their fair rates are one number, the path's level: a member runs at
its own cap if that is below the level, and at the level otherwise. The path's clock counts the bits that a member at
the level has received, so a new level touches no member; only those whose cap lies between the old level and the new
one change sides.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Protocol

# Rates are summed as integers, in this share of 1 bit/s: a sum that lives through a million changes does not drift.
GRAINS = 2**64


class Entrant(Protocol):
    """An owner of at most one valid entry in an agenda."""

    stamp: int  # stamp of the valid entry; -1: no entry is valid


class Agenda:
    """Flows in order of when, then number; entered by themselves or by their path, whose new entry replaces the old."""

    def __init__(self, stamps: Iterator[int]) -> None:
        self._heap: list[tuple[float, int, int, Entrant]] = []
        self._stamps = stamps  # one sequence for all agendas in which an entrant may stand
        self._live = 0  # entries that counted at the last clearing

    def enter(self, when: float, flow: int, owner: Entrant) -> None:
        """Enter a flow and stamp its owner."""
        if len(self._heap) > 2 * self._live + 64:
            self._heap = [entry for entry in self._heap if entry[2] == entry[3].stamp]
            heapify(self._heap)
            self._live = len(self._heap)
        owner.stamp = next(self._stamps)
        heappush(self._heap, (when, flow, owner.stamp, owner))

    def first(self) -> tuple[float, int] | None:
        """Return when and flow of the first entry that counts."""
        while self._heap and self._heap[0][2] != self._heap[0][3].stamp:
            heappop(self._heap)
        return self._heap[0][:2] if self._heap else None


@dataclass(slots=True, eq=False)
class Line:
    """A link with transfers. While levels are sought: what it has to spare and which paths still want of it."""

    capacity_bps: float
    flows: dict[int, PathFlow] = field(default_factory=dict)
    shared_paths: dict[SharedPath, None] = field(default_factory=dict)
    contended: bool = False
    spare: int = 0
    open: dict[SharedPath, None] = field(default_factory=dict)

    def recount(self) -> bool:
        """Decide anew whether the link is contended; return whether that has changed."""
        before = self.contended
        self.contended = len(self.flows) > 1 and self.capacity_bps < math.inf
        return before != self.contended

    def begin(self) -> float:
        """Begin to seek levels; return one, in bit/s, that the link can certainly give."""
        self.spare = round(self.capacity_bps * GRAINS)
        self.open = dict(self.shared_paths)
        return self.capacity_bps / len(self.flows)

    def level_bps(self) -> float:
        """Return the level at which the open paths take all there is to spare; inf if it is more than they can.

        Newton's method on a concave, piecewise linear demand. Whoever is taken as capped at first, the first step
        lands at or below the solution; from there the capped can only become more.
        """
        uncapped, left = self._rest()
        if not uncapped:
            if left >= 0:
                return math.inf
            self._uncap(max(shared_path.members[-1][0] for shared_path in self.open))
        self._uncap(self._tangent_bps())
        level_bps = self._tangent_bps()
        while sum([shared_path.cap(level_bps) for shared_path in self.open]):
            level_bps = self._tangent_bps()
        return level_bps

    def _uncap(self, lowest_bps: float) -> None:
        for shared_path in self.open:
            shared_path.uncap(lowest_bps)

    def _rest(self) -> tuple[int, int]:
        """Return how many are not capped, and the grains that the capped leave to them."""
        uncapped, left = 0, self.spare
        for shared_path in self.open:
            uncapped += len(shared_path.members) - shared_path.capped
            left -= shared_path.capped_grains
        return uncapped, left

    def _tangent_bps(self) -> float:
        uncapped, left = self._rest()
        return max(0, left) / (uncapped * GRAINS) if uncapped else math.inf


@dataclass(slots=True, eq=False)
class SharedPath:
    """Transfers that cross the same contended links. Once levels are found, members[:capped] run at their own caps."""

    lines: tuple[Line, ...]
    riders: Agenda  # flows at the level by what the clock shows at their end
    since_s: float
    members: list[tuple[float, int, PathFlow]] = field(default_factory=list)  # ascending by cap, then flow
    capped: int = 0
    capped_grains: int = 0
    level_bps: float = math.inf
    clock_bits: float = 0.0  # at since_s
    lead: tuple[float, int] | None = None  # the first end, as announced
    stamp: int = -1

    def join(self, flow: PathFlow) -> None:
        """Take in a flow, on the side of its neighbours."""
        entry = (flow.cap_bps, flow.id, flow)
        if bisect_left(self.members, entry) < self.capped:
            self.capped += 1
            self.capped_grains += flow.cap_grains
        insort(self.members, entry)

    def leave(self, flow: PathFlow) -> None:
        """Let go of a member."""
        place = bisect_left(self.members, (flow.cap_bps, flow.id, flow))
        del self.members[place]
        if place < self.capped:
            self.capped -= 1
            self.capped_grains -= flow.cap_grains

    def is_capped(self, flow: PathFlow) -> bool:
        """Return True if a member runs at its own cap."""
        return self.capped == len(self.members) or (flow.cap_bps, flow.id) < self.members[self.capped][:2]

    def cap(self, level_bps: float) -> int:
        """Take members up to a level as capped; return how many were not."""
        before = self.capped
        while self.capped < len(self.members) and self.members[self.capped][0] <= level_bps:
            self.capped_grains += self.members[self.capped][2].cap_grains
            self.capped += 1
        return self.capped - before

    def uncap(self, lowest_bps: float) -> None:
        """Take members from a cap upwards as not capped."""
        while self.capped and self.members[self.capped - 1][0] >= lowest_bps:
            self.capped -= 1
            self.capped_grains -= self.members[self.capped][2].cap_grains

    def freeze(self, level_bps: float) -> None:
        """Take from every link what the members get at a level."""
        uncapped = len(self.members) - self.capped
        wanted = self.capped_grains + (uncapped * round(level_bps * GRAINS) if uncapped else 0)
        for line in self.lines:
            line.spare -= wanted
            del line.open[self]

    def clock_at(self, now_s: float) -> float:
        """Return the bits that a member at the level since clock 0 has received."""
        if self.level_bps == math.inf:  # all are capped
            return self.clock_bits
        return self.clock_bits + self.level_bps * (now_s - self.since_s)

    def relevel(self, level_bps: float, now_s: float) -> None:
        """Go on at a level; the same one leaves the ends as they are, to the last bit."""
        if level_bps != self.level_bps:
            self.clock_bits, self.since_s, self.level_bps = self.clock_at(now_s), now_s, level_bps

    def due_s(self, target_bits: float) -> float:
        """Return when the clock will show a reading."""
        return _end_s(self.since_s, target_bits - self.clock_bits, self.level_bps)

    def first_end(self) -> tuple[float, int] | None:
        """Return second and flow of the first end on the clock."""
        first = self.riders.first()
        return first and (self.due_s(first[0]), first[1])


@dataclass(slots=True, eq=False)
class PathFlow:
    """A transfer: it rides the clock of its shared path, or has `left_bits` at `since_s` and a pace of its own."""

    id: int
    path: tuple[Hashable, ...]
    bits: float
    left_bits: float
    since_s: float
    cap_bps: float = 0.0
    cap_grains: int = 0
    shared_path: SharedPath | None = None
    riding: SharedPath | None = None
    pace_bps: float = 0.0
    target_bits: float = 0.0
    stamp: int = -1

    def stop(self, now_s: float) -> None:
        """Keep what is left; nothing moves until `ride` or `run`."""
        self.left_bits, self.since_s = self.left_at(now_s), now_s
        self.riding, self.pace_bps, self.stamp = None, 0.0, -1

    def ride(self, shared_path: SharedPath) -> None:
        """Go on with the clock of a shared path."""
        self.riding = shared_path
        self.target_bits = shared_path.clock_at(self.since_s) + self.left_bits
        shared_path.riders.enter(self.target_bits, self.id, self)

    def run(self) -> None:
        """Go on at the flow's own cap."""
        self.pace_bps = self.cap_bps
        if self.cap_bps == math.inf:
            self.left_bits = 0.0

    def rate_bps(self) -> float:
        """Return the present rate."""
        return self.riding.level_bps if self.riding else self.pace_bps

    def left_at(self, now_s: float) -> float:
        """Return the bits that remain."""
        if self.riding:
            return max(0.0, self.target_bits - self.riding.clock_at(now_s))
        if self.left_bits == 0:  # the pace may be infinite
            return 0.0
        return max(0.0, self.left_bits - self.pace_bps * (now_s - self.since_s))

    def due_s(self) -> float:
        """Return the second of the end at the present rate."""
        if self.riding:
            return self.riding.due_s(self.target_bits)
        return _end_s(self.since_s, self.left_bits, self.pace_bps)


def _end_s(since_s: float, bits: float, bps: float) -> float:
    if bits <= 0:
        return since_s
    return since_s + bits / bps if bps > 0 else math.inf


def connected(seeds: Iterable[Line]) -> tuple[list[Line], list[SharedPath]]:
    """Return `seeds` and all links that shared paths connect to them, and these paths."""
    lines = dict.fromkeys(seeds)
    shared_paths: dict[SharedPath, None] = {}
    waiting = list(lines)
    while waiting:
        fresh = [shared_path for shared_path in waiting.pop().shared_paths if shared_path not in shared_paths]
        shared_paths.update(dict.fromkeys(fresh))
        others = dict.fromkeys(line for shared_path in fresh for line in shared_path.lines if line not in lines)
        lines.update(others)
        waiting.extend(others)
    return list(lines), list(shared_paths)


def fill(lines: Sequence[Line]) -> dict[SharedPath, float]:
    """Return the level of every path on a connected set of links, by progressive filling.

    Links wait in the order of what they can give at least, which only grows while others are filled.
    """
    waiting = [(line.begin(), place, line) for place, line in enumerate(lines)]
    heapify(waiting)
    levels: dict[SharedPath, float] = {}
    while waiting:
        _, place, line = heappop(waiting)
        if not line.open:
            continue
        level_bps = line.level_bps()
        if waiting and level_bps > waiting[0][0]:
            heappush(waiting, (level_bps, place, line))
            continue
        for shared_path in tuple(line.open):
            levels[shared_path] = level_bps
            shared_path.freeze(level_bps)
    return levels
