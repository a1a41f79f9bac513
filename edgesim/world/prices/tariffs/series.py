"""A price from a file."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgesim.config.prices import PerEnergy
from edgesim.config.toml_file import ScenarioPath
from edgesim.files.tables import read_rows
from edgesim.world.prices.base import Steps, Tariff

_BANDS = ("low", "high")


@dataclass(frozen=True, kw_only=True)
class Series(Tariff):
    """Prices, or carbon intensities, from a CSV or parquet file: columns time_s, price and optionally low and high.

    Time counts from the start of the run and starts at 0 in the file; a price holds until the next row. The series
    begins anew after its end (the last price holds as long as the one before it), or keeps its last price if `repeat`
    is false.
    """

    file: ScenarioPath  # CSV or parquet
    of: PerEnergy  # price that 1 in the file stands for, such as "1 EUR/MWh"
    repeat: bool = True

    @property
    def unit(self) -> str:
        """Return the unit of the prices."""
        return self.of.unit

    def steps(self, path: str) -> Steps:
        """Return it over simulated time. Raises DataError that names file and line."""
        rows = read_rows(self.file.expanduser(), ("time_s", "price"), _BANDS)
        for name, values in rows.columns.items():
            rows.require(np.isfinite(values), name, "a finite number")
        start_s, typical = rows.columns["time_s"], rows.columns["price"]
        if start_s[0] != 0:
            raise rows.refuse(0, f"the first time_s must be 0, got {start_s[0]:g}")
        rows.require(np.append(True, np.diff(start_s) > 0), "time_s", "later than the one before")
        low, high = (rows.columns.get(name, typical) for name in _BANDS)
        rows.require(low <= typical, "low" if "low" in rows.columns else "price", "at most price")
        rows.require(typical <= high, "high" if "high" in rows.columns else "price", "at least price")
        last_s = start_s[-1] - start_s[-2] if len(start_s) > 1 else np.inf
        values = np.column_stack([low, typical, high]) * np.array(self.of.values)
        return Steps(start_s, values, float(start_s[-1] + last_s) if self.repeat else np.inf)


PLUGINS = {"series": Series}
