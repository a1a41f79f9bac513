"""Tariffs from outside."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgesim.config.prices import PerEnergy
from edgesim.config.units import Seconds
from edgesim.world.prices.base import Steps, Tariff


@dataclass(frozen=True, kw_only=True)
class Turns(Tariff):
    """Prices that take turns."""

    prices: tuple[PerEnergy, ...]
    each: Seconds

    @property
    def unit(self) -> str:
        """Return the unit of the prices."""
        return self.prices[0].unit

    def steps(self, path: str) -> Steps:
        """Return them over simulated time."""
        turns = len(self.prices)
        values = np.array([price.values for price in self.prices])
        return Steps(self.each * np.arange(turns), values, self.each * turns)
