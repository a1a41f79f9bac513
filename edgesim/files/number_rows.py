"""Rows of numbers from a CSV or parquet file, and where in it each stands, so that a fault can be shown there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import nan
from pathlib import Path

import numpy as np
import pyarrow as pa

from edgesim.core.arrays import Arr, Ids
from edgesim.core.errors import DataError
from edgesim.files.parquet import column_names, read_columns
from edgesim.files.reading import csv_records, in_short, quoted


@dataclass(frozen=True, slots=True)
class Rows:
    """Columns of numbers, each of shape (k,), nan where there is none.

    `numbers`: the line (of a parquet file: row) of each, shape (k,); `texts`: the columns as a CSV file has them.
    """

    path: Path
    unit: str  # "line" or "row"
    numbers: Ids
    columns: Mapping[str, Arr]
    texts: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def where(self, index: int) -> str:
        """Return where a row stands, as in "line 3"."""
        return f"{self.unit} {self.numbers[index]}"

    def refuse(self, index: int, fault: str) -> DataError:
        """Return the error that a row has this fault."""
        return DataError(f"{self.path} {self.where(index)}: {fault}")

    def require(self, good: np.ndarray, name: str, needs: str) -> None:
        """Raise DataError with the first row that is not good, shape (k,): what the column needs, and has there."""
        if not good.all():
            index = int(good.argmin())
            found = quoted(self.texts[name][index]) if self.texts else f"{self.columns[name][index]:g}"
            raise self.refuse(index, f"{name} must be {needs}, got {found}")


def read_rows(path: Path, needed: Sequence[str], optional: Sequence[str] = ()) -> Rows:
    """Return the rows of a parquet file, if its name ends so, or of a CSV file: these columns, in any order.

    Raises DataError that names the file if it is damaged, or has other columns or no rows.
    """
    rows = _of_parquet(path, needed, optional) if path.suffix == ".parquet" else _of_csv(path, needed, optional)
    if not len(rows.numbers):
        raise DataError(f"{path}: holds no rows")
    return rows


def _of_csv(path: Path, needed: Sequence[str], optional: Sequence[str]) -> Rows:
    header, records = csv_records(path)
    _check_header(path, header, needed, optional)
    lines: list[int] = []
    texts: dict[str, list[str]] = {name: [] for name in header}
    for line, record in records:
        lines.append(line)
        for name, text in record.items():
            texts[name].append(text)
    columns = {name: np.array([number(text) for text in column]) for name, column in texts.items()}
    return Rows(path, "line", np.array(lines, dtype=np.int64), columns, texts)


def _of_parquet(path: Path, needed: Sequence[str], optional: Sequence[str]) -> Rows:
    header = column_names(path)
    _check_header(path, header, needed, optional)
    table = read_columns(path, header)
    return Rows(path, "row", np.arange(1, len(table) + 1), {name: _numbers(path, name, table[name]) for name in header})


def _numbers(path: Path, name: str, column: pa.ChunkedArray) -> Arr:
    kind = column.type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
        raise DataError(f"{path}: column {name} is {in_short(kind)}, numbers are needed")
    return np.asarray(column.cast(pa.float64(), safe=False).to_numpy(), dtype=np.float64)


def _check_header(path: Path, found: Sequence[str], needed: Sequence[str], optional: Sequence[str]) -> None:
    if sorted(set(found) - set(optional)) != sorted(needed) or len(set(found)) < len(found):
        more = f" and optionally {', '.join(optional)}" if optional else ""
        raise DataError(f"{path}: needs the columns {', '.join(needed)}{more}; got {in_short(', '.join(found))}")


def number(text: str) -> float:
    """Return the number that a text is, nan if it is none."""
    try:
        return float(text)
    except ValueError:
        return nan
