"""Devices that join late or leave for good."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import numpy as np

from edgesim.config.units import Delay, PerDevice, Seconds, draw
from edgesim.core.arrays import Arr, Ids
from edgesim.core.errors import ConfigError
from edgesim.core.rng import Key
from edgesim.world.availability.base import Availability, AvailabilityPart


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Lives(Availability):
    """One interval [join, leave) a device."""

    join_s: Arr  # shape (n,)
    leave_s: Arr  # inf: never

    def on_from_s(self, ids: Ids, from_s: Arr) -> Arr:
        """Return when devices are on from `from_s` on, shape (k,)."""
        at_s = np.maximum(from_s, self.join_s[ids])
        on_from_s: Arr = np.where(at_s < self.leave_s[ids], at_s, inf)
        return on_from_s

    def until_s(self, ids: Ids, now_s: Arr | float) -> Arr:
        """Return when devices leave, shape (k,); inf also if they have left."""
        until_s: Arr = np.where(self.leave_s[ids] > now_s, self.leave_s[ids], inf)
        return until_s


@dataclass(frozen=True, kw_only=True)
class Lifetime(AvailabilityPart):
    """A device joins at `join` and leaves for good at `leave`, both counted from the start of the run."""

    join: PerDevice[Delay] = 0.0  # there from the start
    leave: PerDevice[Seconds] | None = None  # None: stays

    def build(self, n: int, key: Key, path: str) -> Availability:
        """Return when n devices can be reached. Raises ConfigError if one would leave before it joins."""
        join_s = draw(self.join, n, key.at(0).numpy(), f"{path}.join")
        leave_s = np.full(n, inf) if self.leave is None else draw(self.leave, n, key.at(1).numpy(), f"{path}.leave")
        if (wrong := join_s >= leave_s).any():
            device = int(wrong.argmax())
            raise ConfigError(
                f"{path}.leave: must be after join; device {device} joins at {join_s[device]:g} s "
                f"and leaves at {leave_s[device]:g} s"
            )
        return Lives(n=n, join_s=join_s, leave_s=leave_s)


PLUGINS = {"lifetime": Lifetime}
