"""A link discipline of its own: every link is cut into equal slices, and a transfer gets one slice of each link."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from edgesim.world.contention import base


@dataclass(frozen=True, kw_only=True)
class Slices(base.DisciplinePart):
    """Transfers at rates that do not depend on other transfers."""

    slices: int = 2  # of each link; more transfers than slices are not expected

    def links(self, capacity_bps: Mapping[Any, float]) -> base.SharedLinks:
        """Return links of these speeds, in bit/s, without a transfer."""
        return SlicedLinks(base.Capacities(capacity_bps), self.slices)


@dataclass
class SlicedLinks(base.SharedLinks):
    """The transfers under way: their links, bytes and starts."""

    capacities: base.Capacities
    slices: int
    flows: dict[int, tuple[Sequence[Any], float, float]] = field(default_factory=dict)
    now_s: float = 0.0

    def rate_bps(self, flow: int) -> float:
        return min(self.capacities[link] for link in self.flows[flow][0]) / self.slices

    def admit(self, flow: int, path: Sequence[Any], nbytes: float, now_s: float) -> None:
        base.check_order(self.now_s, now_s)
        base.check_start(flow, self.flows, path, nbytes)
        self.flows[flow], self.now_s = (path, nbytes, now_s), now_s

    def drop(self, flow: int, now_s: float) -> float:
        moved_bytes = self.moved_bytes(flow, now_s)
        del self.flows[flow]
        return moved_bytes

    def next_done(self) -> tuple[float, int] | None:
        ends = ((at_s + 8 * size / self.rate_bps(flow), flow) for flow, (_, size, at_s) in self.flows.items())
        return min(ends, default=None)

    def finish(self, flow: int, now_s: float) -> None:
        base.check_under_way(flow, self.flows)
        base.check_end(flow, self.flows[flow][2] + 8 * self.flows[flow][1] / self.rate_bps(flow), now_s)
        del self.flows[flow]

    def moved_bytes(self, flow: int, now_s: float) -> float:
        base.check_under_way(flow, self.flows)
        return min(self.flows[flow][1], self.rate_bps(flow) * (now_s - self.flows[flow][2]) / 8)
