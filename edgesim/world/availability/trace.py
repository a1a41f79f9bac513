"""Measured availability."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import numpy as np

from edgesim.config.toml_file import ScenarioPath
from edgesim.core.arrays import Arr, Ids
from edgesim.core.rng import Key
from edgesim.files.tables import read_rows
from edgesim.world.availability.base import Availability, AvailabilityPart

_COLUMNS = ("device", "start", "end")


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Intervals(Availability):
    """Intervals sorted by device and start, disjoint and not touching; the last belongs to nobody and never starts."""

    device: Ids  # shape (m,)
    start_s: Arr
    end_s: Arr

    def on_from_s(self, ids: Ids, from_s: Arr) -> Arr:
        """Return when devices are on from `from_s` on, shape (k,)."""
        last = self._last(ids, from_s)
        there = (self.device[last] == ids) & (from_s < self.end_s[last])
        following = np.where(self.device[last + 1] == ids, self.start_s[last + 1], inf)
        on_from_s: Arr = np.where(there, from_s, following)
        return on_from_s

    def until_s(self, ids: Ids, now_s: Arr | float) -> Arr:
        """Return when the intervals end in which devices are, shape (k,); inf if they are in none."""
        last = self._last(ids, now_s)
        there = (self.device[last] == ids) & (now_s < self.end_s[last])
        until_s: Arr = np.where(there, self.end_s[last], inf)
        return until_s

    def _last(self, ids: Ids, now_s: Arr | float) -> Ids:
        """Return for each device the last interval that has begun; one of another device (-1: the last) if none has."""
        found: Ids = np.searchsorted(_sortable(self.device, self.start_s), _sortable(ids, now_s), side="right") - 1
        return found


def _sortable(device: Ids, time_s: Arr | float) -> np.ndarray:
    # NumPy orders complex numbers by their real parts and equal ones by their imaginary parts
    both = np.empty(len(device), dtype=np.complex128)
    both.real, both.imag = device, time_s
    return both


@dataclass(frozen=True, kw_only=True)
class AvailabilityTrace(AvailabilityPart):
    """Intervals from a CSV or parquet file with the columns device, start, end: on in [start, end), else off.

    Devices are numbered from 0, times are seconds since the start of the run. Rows may have any order. A device without
    rows is off for ever.
    """

    file: ScenarioPath  # CSV or parquet

    def build(self, n: int, key: Key, path: str) -> Availability:
        """Return when n devices can be reached. Raises DataError naming file and line (of a parquet file: row)."""
        rows = read_rows(self.file.expanduser(), _COLUMNS)
        device, start_s, end_s = (rows.columns[name] for name in _COLUMNS)
        known = (device >= 0) & (device < n) & (device == np.floor(device))
        rows.require(known, "device", f"a number from 0 to {n - 1}")
        for name, time_s in (("start", start_s), ("end", end_s)):
            rows.require(np.isfinite(time_s) & (time_s >= 0), name, "a finite number of seconds of at least 0")
        rows.require(end_s > start_s, "end", "after start")
        order = np.lexsort((start_s, device))
        device, start_s, end_s = device[order], start_s[order], end_s[order]
        after = np.flatnonzero((device[1:] == device[:-1]) & (start_s[1:] < end_s[:-1]))
        if len(after):
            first, second = order[after[0]], order[after[0] + 1]
            raise rows.refuse(max(first, second), f"overlaps the interval of {rows.where(min(first, second))}")
        # where one interval ends as the next begins, nobody goes off
        joined = (device[1:] == device[:-1]) & (start_s[1:] == end_s[:-1])
        begins, ends = np.append(True, ~joined), np.append(~joined, True)
        return Intervals(
            n=n,
            device=np.append(device[begins], n).astype(np.int64),
            start_s=np.append(start_s[begins], inf),
            end_s=np.append(end_s[ends], inf),
        )


PLUGINS = {"trace": AvailabilityTrace}
