"""A price that follows the hours of the day."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from annotated_types import Len

from edgesim.config.prices import PerEnergy
from edgesim.config.units import Delay
from edgesim.core.errors import ConfigError
from edgesim.world.prices.base import Steps, Tariff
from edgesim.world.processes.daily_profile import DAY_S

_HOUR_S = 3600.0


@dataclass(frozen=True, kw_only=True)
class Daily(Tariff):
    """24 prices, or carbon intensities, one for each hour of a day that repeats."""

    hours: Annotated[tuple[PerEnergy, ...], Len(24, 24)]  # from midnight on
    starts_at: Delay = 0.0  # the hour of the day in this zone when the run starts, such as "8 h"

    @property
    def unit(self) -> str:
        """Return the unit of the prices."""
        return self.hours[0].unit

    def steps(self, path: str) -> Steps:
        """Return it over simulated time. Raises ConfigError if the prices have several units, or the hour is none."""
        if len({hour.unit for hour in self.hours}) > 1:
            raise ConfigError(f"{path}.hours: all must be in one unit, got {self.hours[0].unit} and others")
        if self.starts_at >= DAY_S:
            raise ConfigError(f"{path}.starts_at: must be below 24 h, got {self.starts_at / _HOUR_S:g} h")
        values = np.array([hour.values for hour in self.hours])
        begins_s = (np.arange(24) * _HOUR_S - self.starts_at) % DAY_S
        order = np.argsort(begins_s)
        start_s, values = begins_s[order], values[order]
        if start_s[0] > 0:  # the run starts in the middle of an hour, whose first minutes come at the end of a day
            start_s, values = np.append(0.0, start_s), np.concatenate([values[-1:], values])
        return Steps(start_s, values, DAY_S)


PLUGINS = {"daily": Daily}
