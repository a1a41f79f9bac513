"""A price that never changes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgesim.config.prices import PerEnergy
from edgesim.world.prices.base import Steps, Tariff


@dataclass(frozen=True, kw_only=True)
class Constant(Tariff):
    """The same price, or carbon intensity, at all times."""

    price: PerEnergy  # such as "0.30 EUR/kWh", or of carbon "380 g/kWh"

    @property
    def unit(self) -> str:
        """Return the unit of the price."""
        return self.price.unit

    def steps(self, path: str) -> Steps:
        """Return it over simulated time."""
        return Steps(np.zeros(1), np.array([self.price.values]))


PLUGINS = {"constant": Constant}
