"""No battery: a device that is plugged in."""

from __future__ import annotations

from dataclasses import dataclass

from edgesim.core.arrays import Arr
from edgesim.core.rng import Key


@dataclass(frozen=True, kw_only=True)
class NoBattery:
    """No battery: the devices are plugged in and never run empty."""

    def build(self, idle_w: Arr, key: Key, path: str) -> None:
        """Return None, as there is nothing to empty."""


PLUGINS = {"none": NoBattery}
