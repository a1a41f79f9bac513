"""Devices that never leave."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import ClassVar

import numpy as np

from edgesim.core.arrays import Arr, Ids
from edgesim.core.rng import Key
from edgesim.world.availability.base import Availability, AvailabilityPart


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Unbroken(Availability):
    """Every device is on for ever."""

    unbroken: ClassVar[bool] = True

    def on(self, now_s: float, occasion: int) -> np.ndarray:
        """Return True for every device, shape (n,)."""
        return np.ones(self.n, dtype=bool)

    def on_from_s(self, ids: Ids, from_s: Arr) -> Arr:
        """Return `from_s`."""
        return from_s

    def until_s(self, ids: Ids, now_s: Arr | float) -> Arr:
        """Return inf for each device, shape (k,)."""
        return np.full(len(ids), inf)

    def next_on_s(self, now_s: float) -> float:
        """Return inf."""
        return inf


@dataclass(frozen=True, kw_only=True)
class Always(AvailabilityPart):
    """Every device can be reached at every moment."""

    def build(self, n: int, key: Key, path: str) -> Availability:
        """Return when n devices can be reached."""
        return Unbroken(n=n)


PLUGINS = {"always": Always}
