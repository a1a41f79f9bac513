"""An append-only table in memory: cheap to fill row by row, a typed data frame at the end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from edgesim.records.schema import TABLES, TEXT

_CHUNK_ROWS = 8192


class Table:
    """A column buffer with the columns of one table of the schema."""

    def __init__(self, name: str) -> None:
        self.columns = TABLES[name]
        self._rows: list[tuple[Any, ...]] = []
        self._chunks: list[dict[str, np.ndarray]] = []
        self._packed = 0
        self._committed = 0

    def __len__(self) -> int:
        return self._packed + len(self._rows)

    def append(self, row: tuple[Any, ...]) -> None:
        """Add one row in the order of the schema.

        It is not looked at before its chunk is full or read, to keep this call cheap. Then a wrong number of
        values raises ValueError, and a value that does not fit its column (a fraction as an integer, None) TypeError.
        """
        self._rows.append(row)
        if len(self._rows) >= _CHUNK_ROWS:
            self._pack()

    def extend(self, columns: Mapping[str, Any]) -> None:
        """Add many rows: one array of shape (k,) a column; a single value stands for k equal ones.

        Raises ValueError unless the columns are those of the schema and their lengths agree.
        """
        if columns.keys() != self.columns.keys():
            raise ValueError(f"columns {sorted(columns.keys() ^ self.columns.keys())} are missing or unknown")
        typed = {name: _typed(name, columns[name], dtype) for name, dtype in self.columns.items()}
        lengths = {len(values) for values in typed.values() if values.ndim}
        if len(lengths) > 1:
            raise ValueError(f"columns of different lengths: {sorted(lengths)}")
        rows = lengths.pop() if lengths else 1
        self._pack()
        self._add({name: np.broadcast_to(values, (rows,)) for name, values in typed.items()}, rows)

    def mark(self) -> None:
        """Remember all rows so far as committed: the state after a closed round."""
        self._committed = len(self)

    def frame(self, committed_only: bool = False) -> pd.DataFrame:
        """Return the rows with the types of the schema; on request without those after the last mark."""
        self._pack()
        stop = self._committed if committed_only else len(self)
        data = {name: self._column(name)[:stop] for name in self.columns}
        return pd.DataFrame(data).astype(dict(self.columns))

    def _column(self, name: str) -> np.ndarray:
        empty: np.ndarray = _typed(name, [], self.columns[name])
        return np.concatenate([empty, *(chunk[name] for chunk in self._chunks)])

    def _pack(self) -> None:
        if not self._rows:
            return
        values = dict(zip(self.columns, zip(*self._rows, strict=True), strict=True))
        self._add({name: _typed(name, values[name], dtype) for name, dtype in self.columns.items()}, len(self._rows))
        self._rows.clear()

    def _add(self, chunk: dict[str, np.ndarray], rows: int) -> None:
        self._chunks.append(chunk)
        self._packed += rows


def new_tables() -> dict[str, Table]:
    """Return an empty Table for every table of the schema, by name."""
    return {name: Table(name) for name in TABLES}


def _typed(name: str, values: Any, dtype: str) -> np.ndarray:
    if dtype == TEXT:
        return np.array(values, dtype=object)
    if np.size(values) == 0:
        return np.zeros(0, dtype=dtype)
    try:
        # Not np.array(values, dtype): that would round 2.7 down to an integer without a word.
        return np.array(values).astype(dtype, casting="same_kind", copy=False)
    except TypeError as error:
        raise TypeError(f"column {name!r} takes {dtype}: {error}") from error
