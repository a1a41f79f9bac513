"""Measured availability."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, nan
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from edgesim.config.paths import ScenarioPath
from edgesim.contracts import Arr, Ids
from edgesim.errors import DataError
from edgesim.rng import Key
from edgesim.world.availability import Availability
from edgesim.world.rows import Rows

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
class Trace:
    """Intervals from a CSV or parquet file with the columns device, start, end: on in [start, end), else off.

    Devices are numbered from 0, times are seconds since the start of the run. Rows may have any order. A device without
    rows is off for ever.
    """

    file: ScenarioPath

    def build(self, n: int, key: Key, path: str) -> Availability:
        """Return when n devices can be reached. Raises DataError naming file and line (of a parquet file: row)."""
        rows = _read(self.file.expanduser())
        _check(rows, n)
        device, start_s, end_s = (rows.columns[name] for name in _COLUMNS)
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


# --- files ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Rows(Rows):
    """What a file holds, as numbers (nan: no number) and as it is written."""

    written: Mapping[str, list[Any]]

    def require(self, good: np.ndarray, name: str, needs: str) -> None:
        if not good.all():
            index = int(good.argmin())
            raise self.refuse(index, f"{name} must be {needs}, got {self.written[name][index]!r}")


def _check(rows: _Rows, n: int) -> None:
    if not len(rows.numbers):
        raise DataError(f"{rows.path}: holds no intervals")
    device, start_s, end_s = (rows.columns[name] for name in _COLUMNS)
    rows.require((device >= 0) & (device < n) & (device == np.floor(device)), "device", f"a number from 0 to {n - 1}")
    for name in ("start", "end"):
        time_s = rows.columns[name]
        rows.require(np.isfinite(time_s) & (time_s >= 0), name, "a finite number of seconds of at least 0")
    rows.require(end_s > start_s, "end", "after start")


def _read(path: Path) -> _Rows:
    parquet = path.suffix == ".parquet"
    try:
        table = pq.read_table(path) if parquet else _read_csv(path)
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error
    except pa.ArrowException as error:
        raise DataError(f"{path}: damaged or of another format: {error}") from error
    if sorted(table.column_names) != sorted(_COLUMNS):
        raise DataError(f"{path}: needs the columns {', '.join(_COLUMNS)}; got {', '.join(table.column_names)}")
    rows = list(zip(*(table[name].to_pylist() for name in _COLUMNS), strict=True))
    # a blank line is three empty strings
    kept = [index for index, row in enumerate(rows) if any(value != "" for value in row)]
    written = {name: [rows[index][place] for index in kept] for place, name in enumerate(_COLUMNS)}
    columns = {name: np.array([_number(value) for value in values]) for name, values in written.items()}
    numbers = np.array(kept, dtype=np.int64) + (1 if parquet else 2)
    return _Rows(path, "row" if parquet else "line", numbers, columns, written)


def _read_csv(path: Path) -> pa.Table:
    # as text and with blank lines, so that faults can be shown as they are written, with their lines
    return pa.csv.read_csv(
        path,
        read_options=pa.csv.ReadOptions(use_threads=False),
        parse_options=pa.csv.ParseOptions(ignore_empty_lines=False),
        convert_options=pa.csv.ConvertOptions(column_types=dict.fromkeys(_COLUMNS, pa.string())),
    )


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return nan


PARTS = {"trace": Trace}
