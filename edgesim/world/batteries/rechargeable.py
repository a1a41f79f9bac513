"""Batteries that charge at fixed hours of the day."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgesim.config.units import Delay, PerDevice, PositiveJoules, Watts, draw
from edgesim.core.arrays import Arr
from edgesim.core.errors import ConfigError
from edgesim.core.limits import PositiveShare, Share
from edgesim.core.rng import Key
from edgesim.world.batteries.base import Batteries, BatteryArrays, BatteryPart
from edgesim.world.processes.daily_profile import DAY_S, DailyWindows

_LEAST_S = 1e-3  # between two changes of a battery that comes and goes: each is gone through
_MOST_S = 1e12  # of charging until a device that died is back, 30,000 years: until then the clock tells milliseconds


@dataclass(frozen=True, kw_only=True)
class Rechargeable(BatteryPart):
    """Batteries of a block of devices.

    `level` and `restart` are shares of the capacity. `windows` are the hours of each day, [from, to] after midnight,
    in which a device charges with `charge`; [22 h, 6 h] is a night. The run starts at midnight on a device's clock,
    or at `phase`.
    """

    capacity: PerDevice[PositiveJoules]  # joules when it is full
    level: PerDevice[Share] = 1.0
    charge: PerDevice[Watts] = 0.0
    windows: tuple[tuple[Delay, Delay], ...] = ()
    phase: PerDevice[Delay] = 0.0
    restart: PositiveShare = 0.2  # so that a device that died does not come and go with every joule

    def __post_init__(self) -> None:
        """Raise ConfigError for windows outside a day or without length."""
        for start_s, end_s in self.windows:
            if not (start_s < DAY_S and end_s <= DAY_S and start_s != end_s):
                raise ConfigError(f"battery.windows: must lie within 24 h and last, got [{start_s:g} s, {end_s:g} s]")

    def build(self, idle_w: Arr, key: Key, path: str) -> Batteries:
        """Return the batteries of devices with these idle powers.

        Raises ConfigError that names a key below `path` if a distribution draws an impossible value, or a battery
        comes and goes so quickly that a run would see no end.
        """
        n = len(idle_w)
        capacity_j = draw(self.capacity, n, key.at(0).numpy(), f"{path}.capacity")
        arrays = BatteryArrays(
            capacity_j=capacity_j,
            level_j=capacity_j * draw(self.level, n, key.at(1).numpy(), f"{path}.level"),
            charge_w=draw(self.charge, n, key.at(2).numpy(), f"{path}.charge"),
            idle_w=idle_w,
            phase_s=draw(self.phase, n, key.at(3).numpy(), f"{path}.phase"),
            restart_j=capacity_j * self.restart,
        )
        _check_lasting(arrays, path)
        return Batteries(arrays, DailyWindows.of(self.windows))


def _check_lasting(arrays: BatteryArrays, path: str) -> None:
    watts = np.maximum(arrays.charge_w, arrays.idle_w)
    brief = (arrays.restart_j <= 0) | (arrays.restart_j < _LEAST_S * watts)
    if brief.any():
        worst = int(brief.argmax())
        raise ConfigError(
            f"{path}.capacity: device {worst} of the block restarts with {arrays.restart_j[worst]:g} J, which must be "
            f"above 0 and last at least {_LEAST_S:g} s of the {watts[worst]:g} W that it draws or charges with"
        )
    endless = (arrays.charge_w > 0) & (arrays.restart_j > _MOST_S * arrays.charge_w)
    if endless.any():
        worst = int(endless.argmax())
        raise ConfigError(
            f"{path}.charge: device {worst} of the block needs {arrays.restart_j[worst] / arrays.charge_w[worst]:g} s "
            f"to charge the {arrays.restart_j[worst]:g} J with which it restarts, at most {_MOST_S:g} s, or 0 W"
        )


PLUGINS = {"rechargeable": Rechargeable}
