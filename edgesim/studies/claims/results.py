"""A file of results: numbers of runs whose folders are not kept, with the revision of the code that made them."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from pydantic import FiniteFloat, TypeAdapter, ValidationError

from edgesim.core.errors import ConfigError
from edgesim.files.reading import csv_records, in_short, quoted
from edgesim.reports.load import Run
from edgesim.studies.column import parse_column
from edgesim.studies.study import SEED, Cell

_NUMBER = TypeAdapter(FiniteFloat)
_OBSERVED = {"yes": True, "no": False}


class Result(NamedTuple):
    """A number of a run: `column` of the cell of a study in a size.

    `observed`: no for what had been spent without getting there. `revision` and `date`: of the code and the run; "":
    unknown. `source`: the page that has it, "" of a run whose folder was there.
    """

    study: str
    size: str
    cell: str
    seed: str
    column: str
    value: float
    observed: bool
    revision: str = ""
    date: str = ""
    source: str = ""

    @property
    def key(self) -> tuple[str, ...]:
        """Return what it is a number of."""
        return self.study, self.size, self.cell, self.seed, self.column

    @property
    def labels(self) -> dict[str, str]:
        """Return the labels of all axes but the seed."""
        return dict(word.split("=", 1) for word in self.cell.split(",") if word)


def read_results(path: Path) -> list[Result]:
    """Return the numbers of a file of results. Raises ConfigError, one line that names the file and its line."""
    header, records = csv_records(path, ConfigError)
    if header != list(Result._fields):
        raise ConfigError(f"{path} line 1: the header must be {', '.join(Result._fields)}, got {in_short(header)}")
    return [_result(row, f"{path} line {line}") for line, row in records]


def written(results: Iterable[Result]) -> str:
    """Return the text of a file of results, in the order of studies, sizes, cells, seeds and columns."""
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(Result._fields)
    for each in sorted(results, key=lambda one: one.key):
        lines.writerow(each._replace(value=repr(each.value), observed="yes" if each.observed else "no"))  # type: ignore[arg-type]
    return text.getvalue()


def results_of(study: str, size: str, cell: Cell, run: Run, columns: Iterable[str]) -> list[Result]:
    """Return the numbers of a run by columns; those that it does not have are left out."""
    about = run.manifest
    group = ",".join(f"{axis}={label}" for axis, label in cell.group.items())
    made = (str((about.get("git") or {}).get("revision") or "")[:7], str(about.get("date", ""))[:10])
    found = []
    for column in columns:
        value, observed = parse_column(column).reading(run)
        if value == value:  # no number is not kept
            found.append(Result(study, size, group, cell.labels.get(SEED, ""), column, value, observed, *made))
    return found


def _result(row: dict[str, str], where: str) -> Result:
    try:
        value = _NUMBER.validate_python(row["value"])
    except ValidationError as error:
        raise ConfigError(f"{where}: value: must be a finite number, got {quoted(row['value'])}") from error
    if row["observed"] not in _OBSERVED:
        raise ConfigError(f"{where}: observed: must be yes or no, got {quoted(row['observed'])}")
    if not all("=" in word for word in row["cell"].split(",") if word):
        raise ConfigError(f"{where}: cell: must be labels such as method=fedavg,x=1, got {quoted(row['cell'])}")
    try:
        parse_column(row["column"])
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error
    observed = _OBSERVED[row["observed"]]
    return Result(
        *(row["study"], row["size"], row["cell"], row["seed"], row["column"], value, observed),
        *(row["revision"], row["date"], row["source"]),
    )
