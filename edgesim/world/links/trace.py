"""Links that follow measured rates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, TypeAlias

import numpy as np
from pydantic import AfterValidator, WithJsonSchema

from edgesim.config.toml_file import ScenarioPath
from edgesim.config.units import refusal
from edgesim.core.arrays import Arr, Ids
from edgesim.core.rng import Draws, Key
from edgesim.world.links.analytic import Impaired
from edgesim.world.links.base import ImpairedLinks, Links
from edgesim.world.processes.rate_log import NEEDED, OPTIONAL, LogFormat, read_log
from edgesim.world.processes.time_series import RateSeries, read_series, series_of

_SCHEMA = {
    "type": "object",
    "properties": {name: {"type": "string"} for name in (*NEEDED, *OPTIONAL)},
    "required": list(NEEDED),
    "additionalProperties": False,
    "examples": [{"time": "Timestamp", "up": "UL_bitrate", "down": "DL_bitrate"}],
}


def _of_log(columns: Mapping[str, str]) -> Mapping[str, str]:
    if set(columns) - set(OPTIONAL) != set(NEEDED):
        found = ", ".join(columns) or "nothing"
        raise refusal(f"needs {', '.join(NEEDED)} and optionally {', '.join(OPTIONAL)}, got {found}")
    return columns


_Columns: TypeAlias = Annotated[dict[str, str], AfterValidator(_of_log), WithJsonSchema(_SCHEMA)]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TraceLinks(ImpairedLinks):
    """Piecewise constant rates; the nominal rate is the mean of the series."""

    steady: ClassVar[bool] = False
    up: RateSeries
    down: RateSeries
    which: Ids  # the series of each device, shape (n,)

    def transfer(self, rows: Ids, nbytes: Arr, up: bool, now_s: Arr | float, draws: Draws) -> tuple[Arr, Arr]:
        """Return seconds of whole transfers, and those after the latency; the radio stays on while nothing flows."""
        latency_s = self.delay_s(rows, up, draws)
        bits = 8.0 * nbytes
        if self.loss is not None:
            bits = bits * self.sendings(rows, nbytes, up, draws)
        air_s = (self.up if up else self.down).seconds(self.which[rows], bits, now_s + latency_s)
        return latency_s + air_s, air_s


@dataclass(frozen=True, kw_only=True)
class LinkTrace(Impaired):
    """Rates from a CSV or parquet file with the columns time_s, up_bps, down_bps and optionally device.

    Time counts from the start of the run and starts at 0 in the file; a rate holds until the next row. Device i of
    the block follows series i modulo their number. A series begins anew after its end (the last rate lasts as long
    as the one before it), or keeps its last rate if `repeat` is false.

    With `columns` the file is a log as somebody else wrote it, in CSV with any more columns: which of its columns are
    time, up, down and, if there are several series, device. Its first row is time 0, and rows of one instant count as
    their mean. `rate_unit` is the unit of its rates. `time` is the unit of its times (s, ms, us or ns), or the format
    of its dates as strptime of Python has it, such as "%Y.%m.%d_%H.%M.%S".
    """

    file: ScenarioPath  # CSV or parquet
    repeat: bool = True
    columns: _Columns | None = None
    rate_unit: Literal["bit/s", "kbit/s", "Mbit/s", "Gbit/s"] = "bit/s"
    time: str = "s"

    def build(self, n: int, key: Key, path: str) -> Links:
        """Return the links of n devices. Raises DataError naming file, line and column."""
        file = self.file.expanduser()
        if self.columns is None:
            up, down = read_series(file, ("up_bps", "down_bps"), self.repeat)
        else:
            log = read_log(file, LogFormat(self.columns, self.rate_unit, self.time))
            up, down = series_of(log, ("up_bps", "down_bps"), self.repeat)
        which = np.arange(n) % len(up)
        return TraceLinks(
            up_bps=up.mean_rate()[which],
            down_bps=down.mean_rate()[which],
            up=up,
            down=down,
            which=which,
            **self.impairments(n, key, path),
        )


PLUGINS = {"trace": LinkTrace}
