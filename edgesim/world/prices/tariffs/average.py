"""Yearly averages of places, from the catalogue that ships with edgesim."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from edgesim.config.prices import PRICE_OF_ENERGY, Band
from edgesim.config.toml_file import read_toml
from edgesim.core.errors import ConfigError
from edgesim.world.prices.base import Steps, Tariff

CATALOGUE = Path(__file__).parent.parent / "averages.toml"


@cache
def averages() -> dict[str, Any]:
    """Return the catalogue: what ("electricity", "carbon") -> its source, its year and the value of each place."""
    return read_toml(CATALOGUE)


@dataclass(frozen=True, kw_only=True)
class Average(Tariff):
    """The average of a place over a year; the file of them, world/prices/averages.toml, has sources and years."""

    of: Literal["electricity", "carbon"]  # household price with taxes, or carbon intensity of the consumed mix
    place: str  # a country by its two letters, such as "DE", or "EU"

    @property
    def unit(self) -> str:
        """Return the unit of the average."""
        return self._band(0.0).unit

    def steps(self, path: str) -> Steps:
        """Return it over simulated time. Raises ConfigError that lists the places if this one is not known."""
        known = averages()[self.of]["places"]
        if self.place not in known:
            raise ConfigError(f"{path}.place: {self.place!r} is not known for {self.of} (known: {', '.join(known)})")
        return Steps(np.zeros(1), np.array([self._band(known[self.place]).values]))

    def _band(self, number: float) -> Band:
        return PRICE_OF_ENERGY.read(f"{number} {averages()[self.of]['unit']}")


PLUGINS = {"average": Average}
