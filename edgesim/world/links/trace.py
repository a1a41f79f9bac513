"""Links that follow measured rates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from edgesim.config.paths import ScenarioPath
from edgesim.config.units import Delay, PerDevice, draw
from edgesim.core.arrays import Arr, Ids
from edgesim.core.rng import Draws, Key
from edgesim.world.links.analytic import Metered
from edgesim.world.links.base import Links
from edgesim.world.processes.time_series import RateSeries, read_series


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TraceLinks:
    """Piecewise constant rates; the nominal rate is the mean of the series."""

    steady: ClassVar[bool] = False
    up_bps: Arr
    down_bps: Arr
    latency_s: Arr
    j_per_bit: Arr
    up: RateSeries
    down: RateSeries
    which: Ids  # the series of each device, shape (n,)

    def transfer(self, rows: Ids, nbytes: Arr, up: bool, now_s: Arr | float, draws: Draws) -> tuple[Arr, Arr]:
        """Return seconds of whole transfers, and those after the latency; the radio stays on while nothing flows."""
        latency_s = self.latency_s[rows]
        series = self.up if up else self.down
        air_s = series.seconds(self.which[rows], 8.0 * nbytes, now_s + latency_s)
        return latency_s + air_s, air_s


@dataclass(frozen=True, kw_only=True)
class Trace(Metered):
    """Rates from a CSV or parquet file with the columns time_s, up_bps, down_bps and optionally device.

    Time counts from the start of the run and starts at 0 in the file; a rate holds until the next row. Device i of
    the block follows series i modulo their number. A series begins anew after its end (the last rate lasts as long
    as the one before it), or keeps its last rate if `repeat` is false.
    """

    file: ScenarioPath  # CSV or parquet
    latency: PerDevice[Delay] = 0.0  # of every transfer
    repeat: bool = True

    def build(self, n: int, key: Key, path: str) -> Links:
        """Return the links of n devices. Raises DataError naming file and line."""
        up, down = read_series(self.file.expanduser(), ("up_bps", "down_bps"), self.repeat)
        which = np.arange(n) % len(up)
        return TraceLinks(
            up_bps=up.mean_rate()[which],
            down_bps=down.mean_rate()[which],
            latency_s=draw(self.latency, n, key.at(2).numpy(), f"{path}.latency"),
            j_per_bit=self.j_per_bit(n, key, path),
            up=up,
            down=down,
            which=which,
        )


PLUGINS = {"trace": Trace}
