"""Differences between two runs, value by value, and tolerances for them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from edgesim.core.errors import ConfigError
from edgesim.records.run import RecordedRun
from edgesim.records.schema import TABLES

_SHARE = re.compile(r"(\d+(?:\.\d+)?(?:e[+-]?\d+)?)\s*%", re.IGNORECASE)
_OR = re.compile(r"\s+or\s+")
_ALLOWED = "must be a number in the unit of the column, a share such as '5 %', or both as in '5 % or 0.1'"


@dataclass(frozen=True)
class Tolerance:
    """Largest distance of a number from the stored one: `absolute` in the unit of its column, `relative` as a share.

    A number within one of the two is near enough.
    """

    absolute: float = 0.0
    relative: float = 0.0

    def allows(self, stored: Any, found: Any) -> Any:
        """Compare numbers: return True if `found` is near enough, or an array of bool for arrays. NaN is never near."""
        before, after = np.asarray(stored, dtype=np.float64), np.asarray(found, dtype=np.float64)
        with np.errstate(invalid="ignore"):  # infinity minus infinity
            near = np.abs(after - before) <= np.maximum(self.absolute, self.relative * np.abs(before))
        return near if near.ndim else bool(near)

    def __str__(self) -> str:
        shares = [f"{100 * self.relative:g} %"] if self.relative else []
        return " or ".join([*shares, *([f"{self.absolute:g}"] if self.absolute or not shares else [])])


def parse_tolerance(given: Any) -> Tolerance:
    """Return the tolerance given as a number or as a text such as "0.5", "5 %" or "5 % or 0.5".

    Raises ValueError, whose text lists the allowed forms.
    """
    if isinstance(given, str):
        parts: list[Tolerance] = []
        for each in map(str.strip, _OR.split(given)):
            share = _SHARE.fullmatch(each)
            try:
                number = float(share[1] if share else each)
            except ValueError:
                number = math.nan
            if share:
                parts.append(Tolerance(relative=number / 100))
            elif 0 <= number < math.inf:
                parts.append(Tolerance(number))
            else:
                break
        else:
            if len(parts) == 1:
                return parts[0]
            if len(parts) == 2 and sum(part.relative > 0 for part in parts) == 1:
                return Tolerance(max(part.absolute for part in parts), max(part.relative for part in parts))
    elif isinstance(given, int | float) and not isinstance(given, bool) and 0 <= given < math.inf:
        return Tolerance(float(given))
    raise ValueError(f"{_ALLOWED}; got {given!r}")


_COLUMNS = ["table", "column", "different", "first_row", "a", "b", "max_abs", "max_rel"]
_NO_ROW = "no row"
_WEIGHTS = "weights"

_Key = tuple[str, str]  # a table, or weights, and a column of it


def diff(run_a: RecordedRun, run_b: RecordedRun, tolerances: Mapping[str, Tolerance] | None = None) -> pd.DataFrame:
    """Return a row for each table column and weight tensor (flattened) that differs between two runs.

    Columns: table, column, different (rows that differ or have no partner), first_row (the first of them, from 0), a
    and b (the values there), max_abs and max_rel (largest difference of numbers, the latter relative to the larger
    magnitude). NaN equals NaN. The manifest is not compared: it holds host times and versions.

    `tolerances`: allowed distances of numbers in the second run from the first, by TABLE.COLUMN, by the name of columns
    in all tables, or by "weights". TABLE.COLUMN goes before the name alone. Raises ConfigError for a name that no
    column has.
    """
    a, b = _columns(run_a), _columns(run_b)
    given, used = tolerances or {}, set[str]()
    allowed = dict[_Key, Tolerance]()
    for table, column in a | b:
        names = [_WEIGHTS] if table.startswith(f"{_WEIGHTS} ") else [f"{table}.{column}", column]
        known = [name for name in names if name in given]
        used |= {*known}
        if known:
            allowed[table, column] = given[known[0]]
    if unknown := [name for name in given if name not in used]:
        raise ConfigError(f"--tolerance: these runs have no column {unknown[0]!r}, such as rounds.energy_j or accuracy")
    nothing = np.zeros(0)
    found = {key: _difference(a.get(key, nothing), b.get(key, nothing), allowed.get(key)) for key in a | b}
    rows = [[*key, *difference] for key, difference in found.items() if difference]
    return pd.DataFrame(rows, columns=_COLUMNS)


def _columns(run: RecordedRun) -> dict[_Key, np.ndarray]:
    columns: dict[_Key, np.ndarray] = {}
    for table in TABLES:
        columns |= {(table, str(name)): values.to_numpy() for name, values in run.table(table).items()}
    for which in run.saved_weights:
        columns |= {(f"{_WEIGHTS} {which}", name): array.ravel() for name, array in run.weights(which).items()}
    return columns


def _difference(a: np.ndarray, b: np.ndarray, tolerance: Tolerance | None = None) -> list[Any]:
    """Return a row of `diff` from its column "different" on, or nothing if the two arrays are alike."""
    shared = min(len(a), len(b))
    x, y = a[:shared], b[:shared]
    numeric = np.issubdtype(x.dtype, np.number) and np.issubdtype(y.dtype, np.number)
    rows = np.flatnonzero((x != y) & ~(pd.isna(x) & pd.isna(y)))
    if tolerance and numeric:
        rows = rows[~tolerance.allows(x[rows], y[rows])]
    different = rows.size + max(len(a), len(b)) - shared
    if not different:
        return []
    first = int(rows[0]) if rows.size else shared
    max_abs = max_rel = np.nan
    if rows.size and numeric:
        absolute = np.abs(x[rows].astype(np.float64) - y[rows])
        magnitude = np.maximum(np.abs(x[rows]), np.abs(y[rows]))
        with np.errstate(invalid="ignore"):  # a deadline beside none is infinitely far off
            max_abs, max_rel = float(absolute.max()), float((absolute / magnitude).max())
    return [different, first, *(v[first] if first < len(v) else _NO_ROW for v in (a, b)), max_abs, max_rel]
