"""Tables of numbers in CSV and parquet files. They may be damaged; each fault is one short line with its place."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from edgesim.core.arrays import Arr, Ids
from edgesim.core.errors import DataError
from edgesim.files.reading import Kind, check_regular, check_room, check_text, csv_records, in_short, quoted, reading

if TYPE_CHECKING:
    import pandas as pd


_VALUE_BYTES = 8  # of a number in memory, where a compressed column has its full size


def column_names(path: Path, kind: Kind = DataError, content: bytes | None = None) -> list[str]:
    """Return the columns of a parquet file; `content`: its bytes, if they have been read.

    Raises `kind` if it is no parquet file, or if two columns have the same name.
    """
    with reading(path, "parquet file", kind), _opened(path, kind, content) as file:
        names = [str(name) for name in file.schema_arrow.names]
    check_names(path, names, kind)
    return names


def check_names(path: Path, names: Sequence[str], kind: Kind = DataError) -> None:
    """Raise `kind` if two columns of a file have the same name."""
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        raise kind(f"{path}: has several columns of the name {in_short(doubled[0])}")


def read_columns(
    path: Path, columns: Sequence[str], kind: Kind = DataError, content: bytes | None = None, limit: int | None = None
) -> pa.Table:
    """Return existing columns of a parquet file in this order, all rows or only the first `limit`.

    Raises `kind` if it is no parquet file, damaged, or larger than the memory of this machine.
    """
    with reading(path, "parquet file", kind), _opened(path, kind, content) as file:
        about = file.metadata
        sizes = [max(about.row_group(place).num_rows, 0) for place in range(about.num_row_groups)]
        rows = sum(sizes)
        check_room(max(rows, about.num_rows) * len(columns) * _VALUE_BYTES, path, kind)
        # Threads cost more than they save in tables of few values, and a study reads hundreds of them.
        threads = rows * len(columns) > 1_000_000
        if limit is None or limit >= rows:
            table = file.read(columns=list(columns), use_threads=threads)
        else:
            groups = int(np.searchsorted(np.cumsum(sizes), limit)) + 1
            table = file.read_row_groups(range(groups), columns=list(columns), use_threads=threads).slice(0, limit)
        table = table.select(list(columns))
        table.validate(full=True)
    return table


def _opened(path: Path, kind: Kind, content: bytes | None) -> pq.ParquetFile:
    if content is not None:
        return pq.ParquetFile(pa.BufferReader(content))
    check_regular(path, kind)
    return pq.ParquetFile(path)


_BYTES_PER_BYTE = 8  # most bytes in memory per byte of a file: a number of one digit
_NUMBER = re.compile(r"[-+](\d+\.?\d*(e[-+]?\d+)?|inf|nan)")


def read_frame(path: Path, kind: Kind = DataError) -> pd.DataFrame:
    """Return the rows of a CSV file with a header. Raises `kind` if it is not CSV, damaged or too large."""
    import pandas as pd

    check_room(_BYTES_PER_BYTE * check_text(path, kind), path, kind)
    with reading(path, "CSV file", kind):
        frame = pd.read_csv(path, low_memory=False)  # otherwise parts of a long column may differ in type
    if not isinstance(frame.index, pd.RangeIndex):  # pandas took values without a name for names of rows
        raise kind(f"{path}: rows have more values than the first line has names")
    return frame


def csv_text(frame: pd.DataFrame, header: bool = True) -> str:
    """Return a data frame as CSV with a header, all digits of numbers, and newlines at the ends of lines.

    A spreadsheet would run a text that begins with = + - or @ as a formula. So such texts and column names get an
    apostrophe before them, unless they are numbers.
    """
    inert: dict[str, pd.Series] = {}
    for name in frame.select_dtypes(["object", "string"]):
        changed = {each: f"'{each}" for each in {*frame[name]} if isinstance(each, str) and _is_formula(each)}
        if changed:
            inert[str(name)] = frame[name].replace(changed)
    names = {name: f"'{name}" for name in frame if _is_formula(str(name))}
    return frame.assign(**inert).rename(columns=names).to_csv(index=False, header=header, lineterminator="\n")


def _is_formula(text: str) -> bool:
    return text.startswith(("=", "+", "-", "@", "\t", "\r")) and not _NUMBER.fullmatch(text)


@dataclass(frozen=True, slots=True)
class Rows:
    """Columns of numbers, each of shape (k,), nan where a value is no number.

    `numbers`: the line of each row (in a parquet file: its number), shape (k,); `texts`: the texts of a CSV file.
    """

    path: Path
    unit: str  # "line" or "row"
    numbers: Ids
    columns: Mapping[str, Arr]
    texts: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def where(self, index: int) -> str:
        """Return the place of a row in its file, such as "line 3"."""
        return f"{self.unit} {self.numbers[index]}"

    def refuse(self, index: int, fault: str) -> DataError:
        """Return the error for a fault of a row."""
        return DataError(f"{self.path} {self.where(index)}: {fault}")

    def require(self, good: np.ndarray, name: str, needs: str) -> None:
        """Raise DataError for the first row where `good`, shape (k,), is False: the column must be `needs`."""
        if not good.all():
            index = int(good.argmin())
            found = quoted(self.texts[name][index]) if self.texts else f"{self.columns[name][index]:g}"
            raise self.refuse(index, f"{name} must be {needs}, got {found}")


def read_rows(path: Path, needed: Sequence[str], optional: Sequence[str] = ()) -> Rows:
    """Return the rows of a file NAME.parquet, or else of a CSV file: these columns, in any order.

    Raises DataError that names the file if it is damaged, or has other columns or no rows.
    """
    if path.suffix == ".parquet":
        header = column_names(path)
        _check_header(path, header, needed, optional)
        table = read_columns(path, header)
        columns: dict[str, Arr] = {}
        for name in header:
            kind = table[name].type
            if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
                raise DataError(f"{path}: column {name} is {in_short(kind)}, numbers are needed")
            columns[name] = np.asarray(table[name].cast(pa.float64(), safe=False).to_numpy(), dtype=np.float64)
        rows = Rows(path, "row", np.arange(1, len(table) + 1), columns)
    else:
        header, records = csv_records(path)
        _check_header(path, header, needed, optional)
        lines: list[int] = []
        texts: dict[str, list[str]] = {name: [] for name in header}
        for line, record in records:
            lines.append(line)
            for name, text in record.items():
                texts[name].append(text)
        columns = {name: np.array([number(text) for text in column]) for name, column in texts.items()}
        rows = Rows(path, "line", np.array(lines, dtype=np.int64), columns, texts)
    if not len(rows.numbers):
        raise DataError(f"{path}: holds no rows")
    return rows


def _check_header(path: Path, found: Sequence[str], needed: Sequence[str], optional: Sequence[str]) -> None:
    if sorted(set(found) - set(optional)) != sorted(needed) or len(set(found)) < len(found):
        more = f" and optionally {', '.join(optional)}" if optional else ""
        raise DataError(f"{path}: needs the columns {', '.join(needed)}{more}; got {in_short(', '.join(found))}")


def number(text: str) -> float:
    """Return a text as a number, nan if it is none."""
    try:
        return float(text)
    except ValueError:
        return nan
