"""Batteries of a fleet as the engine sees them: which devices are on, how long a job lasts, and what it draws."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf
from typing import Any, TypeAlias

import numpy as np

from edgesim.core.arrays import Arr, Ids
from edgesim.core.job import Job
from edgesim.engine.accounting import Usage
from edgesim.world.batteries.base import Batteries
from edgesim.world.fleet import Fleet

_SLACK = 1e-6  # of capacities, draws and idle power: far more than what rounding does to them
_LEAST_W = 1e-200  # so that time is all that an idle device draws on which draws nothing
_SPARE = 16  # of so many devices one may go off before they are counted again
_MOST_WAITING = 16_384  # jobs whose draws are not worked out: about 6 MB

# When a job was sent (s); then for downloading, computing and uploading its joules, seconds, and latencies without draw
_Drawn: TypeAlias = tuple[float, ...]


class FleetBatteries:
    """The blocks of a fleet that have batteries; devices of the others are always on.

    A battery is worked out when a device might be empty, and not at each job. Until then it has a reserve: a lower
    bound of the joules that it holds, without what it charges. What its jobs drew waits, and is worked out for many
    devices at once.
    """

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._blocks = [(block.new_batteries(), block) for block in fleet.blocks if block.new_batteries is not None]
        n = len(fleet) if self._blocks else 0
        self._drawn: dict[int, list[_Drawn]] = {}  # by device: what its jobs drew, not worked out yet
        self._waiting = 0  # jobs in it
        # whether devices are on, from when until when that holds, and how long they were off before
        self._on, self._since_s, self._until_s = np.ones(n, dtype=bool), np.zeros(n), np.full(n, inf)
        self._off_s = np.zeros(n)
        self._reserve_j = np.full(n, inf)  # joules at time 0, of which idle power has drawn since then
        self._idle_w = np.maximum((1.0 + _SLACK) * fleet.idle_w[:n], _LEAST_W)
        for _, block in self._blocks:
            own = slice(block.first, block.first + block.count)
            self._until_s[own] = self._reserve_j[own] = -inf
        # one number of a memoryview costs a third of one of an array
        self._one_until_s: memoryview[Any] = self._until_s.data
        self._one_reserve_j: memoryview[Any] = self._reserve_j.data
        self._one_idle_w: memoryview[Any] = self._idle_w.data
        self._holds_until_s = float(self._until_s.min(initial=inf))  # what `_on` says of all devices
        self._surely_until_s, self._surely_on = -inf, 0  # so many devices are on, at least, and until when

    def __bool__(self) -> bool:
        return bool(self._blocks)

    def __contains__(self, device: int) -> bool:
        return any(block.first <= device < block.first + block.count for _, block in self._blocks)

    def on(self, now_s: float) -> np.ndarray:
        """Mask of devices that are on, bool, shape (devices,), read-only; `now_s` never goes back."""
        if now_s >= self._holds_until_s:
            self.look(np.flatnonzero(self._until_s <= now_s), now_s)
        return self._on

    def is_on(self, device: int, now_s: float) -> bool:
        """True if a device is on, without looking at others. `now_s` never goes back."""
        if now_s >= self._one_until_s[device]:
            self.look(np.array([device]), now_s)
        return bool(self._on[device])

    def devices_on(self, now_s: float, enough: int) -> int:
        """Number of devices that are on, or a smaller number of at least `enough`; `now_s` never goes back."""
        if now_s >= self._surely_until_s or self._surely_on < enough:
            until_s = self._until_s[self.on(now_s)]
            spare = min(len(until_s) // _SPARE, len(until_s) - enough)  # devices that may go off before the next count
            self._surely_until_s = float(np.partition(until_s, spare)[spare]) if spare > 0 else self._holds_until_s
            self._surely_on = int((until_s >= self._surely_until_s).sum())
        return self._surely_on

    def look(self, ids: Ids, now_s: float) -> None:
        """Work out the batteries of these devices: whether they are on, and their reserves."""
        self._work_out(ids.tolist())
        on = self._on.copy()
        for batteries, at, rows in self._of(ids):
            found, those = batteries.condition(rows, now_s), ids[at]
            on[those], self._since_s[those], self._until_s[those] = found.on, found.since_s, found.until_s
            self._off_s[those] = found.off_s
            slack_j = _SLACK * (batteries.capacity_j[rows] + self._idle_w[those] * (1.0 + now_s))
            reserve_j = found.level_j - slack_j + self._idle_w[those] * now_s
            self._reserve_j[those] = np.where(found.on, reserve_j, -inf)
        on.setflags(write=False)
        self._on = on
        self._holds_until_s = float(self._until_s.min())

    def off_s(self, now_s: float) -> Arr:
        """Return seconds so far in which devices were off and drew no idle power, shape (devices,)."""
        on = self.on(now_s)
        return np.where(on, self._off_s, self._off_s + (now_s - self._since_s))

    def on_from_s(self, now_s: float) -> Arr:
        """Return from when on devices are on, shape (devices,): `now_s` for those that are, inf if never again."""
        on_s, ids = np.full(len(self._fleet), now_s, dtype=np.float64), np.flatnonzero(~self.on(now_s))
        for batteries, at, rows in self._of(ids):
            on_s[ids[at]] = batteries.next_available(rows, now_s)
        return on_s

    def stored_j(self, now_s: float) -> tuple[Arr, Arr]:
        """Return the joules that batteries hold, and hold when full, shape (devices,); inf for devices without one."""
        self._work_out_all()
        stored_j, capacity_j = np.full(len(self._fleet), inf), np.full(len(self._fleet), inf)
        for batteries, block in self._blocks:
            own = slice(block.first, block.first + block.count)
            stored_j[own] = batteries.level(np.arange(block.count), now_s)
            capacity_j[own] = batteries.capacity_j
        return stored_j, capacity_j

    def outlasts(self, device: int, joules: float, seconds: float, now_s: float) -> bool:
        """True if a battery surely lasts for `joules` above idle power; False: only `lasting_s` can tell."""
        need_j = (1.0 + _SLACK) * joules + self._one_idle_w[device] * (now_s + seconds)
        return bool(self._one_reserve_j[device] > need_j)

    def lasting_s(self, ids: Ids, draws: Sequence[tuple[Arr, Arr]], now_s: float) -> Arr:
        """Return for how long devices can go through phases of (watts above idle, seconds), shape (k,).

        It is inf where the battery outlasts all of them.
        """
        self._work_out(ids.tolist())
        lasting = np.full(len(ids), inf)
        for batteries, at, rows in self._of(ids):
            lasting[at] = batteries.lasting(rows, [(w[at], s[at]) for w, s in draws], now_s)
        return lasting

    def empty_after_s(self, device: int, watts: float, now_s: float) -> float:
        """Return seconds until a device's battery is empty under `watts` on top of idle power; inf: never."""
        self._work_out([device])
        for batteries, _, rows in self._of(np.array([device])):
            return float(batteries.empty_after(rows, watts, now_s)[0])
        return np.inf

    def draw(self, device: int, watts: float, seconds: float, since_s: float) -> None:
        """Take what a device drew on top of idle power for `seconds` from `since_s` on."""
        self._work_out([device])
        for batteries, _, rows in self._of(np.array([device])):
            batteries.drain(rows, watts, seconds, since_s)
            self._take(device, watts * seconds)

    def draw_job(self, job: Job, usage: Usage, joules: Sequence[float]) -> None:
        """Take what a job drew, phase after phase."""
        device = job.device
        if self._one_reserve_j[device] == inf:
            return
        drawn = (job.sent_s, *joules, *usage.seconds, job.prices.down_latency_s, 0.0, job.prices.up_latency_s)
        self._drawn.setdefault(device, []).append(drawn)
        self._take(device, sum(joules))
        self._waiting += 1
        if self._waiting >= _MOST_WAITING:
            self._work_out_all()

    def _take(self, device: int, joules: float) -> None:
        """Take from the reserve of a device, which may be empty earlier now."""
        reserve_j = self._one_reserve_j[device] - (1.0 + _SLACK) * joules
        until_s, before_s = reserve_j / self._one_idle_w[device], self._one_until_s[device]
        self._one_reserve_j[device] = reserve_j
        if until_s < before_s:
            self._one_until_s[device] = until_s
            self._surely_on -= until_s < self._surely_until_s <= before_s
            if until_s < self._holds_until_s:
                self._holds_until_s = until_s

    def _work_out(self, devices: Sequence[int]) -> None:
        """Let batteries give what jobs drew: those of all devices, if it is of any of these, as it takes no longer."""
        if not self._drawn.keys().isdisjoint(devices):
            self._work_out_all()

    def _work_out_all(self) -> None:
        """Let all batteries give what jobs drew since the last time."""
        todo, self._drawn, self._waiting = self._drawn, {}, 0
        nth = 0
        while todo:
            self._drain(np.array(list(todo)), np.array([jobs[nth] for jobs in todo.values()]))
            nth += 1
            todo = {device: jobs for device, jobs in todo.items() if len(jobs) > nth}

    def _drain(self, devices: Ids, drawn: Arr) -> None:
        """Let batteries give what a job of each of these devices drew; `drawn`: rows of `_Drawn`."""
        for batteries, at, rows in self._of(devices):
            since_s, joules, seconds, latencies_s = np.split(drawn[at].T, (1, 4, 7))
            quiet_s = np.minimum(seconds, latencies_s)
            phases = zip(joules, quiet_s, seconds - quiet_s, strict=True)
            legs = [leg for phase_j, wait_s, on_s in phases for leg in ((np.zeros(len(at)), wait_s), (phase_j, on_s))]
            batteries.drain_in_turn(rows, legs, since_s[0])

    def _of(self, ids: Ids) -> Iterator[tuple[Batteries, Ids, Ids]]:
        """Yield batteries, where their devices are in `ids`, and the devices' rows."""
        for batteries, block in self._blocks:
            at = np.flatnonzero((ids >= block.first) & (ids < block.first + block.count))
            if len(at):
                yield batteries, at, ids[at] - block.first
