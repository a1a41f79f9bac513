"""Reachability of devices: their availability and their battery decide."""

from __future__ import annotations

from math import inf

import numpy as np

from edgesim.core.arrays import Ids
from edgesim.engine.batteries import FleetBatteries
from edgesim.world.availability.base import Availability


class Presence:
    """Devices that can be reached now, and when that changes."""

    def __init__(
        self, availability: Availability, batteries: FleetBatteries | None, members: Ids | None = None
    ) -> None:
        """`members`: devices whose arrival counts for `wait_s`, ascending; None: all."""
        self._availability = availability
        self._batteries = batteries
        self._members = members
        self._occasion = 0
        self.unbroken = availability.unbroken  # always there, if on
        self.everybody = availability.unbroken and not batteries  # always there and on
        self._everyone = np.broadcast_to(np.True_, availability.n)

    def new_occasion(self) -> None:
        """Begin a new occasion to ask devices: an availability that leaves it to chance draws anew."""
        self._occasion += 1

    def reachable(self, now_s: float) -> np.ndarray:
        """Mask of devices that can be reached, bool, shape (devices,), not to be written to."""
        if self._availability.unbroken:
            return self._batteries.on(now_s) if self._batteries else self._everyone
        there = self._availability.on(now_s, self._occasion)
        return there & self._batteries.on(now_s) if self._batteries else there

    def is_there(self, device: int, now_s: float) -> bool:
        """True if a device can be reached. Call it only if the availability is unbroken."""
        return not self._batteries or self._batteries.is_on(device, now_s)

    def count(self, now_s: float, enough: int) -> int:
        """Number of devices that can be reached, or a smaller number of at least `enough`.

        Call it only if the availability is unbroken.
        """
        return self._batteries.devices_on(now_s, enough) if self._batteries else self._availability.n

    def seen(self, now_s: float) -> np.ndarray:
        """Return the same as `reachable`, without side effects."""
        there = self._availability.on(now_s, self._occasion)
        return there & (self._batteries.on_from_s(now_s) <= now_s) if self._batteries else there

    def until_s(self, device: int, now_s: float) -> float:
        """Return until when a device can be reached, asked now; -inf: it cannot. Asking changes nothing."""
        if self.everybody:
            return inf
        if not self.seen(now_s)[device]:
            return -inf
        return float(self._availability.until_s(np.array([device]), now_s)[0])

    def wait_s(self, now_s: float) -> float:
        """Return seconds until a device arrives or turns on, inf if never; to be asked again after waiting."""
        self.new_occasion()
        if self._members is None and not self._batteries:
            arrives_s = self._availability.next_on_s(now_s)
            return arrives_s - now_s if arrives_s < inf else inf
        # the next arrival with the battery on, unless the battery empties before
        on_s = self._batteries.on_from_s(now_s) if self._batteries else np.full(self._availability.n, now_s)
        ids = np.flatnonzero(on_s < inf)
        if self._members is not None:
            ids = np.intersect1d(ids, self._members, assume_unique=True)
        there_s = self._availability.on_from_s(ids, on_s[ids])
        back_s = there_s[there_s > now_s].min(initial=inf)
        if self._availability.retry_s < inf:
            again_s = np.maximum(on_s[ids], now_s + self._availability.retry_s)
            back_s = min(back_s, self._availability.on_from_s(ids, again_s).min(initial=inf))
        return float(back_s) - now_s if back_s < inf else inf
