"""Measured speeds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgesim.config.toml_file import ScenarioPath
from edgesim.core.arrays import Arr, Ids
from edgesim.core.rng import Draws, Key
from edgesim.world.compute.slowdowns.base import Slowdown, SlowdownPart
from edgesim.world.processes.time_series import RateSeries, read_series


@dataclass(frozen=True, slots=True, eq=False)
class ReplayedSpeed(Slowdown):
    """A piecewise constant speed, 1 when undisturbed."""

    speed: RateSeries
    which: Ids  # the series of each device, shape (n,)

    def stretch(self, rows: Ids, busy_s: Arr, now_s: Arr | float, draws: Draws) -> Arr:
        """Return seconds, shape (k,), in which the speed adds up to `busy_s`."""
        return self.speed.seconds(self.which[rows], busy_s, now_s)


@dataclass(frozen=True, kw_only=True)
class Replay(SlowdownPart):
    """Speeds from a CSV or parquet file with the columns time_s, speed (1: undisturbed) and optionally device.

    Time counts from the start of the run and starts at 0 in the file; a speed holds until the next row. Device i of
    the block follows series i modulo their number. A series begins anew after its end (the last speed lasts as long
    as the one before it), or keeps its last speed if `repeat` is false.
    """

    file: ScenarioPath  # CSV or parquet
    repeat: bool = True

    def build(self, n: int, key: Key, path: str) -> Slowdown:
        """Return the slow-downs of n devices. Raises DataError naming file and line."""
        [speed] = read_series(self.file.expanduser(), ("speed",), self.repeat)
        return ReplayedSpeed(speed, np.arange(n) % len(speed))


PLUGINS = {"replay": Replay}
