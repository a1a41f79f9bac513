"""Writes the tables of runs as CSV, Arrow or Parquet files: one file per table, with the run's name in each row."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import Any, Protocol

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from edgesim.files.atomic import whole_file
from edgesim.files.tables import csv_text
from edgesim.records.schema import INT, REAL, TABLES, TEXT
from edgesim.reports.export.exported import Exported, settings

RUN = "run"  # the first column of every table
_TYPES = {INT: pa.int64(), REAL: pa.float64(), TEXT: pa.string()}
_SETTINGS = {"key": TEXT, "value": TEXT}
ENDINGS = {"csv": ".csv", "arrow": ".arrow", "parquet": ".parquet"}  # of files, by form


class _Sink(Protocol):
    def write_table(self, table: pa.Table) -> None: ...

    def close(self) -> None: ...


class _Csv:
    """A CSV file to which tables are appended. Numbers keep all their digits."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._file = path.open("w", encoding="utf-8", newline="")
        self._file.write(csv_text(schema.empty_table().to_pandas()))

    def write_table(self, table: pa.Table) -> None:
        self._file.write(csv_text(table.to_pandas(), header=False))

    def close(self) -> None:
        self._file.close()


_OPEN: Mapping[str, Callable[[Path, pa.Schema], _Sink]] = {
    "csv": _Csv,
    "arrow": lambda path, schema: pa.ipc.new_file(str(path), schema),
    "parquet": lambda path, schema: pq.ParquetWriter(str(path), schema),
}


def write_tables(runs: Sequence[Exported], about: pd.DataFrame, out: Path, form: str) -> list[Path]:
    """Write jobs, rounds, evals, devices and metrics of some runs, their settings, and `about` as the table "runs".

    `about`: a row per run. `form`: csv, arrow (also called Feather) or parquet. One run is read at a time. Raises
    OSError if a file cannot be written, and ConfigError if a run is damaged.
    """
    out.mkdir(parents=True, exist_ok=True)
    files = []
    for table, columns in TABLES.items():
        rows = ((each.name, each.run.table(table)) for each in runs)
        files.append(_write(out, form, table, columns, rows))
    keys = (
        (each.name, pd.DataFrame([(key, str(value)) for key, value in settings(each).items()], columns=list(_SETTINGS)))
        for each in runs
    )
    files.append(_write(out, form, "settings", _SETTINGS, keys))
    found = pa.Table.from_pandas(about, preserve_index=False)
    path = out / f"runs{ENDINGS[form]}"
    with whole_file(path) as growing, _opened(form, growing, found.schema) as sink:
        sink.write_table(found)
    return [*files, path]


def _write(
    out: Path, form: str, name: str, columns: Mapping[str, str], frames: Iterator[tuple[str, pd.DataFrame]]
) -> Path:
    schema = pa.schema([(RUN, pa.string()), *((column, _TYPES[dtype]) for column, dtype in columns.items())])
    path = out / f"{name}{ENDINGS[form]}"
    with whole_file(path) as growing, _opened(form, growing, schema) as sink:
        for run, frame in frames:
            sink.write_table(pa.Table.from_pandas(frame.assign(**{RUN: run}), schema=schema, preserve_index=False))
    return path


def _opened(form: str, path: Path, schema: Any) -> AbstractContextManager[_Sink]:
    return closing(_OPEN[form](path, schema))
