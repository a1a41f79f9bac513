"""Append-only tables in memory, filled row by row and read as typed data frames, and the types of their rows."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from edgesim.core.errors import ContractError
from edgesim.records.schema import TABLES, TEXT, recorded, typed

if TYPE_CHECKING:
    import pandas as pd


_CHUNK_ROWS = 2048  # few enough to fit into the processor's cache when they are packed
_SMALL = np.iinfo(np.int32).max


class _Chunk(NamedTuple):
    """Consecutive rows of a table, from the index `first` on."""

    first: int
    rows: int
    columns: dict[str, np.ndarray]


class Table:
    """A column buffer with the recorded columns of one table of the schema."""

    def __init__(self, name: str) -> None:
        self.columns = recorded(name)
        if name in ROWS and columns_of(ROWS[name]) != tuple(self.columns):
            raise ContractError(f"{ROWS[name].__name__} must have the columns of the table {name!r}, in their order")
        self._rows: list[tuple[Any, ...]] = []
        self._chunks: list[_Chunk] = []
        self._packed = 0
        self._committed = 0
        self._released = 0

    def __len__(self) -> int:
        return self._packed + len(self._rows)

    @property
    def committed(self) -> int:
        """Number of committed rows, counted from the first one."""
        return self._committed

    def append(self, row: tuple[Any, ...]) -> int:
        """Add one row in the order of the schema. Return its index.

        To keep this call cheap, the row is checked only when its chunk is full or read. Then a wrong number of values
        raises ValueError, and a value that does not fit its column (a fraction as an integer, None) TypeError.
        """
        held = len(self._rows)
        index = self._packed + held
        self._rows.append(row)
        if held + 1 >= _CHUNK_ROWS:
            self._pack()
        return index

    def amend(self, row: int, column: str, value: Any) -> None:
        """Replace one value of a row, by the index that `append` returned. Frames taken before do not change.

        Raises IndexError if there is no such row or it is released, KeyError if there is no such column, and TypeError
        if the value does not fit the column.
        """
        if not self._released <= row < len(self):
            raise IndexError(f"row {row} of {len(self)}, of which the first {self._released} are released")
        fitting = _typed(column, [value], self.columns[column])[0]
        if row >= self._packed:
            values = dict(zip(self.columns, self._rows[row - self._packed], strict=True))
            self._rows[row - self._packed] = tuple((values | {column: fitting}).values())
            return
        chunk = self._chunks[bisect_right(self._chunks, row, key=lambda chunk: chunk.first) - 1]
        held = chunk.columns[column].astype(fitting.dtype if isinstance(fitting, np.generic) else object)
        held[row - chunk.first] = fitting
        chunk.columns[column] = held

    def extend(self, columns: Mapping[str, Any]) -> None:
        """Add many rows: one array of shape (k,) per column. A single value stands for k equal ones.

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

    def mark(self, rows: int | None = None) -> None:
        """Remember the first `rows` rows as committed (None: all so far): the state after a closed round.

        Raises ValueError if there are fewer rows, or more are committed already.
        """
        committed = len(self) if rows is None else rows
        if not self._committed <= committed <= len(self):
            raise ValueError(f"{committed} of {len(self)} rows, of which {self._committed} are committed already")
        self._committed = committed

    def release(self, rows: int) -> None:
        """Forget the first `rows` rows, which can then no longer be read or amended.

        Raises ValueError if fewer rows are committed.
        """
        if rows > self._committed:
            raise ValueError(f"{rows} rows, of which {self._committed} are committed")
        self._released = max(rows, self._released)
        self._chunks = [chunk for chunk in self._chunks if chunk.first + chunk.rows > rows]

    def frame(self, committed_only: bool = False, since: int = 0, until: int | None = None) -> pd.DataFrame:
        """Return the rows from index `since` up to, not including, `until` (None: all) with the types of the schema.

        `committed_only`: leave out rows after the last mark. Raises IndexError if some of the rows are released.
        """
        import pandas as pd  # slow to import; checking a scenario does not need it

        stop = self._committed if committed_only else len(self)
        stop = stop if until is None else min(stop, until)
        data = {name: self.column(name, since, stop) for name in self.columns}
        return typed(pd.DataFrame(data, copy=False), self.columns)

    def column(self, name: str, since: int = 0, until: int | None = None) -> np.ndarray:
        """Return the values of one column in the rows from `since` up to, not including, `until` (None: all).

        Raises IndexError if some of the rows are released.
        """
        if since < self._released:
            raise IndexError(f"the rows before {self._released} are released, asked for those from {since} on")
        self._pack()
        stop = self._packed if until is None else until
        empty: np.ndarray = _typed(name, [], self.columns[name])
        wanted = [chunk for chunk in self._chunks if chunk.first < stop and chunk.first + chunk.rows > since]
        found = [chunk.columns[name][max(since - chunk.first, 0) : stop - chunk.first] for chunk in wanted]
        return np.concatenate([empty, *found])

    def _pack(self) -> None:
        if not self._rows:
            return
        values = dict(zip(self.columns, zip(*self._rows, strict=True), strict=True))
        typed = {name: _typed(name, values[name], dtype) for name, dtype in self.columns.items()}
        self._add({name: _small(column) for name, column in typed.items()}, len(self._rows))
        self._rows.clear()

    def _add(self, chunk: dict[str, np.ndarray], rows: int) -> None:
        self._chunks.append(_Chunk(self._packed, rows, chunk))
        self._packed += rows


def _small(column: np.ndarray) -> np.ndarray:
    """Return the same values in less memory: one for a whole chunk if all are equal, or 32-bit integers."""
    if (column == column[0]).all():
        return np.broadcast_to(column[0], column.shape)
    if column.dtype == np.int64 and np.abs(column).max() <= _SMALL:
        return column.astype(np.int32)
    return column


def new_tables() -> dict[str, Table]:
    """Return an empty Table for every table of the schema, by name."""
    return {name: Table(name) for name in TABLES}


def _typed(name: str, values: Any, dtype: str) -> np.ndarray:
    if dtype == TEXT:
        return np.array(values, dtype=object)
    array = np.array(values)
    if not array.size:
        return np.zeros(0, dtype=dtype)
    try:
        # np.array(values, dtype) would round 2.7 down to an integer without an error.
        return array.astype(dtype, casting="same_kind", copy=False)
    except TypeError as error:
        raise TypeError(f"column {name!r} takes {dtype}: {error}") from error


class JobRow(NamedTuple):
    """A row of the jobs table. edgesim.records.schema defines its columns, and those of all rows below."""

    job: int
    device: int
    round: int
    base_version: int
    task: str
    submodel: str
    sent_s: float
    down_s: float
    compute_s: float
    up_s: float
    link_wait_s: float
    wait_s: float
    end_s: float
    outcome: str
    lacked_s: float
    flops: float
    down_bytes: int
    up_bytes: int
    peer_bytes: int
    down_j: float
    compute_j: float
    up_j: float
    peer_j: float
    link_j: float
    edge: int


class EdgeJobRow(NamedTuple):
    """A row of the edges table."""

    order: int
    edge: int
    tier: int
    asked_by: int
    round: int
    base_version: int
    sent_s: float
    down_s: float
    work_s: float
    up_s: float
    link_wait_s: float
    end_s: float
    outcome: str
    rounds: int
    asked: int
    used: int
    late: int
    samples: int
    server_s: float
    down_bytes: int
    up_bytes: int
    link_j: float


class RoundRow(NamedTuple):
    """A row of the rounds table, without the columns that follow from the jobs of a finished run."""

    round: int
    version: int
    start_s: float
    now_s: float
    asked: int
    used: int
    late: int
    closed_by: str
    deadline_s: float
    staleness_mean: float
    server_s: float
    flops: float
    down_bytes: int
    up_bytes: int
    energy_j: float
    active_j: float
    idle_j: float
    participant_j: float
    energy_network_j: float
    energy_server_j: float
    total_flops: float
    total_down_bytes: int
    total_up_bytes: int
    total_energy_j: float
    total_active_j: float
    total_idle_j: float
    total_participant_j: float
    total_energy_network_j: float
    total_energy_server_j: float
    total_cost_low: float
    total_cost: float
    total_cost_high: float
    total_co2e_low_g: float
    total_co2e_g: float
    total_co2e_high_g: float


class EvaluationRow(NamedTuple):
    """A row of the evals table."""

    round: int
    version: int
    now_s: float
    split: str
    loss: float
    accuracy: float
    samples: int


class MetricRow(NamedTuple):
    """A row of the metrics table."""

    round: int
    name: str
    device: int
    value: float


class CostRow(NamedTuple):
    """A row of the costs table."""

    round: int
    item: str
    cost_low: float
    cost: float
    cost_high: float
    co2e_low_g: float
    co2e_g: float
    co2e_high_g: float


# Types of rows by table. The devices table is not written row by row.
ROWS: Mapping[str, type[tuple[object, ...]]] = {
    "jobs": JobRow,
    "rounds": RoundRow,
    "evals": EvaluationRow,
    "metrics": MetricRow,
    "costs": CostRow,
    "edges": EdgeJobRow,
}


def columns_of(row: type[tuple[object, ...]]) -> tuple[str, ...]:
    """Return the names of the columns of a kind of row, in order."""
    names: tuple[str, ...] = row._fields  # type: ignore[attr-defined]
    return names
