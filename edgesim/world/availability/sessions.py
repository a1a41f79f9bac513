"""Devices, alone or in groups, that come and go after random times."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgesim.config.units import PerDevice, Seconds, draw
from edgesim.core.arrays import Arr, Ids
from edgesim.core.limits import Count
from edgesim.core.rng import Key
from edgesim.world.availability.base import Availability, AvailabilityPart
from edgesim.world.processes.on_off import OnOff


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Followers(Availability):
    """Devices that are on while the process they follow is on; those of one process come and go together."""

    process: OnOff
    row: Ids  # process of each device, shape (n,), ascending

    def on(self, now_s: float, occasion: int) -> np.ndarray:
        """Return which devices are on at `now_s`, bool, shape (n,)."""
        on: np.ndarray = self.process.on(np.arange(self.row[-1] + 1), now_s)[self.row]
        return on

    def on_from_s(self, ids: Ids, from_s: Arr) -> Arr:
        """Return when devices are on from `from_s` on, shape (k,)."""
        rows, at_s = self.row[ids], np.array(from_s, dtype=np.float64)
        off = ~self.process.on(rows, at_s)
        at_s[off] = self.process.next_change_s(rows[off], at_s[off])
        return at_s

    def until_s(self, ids: Ids, now_s: Arr | float) -> Arr:
        """Return when the state of devices ends, shape (k,)."""
        return self.process.next_change_s(self.row[ids], now_s)


@dataclass(frozen=True, kw_only=True)
class Sessions(AvailabilityPart):
    """A device is on and off in turn, for exponential times with the means `on` and `off`.

    At the start it is on with probability on / (on + off), as it is at any other time.
    """

    on: PerDevice[Seconds]
    off: PerDevice[Seconds]

    def build(self, n: int, key: Key, path: str) -> Availability:
        """Return when n devices can be reached."""
        mean_on_s = draw(self.on, n, key.at(0).numpy(), f"{path}.on")
        mean_off_s = draw(self.off, n, key.at(1).numpy(), f"{path}.off")
        return Followers(n=n, process=OnOff(key.at(2), mean_on_s, mean_off_s), row=np.arange(n))


@dataclass(frozen=True, kw_only=True)
class Groups(AvailabilityPart):
    """Neighbours that fail together, as behind one gateway: devices 0 to size - 1 are a group, the next `size` another.

    A group is on and off in turn, for exponential times with the means `on` and `off`. Groups are given by their size
    and not by their number, so that a larger fleet has further groups and not others.
    """

    size: Count
    on: Seconds
    off: Seconds

    def build(self, n: int, key: Key, path: str) -> Availability:
        """Return when n devices can be reached."""
        row = np.arange(n) // self.size
        means_s = [np.broadcast_to(np.float64(mean_s), (int(row[-1]) + 1,)) for mean_s in (self.on, self.off)]
        return Followers(n=n, process=OnOff(key, *means_s), row=row)


PLUGINS = {"sessions": Sessions, "groups": Groups}
