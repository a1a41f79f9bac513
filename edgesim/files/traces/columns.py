"""Columns of a table to be written as CSV or parquet."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from edgesim.core.errors import DataError
from edgesim.files.atomic import whole_file

Columns: TypeAlias = dict[str, list[Any]]


def write_columns(columns: Columns, path: Path) -> None:
    """Write columns atomically, to NAME.parquet as parquet and to other names as CSV.

    Raises DataError if the file cannot be written, or if there are no rows.
    """
    if not all(columns.values()):
        raise DataError(f"{path}: nothing to write: no row is left")
    try:
        with whole_file(path) as growing:
            if path.suffix == ".parquet":
                pq.write_table(pa.table(columns), growing)
            else:
                _write_csv(columns, growing)
    except OSError as error:
        raise DataError(f"{path}: cannot be written: {error.strerror}") from error


def _write_csv(columns: Columns, path: Path) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([columns, *zip(*columns.values(), strict=True)])


def append(columns: Columns, *row: Any) -> None:
    """Append a row, one value a column in their order."""
    for column, value in zip(columns.values(), row, strict=True):
        column.append(value)
