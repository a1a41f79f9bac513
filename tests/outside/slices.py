"""A link discipline of its own: every link is cut into equal slices, and a transfer gets one slice of each link."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from edgesim.world.contention.base import Capacities, check_end, check_order, check_start, check_under_way


@dataclass(frozen=True, kw_only=True)
class Slices:
    """Transfers at rates that do not depend on other transfers."""

    slices: int = 2  # of each link; more transfers than slices are not expected

    def links(self, capacity_bps: Mapping[Any, float]) -> SlicedLinks:
        """Return links of these speeds, in bit/s, without a transfer."""
        return SlicedLinks(Capacities(capacity_bps), self.slices)


@dataclass
class SlicedLinks:
    """The transfers under way: path, bytes left, and since when."""

    capacities: Capacities
    slices: int
    flows: dict[int, tuple[Sequence[Any], float, float]] = field(default_factory=dict)  # path, bytes, start
    now_s: float = 0.0

    def admit(self, flow: int, path: Sequence[Any], nbytes: float, now_s: float) -> None:
        check_order(self.now_s, now_s)
        check_start(flow, self.flows, path, nbytes)
        self.flows[flow], self.now_s = (path, nbytes, now_s), now_s

    def drop(self, flow: int, now_s: float) -> float:
        moved_bytes = self.moved_bytes(flow, now_s)
        del self.flows[flow]
        return moved_bytes

    def next_done(self) -> tuple[float, int] | None:
        ends = ((at_s + 8 * size / self.rate_bps(flow), flow) for flow, (_, size, at_s) in self.flows.items())
        return min(ends, default=None)

    def finish(self, flow: int, now_s: float) -> None:
        check_under_way(flow, self.flows)
        path, nbytes, since_s = self.flows.pop(flow)
        check_end(flow, since_s + 8 * nbytes / self.slowest_bps(path), now_s)

    def rate_bps(self, flow: int) -> float:
        return self.slowest_bps(self.flows[flow][0])

    def slowest_bps(self, path: Sequence[Any]) -> float:
        return min(self.capacities[link] for link in path) / self.slices

    def moved_bytes(self, flow: int, now_s: float) -> float:
        check_under_way(flow, self.flows)
        return min(self.flows[flow][1], self.rate_bps(flow) * (now_s - self.flows[flow][2]) / 8)
