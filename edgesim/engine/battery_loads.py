"""Loads on batteries: a device may receive, compute and send to several others at once."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from math import fsum, inf
from typing import TYPE_CHECKING

import simpy

if TYPE_CHECKING:  # which knows what jobs use, and so their messages
    from edgesim.engine.batteries import FleetBatteries


@dataclass(slots=True, eq=False)
class _Load:
    """The activities of a device, and the watts that each adds to idle power."""

    device: int
    since_s: float  # up to when its battery has been drawn from
    watts: dict[Hashable, float] = field(default_factory=dict)
    changes: int = 0
    is_looked_at: bool = False  # at this instant, once all its changes are made


class BatteryLoads:
    """The activities of devices, each with its watts on top of idle power, and the batteries that they draw from.

    A battery is drawn from when the activities of its device change. As long as there is one, though it be of 0 W,
    `empty` is called with the device when its battery is empty. Devices without a battery are never asked about.
    """

    def __init__(self, env: simpy.Environment, batteries: FleetBatteries, empty: Callable[[int], None]) -> None:
        self._env = env
        self._batteries = batteries
        self._empty = empty
        self._loads: dict[int, _Load] = {}  # of devices with batteries that are at something

    def __bool__(self) -> bool:
        return bool(self._batteries)

    def __contains__(self, device: int) -> bool:
        return device in self._batteries

    def begin(self, device: int, activity: Hashable, watts: float) -> None:
        """Let an activity draw from now on; one that is under way goes on with these watts."""
        if device not in self._batteries:
            return
        load = self._loads.get(device)
        if load is None:
            load = self._loads[device] = _Load(device, self._env.now)
        self._draw(load)
        load.watts[activity] = watts
        self._look_soon(load)

    def end(self, device: int, activity: Hashable) -> None:
        """Let an activity draw no longer, if it is under way."""
        load = self._loads.get(device)
        if load is None or activity not in load.watts:
            return
        self._draw(load)
        del load.watts[activity]
        if load.watts:
            self._look_soon(load)
        else:
            del self._loads[device]

    def _draw(self, load: _Load) -> None:
        """Take from the battery what was drawn since the activities last changed."""
        now_s = self._env.now
        if now_s > load.since_s:
            self._batteries.draw(load.device, fsum(load.watts.values()), now_s - load.since_s, load.since_s)
            load.since_s = now_s

    def _look_soon(self, load: _Load) -> None:
        """Find out how long the battery lasts after all changes of this instant, of which there may be many."""
        load.changes += 1
        if not load.is_looked_at:
            load.is_looked_at = True
            self._env.timeout(0.0).callbacks.append(lambda _: self._look(load))

    def _look(self, load: _Load) -> None:
        load.is_looked_at = False
        if self._loads.get(load.device) is not load:
            return
        lasts_s = self._batteries.empty_after_s(load.device, fsum(load.watts.values()), self._env.now)
        if lasts_s < inf:
            seen = load.changes
            self._env.timeout(lasts_s).callbacks.append(lambda _: self._die(load, seen))

    def _die(self, load: _Load, seen: int) -> None:
        """Let a device whose activities have not changed since its battery was looked at be without power."""
        if self._loads.get(load.device) is load and load.changes == seen:
            self._draw(load)
            self._empty(load.device)
