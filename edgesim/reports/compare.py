"""Where two runs differ, value by value: the check that a rerun or another backend gave the same result."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from edgesim.records.schema import TABLES
from edgesim.reports.load import Run

_COLUMNS = ["table", "column", "different", "first_row", "a", "b", "max_abs", "max_rel"]
_NO_ROW = "no row"


def diff(run_a: Run, run_b: Run) -> pd.DataFrame:
    """Return a row for each table column and weight tensor (flattened) that differs; no row if the runs are identical.

    Columns: table, column, different (rows that differ or have no partner), first_row (the first of them, from 0), a
    and b (the values there), max_abs and max_rel (largest difference of numbers, the latter relative to the larger
    magnitude). NaN equals NaN. The manifest is not compared: it holds host times and versions.
    """
    a, b = _columns(run_a), _columns(run_b)
    nothing = np.zeros(0)
    found = {key: _difference(a.get(key, nothing), b.get(key, nothing)) for key in a | b}
    rows = [[*key, *difference] for key, difference in found.items() if difference]
    return pd.DataFrame(rows, columns=_COLUMNS)


def _columns(run: Run) -> dict[tuple[str, str], np.ndarray]:
    columns: dict[tuple[str, str], np.ndarray] = {}
    for table in TABLES:
        columns |= {(table, str(name)): values.to_numpy() for name, values in run.table(table).items()}
    for which in run.saved_weights:
        columns |= {(f"weights {which}", name): array.ravel() for name, array in run.weights(which).items()}
    return columns


def _difference(a: np.ndarray, b: np.ndarray) -> list[Any]:
    shared = min(len(a), len(b))
    x, y = a[:shared], b[:shared]
    rows = np.flatnonzero((x != y) & ~(pd.isna(x) & pd.isna(y)))
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
