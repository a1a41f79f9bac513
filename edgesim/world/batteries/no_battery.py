"""No battery: a device that is plugged in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from edgesim.core.arrays import Arr
from edgesim.core.errors import ContractError
from edgesim.core.rng import Key
from edgesim.world.batteries.base import Batteries, BatteryPart


@dataclass(frozen=True, kw_only=True)
class NoBattery(BatteryPart):
    """No battery: the devices are plugged in and never run empty."""

    plugged_in: ClassVar[bool] = True

    def build(self, idle_w: Arr, key: Key, path: str) -> Batteries:
        """Raise ContractError: there is nothing to empty."""
        raise ContractError("devices without a battery have none to build")


PLUGINS = {"none": NoBattery}
