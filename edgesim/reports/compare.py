"""Differences between two runs, value by value, and how far a number may lie from another."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from edgesim.core.errors import ConfigError
from edgesim.records.schema import TABLES
from edgesim.reports.load import Run

_SHARE = re.compile(r"(\d+(?:\.\d+)?(?:e[+-]?\d+)?)\s*%", re.IGNORECASE)
_OR = re.compile(r"\s+or\s+")
_ALLOWED = "must be a number in the unit of the column, a share such as '5 %', or both as in '5 % or 0.1'"


@dataclass(frozen=True)
class Tolerance:
    """How far a number may lie from the stored one: `absolute` in the unit of its column, `relative` as a share of it.

    What is within one of the two is near enough.
    """

    absolute: float = 0.0
    relative: float = 0.0

    def allows(self, stored: Any, found: Any) -> Any:
        """Return whether `found` is near enough, a bool, or an array of them for arrays. NaN is near to nothing."""
        before, after = np.asarray(stored, dtype=np.float64), np.asarray(found, dtype=np.float64)
        with np.errstate(invalid="ignore"):  # an infinite number beside another
            near = np.abs(after - before) <= np.maximum(self.absolute, self.relative * np.abs(before))
        return near if near.ndim else bool(near)

    def __str__(self) -> str:
        shares = [f"{100 * self.relative:g} %"] if self.relative else []
        return " or ".join([*shares, *([f"{self.absolute:g}"] if self.absolute or not shares else [])])


def parse_tolerance(given: Any) -> Tolerance:
    """Return the tolerance of a number, or of a text such as "0.5", "5 %" or "5 % or 0.5".

    Raises ValueError that says what is allowed.
    """
    if isinstance(given, str):
        parts = [_part(text.strip()) for text in _OR.split(given)]
        kinds = [each is not None and each.relative > 0 for each in parts]
        if len(parts) == 1 and parts[0] is not None:
            return parts[0]
        if len(parts) == 2 and None not in parts and sum(kinds) == 1:
            return Tolerance(max(p.absolute for p in parts if p), max(p.relative for p in parts if p))
    elif isinstance(given, int | float) and not isinstance(given, bool) and 0 <= given < math.inf:
        return Tolerance(float(given))
    raise ValueError(f"{_ALLOWED}; got {given!r}")


def _part(text: str) -> Tolerance | None:
    """Return the tolerance of one number or share; None if the text is neither."""
    share = _SHARE.fullmatch(text)
    if share:
        return Tolerance(relative=float(share[1]) / 100)
    try:
        number = float(text)
    except ValueError:
        return None
    return Tolerance(number) if 0 <= number < math.inf else None


_COLUMNS = ["table", "column", "different", "first_row", "a", "b", "max_abs", "max_rel"]
_NO_ROW = "no row"
_WEIGHTS = "weights"

_Key = tuple[str, str]  # a table, or weights, and a column of it


def diff(run_a: Run, run_b: Run, tolerances: Mapping[str, Tolerance] | None = None) -> pd.DataFrame:
    """Return a row for each table column and weight tensor (flattened) that differs; no row if the runs are identical.

    Columns: table, column, different (rows that differ or have no partner), first_row (the first of them, from 0), a
    and b (the values there), max_abs and max_rel (largest difference of numbers, the latter relative to the larger
    magnitude). NaN equals NaN. The manifest is not compared: it holds host times and versions.

    `tolerances`: how far numbers of the second run may lie from those of the first, by TABLE.COLUMN, by the name of
    columns in all tables, or of "weights"; the first of these that is given holds. Raises ConfigError for a name that
    no column has.
    """
    a, b = _columns(run_a), _columns(run_b)
    allowed = _allowed(tolerances or {}, a | b)
    nothing = np.zeros(0)
    found = {key: _difference(a.get(key, nothing), b.get(key, nothing), allowed.get(key)) for key in a | b}
    rows = [[*key, *difference] for key, difference in found.items() if difference]
    return pd.DataFrame(rows, columns=_COLUMNS)


def _allowed(tolerances: Mapping[str, Tolerance], keys: Iterable[_Key]) -> dict[_Key, Tolerance]:
    """Return the tolerances of columns and tensors that have one."""
    found, used = dict[_Key, Tolerance](), set[str]()
    for table, column in keys:
        names = [_WEIGHTS] if table.startswith(f"{_WEIGHTS} ") else [f"{table}.{column}", column]
        given = [name for name in names if name in tolerances]
        used |= {*given}
        if given:
            found[table, column] = tolerances[given[0]]
    if unknown := [name for name in tolerances if name not in used]:
        raise ConfigError(f"--tolerance: these runs have no column {unknown[0]!r}, such as rounds.energy_j or accuracy")
    return found


def _columns(run: Run) -> dict[_Key, np.ndarray]:
    columns: dict[_Key, np.ndarray] = {}
    for table in TABLES:
        columns |= {(table, str(name)): values.to_numpy() for name, values in run.table(table).items()}
    for which in run.saved_weights:
        columns |= {(f"{_WEIGHTS} {which}", name): array.ravel() for name, array in run.weights(which).items()}
    return columns


def _difference(a: np.ndarray, b: np.ndarray, tolerance: Tolerance | None = None) -> list[Any]:
    shared = min(len(a), len(b))
    x, y = a[:shared], b[:shared]
    rows = np.flatnonzero((x != y) & ~(pd.isna(x) & pd.isna(y)))
    if tolerance and np.issubdtype(x.dtype, np.number) and np.issubdtype(y.dtype, np.number):
        rows = rows[~tolerance.allows(x[rows], y[rows])]
    different = rows.size + max(len(a), len(b)) - shared
    if not different:
        return []
    first = int(rows[0]) if rows.size else shared
    return [different, first, *(v[first] if first < len(v) else _NO_ROW for v in (a, b)), *_largest(x[rows], y[rows])]


def _largest(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    if not (x.size and np.issubdtype(x.dtype, np.number) and np.issubdtype(y.dtype, np.number)):
        return np.nan, np.nan
    absolute = np.abs(x.astype(np.float64) - y)
    magnitude = np.maximum(np.abs(x), np.abs(y))
    with np.errstate(invalid="ignore"):  # a deadline beside none is infinitely far off
        return float(absolute.max()), float((absolute / magnitude).max())
