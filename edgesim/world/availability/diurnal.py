"""Devices that follow the hours of the day."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import numpy as np

from edgesim.config.units import Seconds
from edgesim.core.arrays import Arr, Ids
from edgesim.core.limits import Count, PositiveShare, Share
from edgesim.core.rng import Draws, Key
from edgesim.world.availability.base import Availability, AvailabilityPart
from edgesim.world.processes.on_off import cell_of

# A state that lasts so many slots (a hundred days of quarters of an hour) is taken to last for ever.
_MOST_SLOTS = 10_000


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Slots(Availability):
    """Devices that are on or off for whole slots of time, with a probability that depends on slot and zone."""

    key: Key
    rule: Diurnal
    zone: Ids  # of each device, shape (n,)

    def on(self, now_s: float, occasion: int) -> np.ndarray:
        """Return which devices are on at `now_s`, bool, shape (n,)."""
        return self._on(np.arange(self.n), cell_of(now_s, self.rule.slot))

    def on_from_s(self, ids: Ids, from_s: Arr) -> Arr:
        """Return when devices are on from `from_s` on, shape (k,)."""
        return self._first_s(ids, from_s, on=True)

    def until_s(self, ids: Ids, now_s: Arr | float) -> Arr:
        """Return the start of the next slot in which devices are off, shape (k,)."""
        if self.rule.mean - self.rule.amplitude >= 1.0:  # nobody is ever off, which no search would find
            return np.full(len(ids), inf)
        now_s = np.broadcast_to(np.float64(now_s), ids.shape)
        next_s = (cell_of(now_s, self.rule.slot) + 1.0) * self.rule.slot
        return self._first_s(ids, next_s, on=False)

    def next_on_s(self, now_s: float) -> float:
        """Return the start of the next slot in which a device is on that is off at `now_s`."""
        slot = cell_of(now_s, self.rule.slot)
        off = np.flatnonzero(~self._on(np.arange(self.n), slot))
        for later in range(1, _MOST_SLOTS if len(off) else 0):
            if self._on(off, slot + later).any():
                return float((slot + later) * self.rule.slot)
        return inf

    def _first_s(self, ids: Ids, from_s: Arr, on: bool) -> Arr:
        slot, at_s = cell_of(from_s, self.rule.slot), np.array(from_s, dtype=np.float64)
        todo = np.arange(len(ids))
        for _ in range(_MOST_SLOTS):
            todo = todo[self._on(ids[todo], slot[todo]) != on]
            if not len(todo):
                return at_s
            slot[todo] += 1.0
            at_s[todo] = slot[todo] * self.rule.slot
        at_s[todo] = inf
        return at_s

    def _on(self, ids: Ids, slot: Arr) -> np.ndarray:
        drawn = Draws(self.key, ids, slot.astype(np.int64).reshape(-1)).uniform(0)
        on: np.ndarray = drawn < self.rule.probability(self.zone[ids], slot * self.rule.slot)
        return on


@dataclass(frozen=True, kw_only=True)
class Diurnal(AvailabilityPart):
    """A device is on with probability mean + amplitude x sin(2 pi (t / period + zone / zones)), cut to [0, 1].

    The probability is that of the start of a slot; a device is drawn anew for every slot of time, and for one of the
    time zones, equally spaced, with equal probabilities.
    """

    mean: PositiveShare = 0.5  # mean probability; with the default amplitude it reaches 1 at the peak and 0 at the low
    amplitude: Share = 0.5  # amplitude of the probability over a period
    period: Seconds = 86400.0  # period of the probability, a day by default
    zones: Count = 1  # number of time zones of the fleet; with many zones its ups and downs cancel out
    slot: Seconds = 900.0  # length of a slot; phones are usually logged as finely as the default

    def build(self, n: int, key: Key, path: str) -> Availability:
        """Return when n devices can be reached."""
        ids = np.arange(n)
        zone = np.floor(Draws(key.at(0), ids, np.zeros_like(ids)).uniform(0) * self.zones).astype(np.int64)
        return Slots(n=n, key=key.at(1), rule=self, zone=zone)

    def probability(self, zone: Ids, now_s: Arr | float) -> Arr:
        """Return the probability that a device of a zone is on in a slot that starts at `now_s`, shape (k,)."""
        turn = np.mod(now_s, self.period) / self.period + zone / self.zones
        probability: Arr = np.clip(self.mean + self.amplitude * np.sin(2.0 * np.pi * turn), 0.0, 1.0)
        return probability


PLUGINS = {"diurnal": Diurnal}
