"""Reads parquet files that may be damaged: each fault is one short line, and what there is no room for is refused."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from edgesim.core.errors import DataError
from edgesim.files.reading import Kind, check_regular, check_room, in_short, reading

_VALUE_BYTES = 8  # a number; what packs equal values small is a whole column again in memory


def column_names(path: Path, kind: Kind = DataError, content: bytes | None = None) -> list[str]:
    """Return the columns of a parquet file; `content`: its bytes, if they have been read.

    Raises `kind` if it is none, or if two have one name.
    """
    with reading(path, "parquet file", kind), _opened(path, kind, content) as file:
        names = [str(name) for name in file.schema_arrow.names]
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        raise kind(f"{path}: has several columns of the name {in_short(doubled[0])}")
    return names


def read_columns(path: Path, columns: Sequence[str], kind: Kind = DataError, content: bytes | None = None) -> pa.Table:
    """Return these columns of a parquet file, which has them, in this order.

    Raises `kind` if it is no such file, damaged, or promises more than the memory of this machine holds.
    """
    with reading(path, "parquet file", kind), _opened(path, kind, content) as file:
        about = file.metadata
        groups = (about.row_group(place) for place in range(about.num_row_groups))
        rows = sum(max(group.num_rows, 0) for group in groups)
        check_room(max(rows, about.num_rows) * len(columns) * _VALUE_BYTES, path, kind)
        table = file.read(columns=list(columns)).select(list(columns))
        table.validate(full=True)
    return table


def _opened(path: Path, kind: Kind, content: bytes | None) -> pq.ParquetFile:
    if content is not None:
        return pq.ParquetFile(pa.BufferReader(content))
    check_regular(path, kind)
    return pq.ParquetFile(path)
