"""The batteries of a fleet as the engine sees them: who is on, how long a job lasts, and what it draws."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf
from typing import NamedTuple

import numpy as np

from edgesim.core.arrays import Arr, Ids
from edgesim.core.job import Job
from edgesim.engine.usage import Usage
from edgesim.world.batteries.base import Batteries
from edgesim.world.fleet import Fleet


class _Drawn(NamedTuple):
    """Joules and seconds of a job in downloading, computing and uploading, each after a latency without any draw."""

    since_s: float
    down_j: float
    compute_j: float
    up_j: float
    down_s: float
    compute_s: float
    up_s: float
    down_latency_s: float
    compute_latency_s: float
    up_latency_s: float


class FleetBatteries:
    """The blocks of a fleet that have batteries; devices of the others are always on.

    What jobs drew is worked out together, for all devices at once, before anything is asked.
    """

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._drawn: dict[int, _Drawn] = {}  # by device: what its last job drew, not worked out yet
        self._blocks = [(block.new_batteries(), block) for block in fleet.blocks if block.new_batteries is not None]

    def __bool__(self) -> bool:
        return bool(self._blocks)

    def __contains__(self, device: int) -> bool:
        return any(block.first <= device < block.first + block.count for _, block in self._blocks)

    def on(self, now_s: float) -> np.ndarray:
        """Return which devices are on, bool, shape (devices,)."""
        self._work_out()
        mask = np.ones(len(self._fleet), dtype=bool)
        for batteries, block in self._blocks:
            mask[block.first : block.first + block.count] = batteries.available(now_s)
        return mask

    def off_s(self, now_s: float) -> Arr:
        """Return seconds so far in which devices were off and drew no idle power, shape (devices,)."""
        self._work_out()
        seconds = np.zeros(len(self._fleet))
        for batteries, block in self._blocks:
            seconds[block.first : block.first + block.count] = batteries.off_s(np.arange(block.count), now_s)
        return seconds

    def on_from_s(self, now_s: float) -> Arr:
        """Return from when on devices are on, shape (devices,): `now_s` for those that are, inf if never again."""
        self._work_out()
        on_s = np.full(len(self._fleet), now_s, dtype=np.float64)
        for batteries, block in self._blocks:
            on_s[block.first : block.first + block.count] = batteries.next_available(np.arange(block.count), now_s)
        return on_s

    def stored_j(self, now_s: float) -> tuple[Arr, Arr]:
        """Return the joules that batteries hold, and hold when full, shape (devices,); inf for devices without one."""
        self._work_out()
        stored_j, capacity_j = np.full(len(self._fleet), inf), np.full(len(self._fleet), inf)
        for batteries, block in self._blocks:
            own = slice(block.first, block.first + block.count)
            stored_j[own] = batteries.level(np.arange(block.count), now_s)
            capacity_j[own] = batteries.capacity_j
        return stored_j, capacity_j

    def lasting_s(self, ids: Ids, draws: Sequence[tuple[Arr, Arr]], now_s: float) -> Arr:
        """Return for how long devices can go through phases of (watts above idle, seconds), shape (k,).

        It is inf where the battery outlasts all of them.
        """
        self._work_out()
        lasting = np.full(len(ids), inf)
        for batteries, at, rows in self._of(ids):
            lasting[at] = batteries.lasting(rows, [(w[at], s[at]) for w, s in draws], now_s)
        return lasting

    def empty_after_s(self, device: int, watts: float, now_s: float) -> float:
        """Return seconds until a device's battery is empty under `watts` on top of idle power; inf: never."""
        self._work_out()
        for batteries, _, rows in self._of(np.array([device])):
            return float(batteries.empty_after(rows, watts, now_s)[0])
        return np.inf

    def draw(self, device: int, watts: float, seconds: float, since_s: float) -> None:
        """Take what a device drew on top of idle power for `seconds` from `since_s` on."""
        self._work_out()
        for batteries, _, rows in self._of(np.array([device])):
            batteries.drain(rows, watts, seconds, since_s)

    def draw_job(self, job: Job, usage: Usage, joules: Sequence[float]) -> None:
        """Take what a job drew, phase after phase."""
        if job.device in self._drawn:
            self._work_out()
        latencies_s = (job.prices.down_latency_s, 0.0, job.prices.up_latency_s)
        self._drawn[job.device] = _Drawn._make((job.sent_s, *joules, *usage.seconds, *latencies_s))

    def _work_out(self) -> None:
        """Let the batteries give what jobs drew since the last time."""
        if not self._drawn:
            return
        devices, drawn = np.array(list(self._drawn)), np.array(list(self._drawn.values()))
        self._drawn.clear()
        since_s, joules, seconds, latency_s = drawn[:, 0], drawn[:, 1:4].T, drawn[:, 4:7].T, drawn[:, 7:].T
        for phase_j, phase_s, phase_latency_s in zip(joules, seconds, latency_s, strict=True):
            quiet_s = np.minimum(phase_s, phase_latency_s)
            for leg_j, leg_s in ((np.zeros(len(devices)), quiet_s), (phase_j, phase_s - quiet_s)):
                lasts = np.flatnonzero(leg_s > 0)
                for batteries, at, rows in self._of(devices[lasts]):
                    those = lasts[at]
                    batteries.drain(rows, leg_j[those] / leg_s[those], leg_s[those], since_s[those])
                since_s = np.where(leg_s > 0, since_s + leg_s, since_s)

    def _of(self, ids: Ids) -> Iterator[tuple[Batteries, Ids, Ids]]:
        """Yield batteries, where their devices are in `ids`, and the devices' rows."""
        for batteries, block in self._blocks:
            at = np.flatnonzero((ids >= block.first) & (ids < block.first + block.count))
            if len(at):
                yield batteries, at, ids[at] - block.first
