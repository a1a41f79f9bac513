"""Golden tables: stored results of a study or a scenario, to compare with later results."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path
from typing import Annotated, Any, TypeAlias

from annotated_types import Ge, MinLen
from pydantic import Field, PlainValidator, Strict

from edgesim.config.load import load_scenario, scenario_file
from edgesim.config.units import refusal
from edgesim.core.errors import ConfigError, DataError
from edgesim.files.atomic import write_text
from edgesim.files.reading import csv_records, csv_rows, quoted
from edgesim.records.schema import INT, REAL, TABLES, TEXT
from edgesim.reports.compare import Tolerance, parse_tolerance
from edgesim.reports.load import Run
from edgesim.studies.column import parse_column
from edgesim.studies.runs import Planned, plan
from edgesim.studies.study import SEED, USUAL, FixedKeys, Study, StudyCell, load_study, read_fixed

SCHEMA = 1
CELLS, JOBS = "cells.csv", "jobs.csv"

Job: TypeAlias = Mapping[Any, Any]  # column -> value


@dataclass(frozen=True)
class GoldenNumbers:
    """Contents of golden tables by cell name: column -> number (None: not reached), and jobs as they ended."""

    cells: Mapping[str, Mapping[str, float | None]]
    jobs: Mapping[str, Sequence[Job]]


def numbers_of(golden: Golden, runs: Iterable[tuple[StudyCell, Run]]) -> GoldenNumbers:
    """Return the numbers of runs of the cells of a golden."""
    cells: dict[str, Mapping[str, float | None]] = {}
    jobs: dict[str, Sequence[Job]] = {}
    for cell, run in runs:
        cells[cell.name] = {column: parse_column(column).of(run) for column in golden.study.columns}
        table = run.jobs if golden.file.rounds is None else run.jobs[run.jobs["round"] < golden.file.rounds]
        jobs[cell.name] = table[list(JOB)].to_dict("records")
    return GoldenNumbers(cells, jobs)


# --- into files -------------------------------------------------------------------------------------------------


def write_numbers(golden: Golden, numbers: GoldenNumbers) -> None:
    """Write the tables of a golden and replace existing ones.

    Raises DataError, before anything is written, if an exact column has no number. Raises ConfigError if a file cannot
    be written.
    """
    for cell, row in numbers.cells.items():
        for column, value in row.items():
            _check_number(golden, column, value, f"{golden.folder}: cell {cell}")
    texts = {
        CELLS: _csv(golden, golden.study.columns, ((cell, row) for cell, row in numbers.cells.items())),
        JOBS: _csv(golden, JOB, ((cell, job) for cell, jobs in numbers.jobs.items() for job in jobs)),
    }
    for name, text in texts.items():
        write_text(golden.folder / name, text)


def as_text(value: Any) -> str:
    """Return a value as text for the tables: "" for None, numbers with the fewest digits that identify them."""
    return "" if value is None else repr(value).removesuffix(".0") if isinstance(value, float) else str(value)


def _csv(golden: Golden, columns: Sequence[str], rows: Iterable[tuple[str, Mapping[str, Any]]]) -> str:
    text = StringIO()
    text.write(_first_line(golden) + "\n")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["cell", *columns])
    writer.writerows([cell, *(as_text(row[column]) for column in columns)] for cell, row in rows)
    return text.getvalue()


def _first_line(golden: Golden) -> str:
    return f"# edgesim golden table, schema {SCHEMA}, of the study {json.dumps(golden.study.name)}"


# --- from files -------------------------------------------------------------------------------------------------


def read_numbers(golden: Golden) -> GoldenNumbers:
    """Return the stored numbers of a golden. Raises DataError that names the file, line and column at fault."""
    known = [cell.name for cell in golden.cells]
    cells: dict[str, Mapping[str, float | None]] = {}
    path = golden.folder / CELLS
    for where, cell, row in _rows(golden, path, golden.study.columns, known):
        if cell in cells:
            raise DataError(f"{where}: cell {cell} has a row already")
        numbers: dict[str, float | None] = {}
        for column, text in row.items():
            numbers[column] = _number(text, float, f"{where}: {column}") if text else None
            _check_number(golden, column, numbers[column], where)
        cells[cell] = numbers
    lost = [name for name in known if name not in cells]
    if lost:
        raise DataError(f"{path}: has no row of cell {lost[0]}; {_anew(golden)}")
    kinds: Mapping[str, Callable[[str], Any]] = {INT: int, REAL: float, TEXT: str}
    jobs: dict[str, dict[int, Job]] = {name: {} for name in known}
    for where, cell, row in _rows(golden, golden.folder / JOBS, JOB, known):
        job = {}
        for column, text in row.items():
            job[column] = value = _number(text, kinds[TABLES["jobs"][column]], f"{where}: {column}")
            if isinstance(value, float) and not math.isfinite(value):
                raise DataError(f"{where}: {column} must be a finite number, got {value}")
        if job["job"] in jobs[cell]:
            raise DataError(f"{where}: job {job['job']} of cell {cell} has a row already")
        jobs[cell][job["job"]] = job
    return GoldenNumbers(cells, {cell: list(of_cell.values()) for cell, of_cell in jobs.items()})


def _rows(
    golden: Golden, path: Path, columns: Sequence[str], known: Sequence[str]
) -> Iterator[tuple[str, str, dict[str, str]]]:
    """Yield the place (file and line), the cell and the other values of each row. Raises DataError for other tables."""
    if not path.exists():
        raise DataError(f"{path}: not there yet; {_anew(golden)}")
    rows = csv_rows(path)
    _, title = next(rows, (1, list[str]()))
    if (first := ",".join(title)) != _first_line(golden):
        raise DataError(f"{path}: must begin with {_first_line(golden)!r}, found {quoted(first)}; {_anew(golden)}")
    header, records = csv_records(path, rows=rows)
    for column in ("cell", *columns):
        if column not in header:
            raise DataError(f"{path}: has no column {column!r}; {_anew(golden)}")
    for line, row in records:
        where = f"{path} line {line}"
        if row["cell"] not in known:
            raise DataError(f"{where}: {quoted(row['cell'])} is no cell of {golden.folder}; {_anew(golden)}")
        yield where, row["cell"], {column: row[column] for column in columns}


def _anew(golden: Golden) -> str:
    return f"to write it anew: edgesim check {golden.folder} --update"


def _check_number(golden: Golden, column: str, value: float | None, where: str) -> None:
    if value is None and column not in golden.file.tolerances:
        raise DataError(f"{where}: {column} has no number, and no tolerance in golden.toml that would allow for it")
    if value is not None and not math.isfinite(value):
        raise DataError(f"{where}: {column} must be a finite number, got {value}")


def _number(text: str, kind: Callable[[str], Any], where: str) -> Any:
    try:
        return kind(text)
    except ValueError as error:
        raise DataError(f"{where} must be a number, got {quoted(text)}") from error


FILE = "golden.toml"

# Columns of jobs.csv: the identity of a job, and the amounts that it spends.
JOB = (
    *("job", "device", "round", "submodel", "outcome", "end_s", "flops", "down_bytes", "up_bytes"),
    *("down_j", "compute_j", "up_j", "peer_j", "link_j"),
)
_WHICH_JOB = ("job", "device", "round")
_OF_JOBS = tuple(f"jobs.{name}" for name in JOB if name not in _WHICH_JOB and TABLES["jobs"][name] != TEXT)

# The last bits of sums, exponentials and logarithms may differ between CPUs and versions of Python.
_SAME = 1e-12
_OF_A_SCENARIO = ("sim_time_s", "energy_j", "down_bytes", "up_bytes", "flops")  # default columns


def same(stored: Any, found: Any) -> bool:
    """True if two values are equal. Real numbers may differ by a share of 1e-12, whole ones (FLOPs) not at all."""
    if stored == found or not (isinstance(stored, float) and isinstance(found, float)):
        return bool(stored == found)
    whole = stored.is_integer() and found.is_integer()
    return not whole and math.isclose(stored, found, rel_tol=_SAME)


def _tolerance(given: Any) -> Tolerance:
    try:
        return parse_tolerance(given)
    except ValueError as error:
        raise refusal(str(error)) from error


class GoldenFile(FixedKeys):
    """Contents of golden.toml.

    `study`: path of the study file, relative to golden.toml. `size`: size of the study. `only`: the cells to keep (all
    if none are named). Instead of a study, `scenario` may name a scenario, which runs unchanged, and `columns` the
    columns to keep of it. `tolerances`: allowed deviation from the stored number, by column of the study, or of a job
    as in jobs.end_s. It is in the unit of the column, or a share such as "5 %", or either of both as in "5 % or 0.1".
    Columns without a tolerance must be equal. `rounds`: number of first rounds whose jobs are kept, by default all.
    """

    study: str | None = None
    scenario: str | None = None
    columns: Annotated[tuple[str, ...], MinLen(1)] = _OF_A_SCENARIO
    size: str = USUAL
    only: tuple[str, ...] = ()
    tolerances: Mapping[str, Annotated[Tolerance, PlainValidator(_tolerance)]] = Field(default_factory=dict)
    rounds: Annotated[int, Strict(), Ge(1)] | None = None


@dataclass(frozen=True)
class Golden:
    """Golden tables in a folder, with their study."""

    folder: Path
    file: GoldenFile
    study: Study
    study_file: Path  # without a study, the file of the scenario

    @property
    def cells(self) -> list[StudyCell]:
        """Cells whose numbers are kept."""
        return self.study.cells(self.file.size, self.file.only)

    @property
    def base(self) -> Path:
        """File of the base scenario: the study file itself if it contains the scenario as a table."""
        base = self.study.base
        return scenario_file(base, self.study_file.parent) if isinstance(base, str) else self.study_file

    def plan(self, out: Path) -> list[Planned]:
        """Return the cells as planned runs, in folders below `out`."""
        return plan(self.study, self.study_file, self.file.size, self.file.only, out)

    def allows(self, column: str, stored: float | None, found: float | None) -> bool:
        """True if a number of a run agrees with the stored one. None stands for no such number."""
        tolerance = self.file.tolerances.get(column)
        if tolerance is None or stored is None or found is None:
            return same(stored, found)
        return bool(tolerance.allows(stored, found))

    def allows_job(self, column: str, stored: Any, found: Any) -> bool:
        """True if a value of a job agrees with the stored one."""
        tolerance = self.file.tolerances.get(f"jobs.{column}")
        return same(stored, found) or (tolerance is not None and bool(tolerance.allows(stored, found)))

    def knows(self, column: str) -> bool:
        """True if a tolerance may name this column."""
        return column in self.study.columns or column in _OF_JOBS

    def exact(self) -> Golden:
        """Return a copy without tolerances."""
        return replace(self, file=self.file.model_copy(update={"tolerances": {}}))

    def with_tolerances(self, more: Mapping[str, Tolerance]) -> Golden:
        """Return a copy in which `more` overrides the tolerances of the file, for the columns that the golden knows."""
        own = {column: tolerance for column, tolerance in more.items() if self.knows(column)}
        return replace(self, file=self.file.model_copy(update={"tolerances": {**self.file.tolerances, **own}}))


def load_golden(folder: Path) -> Golden:
    """Return the golden of a folder, whose tables may not exist yet.

    Raises ConfigError, one line that names golden.toml or the study's file and the key.
    """
    path = folder / FILE
    file = read_fixed(path, GoldenFile)
    if (file.study is None) == (file.scenario is None):
        key = "scenario" if file.study else "study"
        raise ConfigError(f"{path}: {key}: give a study or a scenario, one of them")
    wrong = sorted(file.model_fields_set & ({"size", "only"} if file.study is None else {"columns"}))
    if wrong:
        owner = "study" if file.study is None else "scenario; a study names its own"
        raise ConfigError(f"{path}: {wrong[0]}: belongs to a {owner}")
    source = folder / str(file.scenario if file.study is None else file.study)
    if file.study is not None:
        study = load_study(source)
    else:  # a study of one cell: the scenario with its own seed
        try:
            seed = str(load_scenario(source).seed)
        except ConfigError as error:
            raise ConfigError(f"{path}: scenario: {error}") from error
        axes = {SEED: {seed: (f"{SEED}={seed}",)}}
        study = Study(name=source.stem, base=source.name, axes=axes, columns=file.columns)
    try:
        _check(file, study)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    return Golden(folder, file, study, source)


def _check(file: GoldenFile, study: Study) -> None:
    for column in study.columns:
        parse_column(column)
    if file.size not in study.sizes:
        raise ConfigError(f"size: {file.study} has no size {file.size!r} (it has {', '.join(study.sizes)})")
    study.cells(file.size, file.only)
    for column in file.tolerances:
        if column.startswith("jobs.") and column not in study.columns and column not in _OF_JOBS:
            raise ConfigError(f"tolerances: {column!r} is no number that is kept of jobs ({', '.join(_OF_JOBS)})")
        if column not in _OF_JOBS:
            study.check_column(column, "tolerances")
    for column in study.columns:
        if parse_column(column).is_learned and column not in file.tolerances:
            raise ConfigError(
                f"tolerances: {column!r} needs one, such as 0.02 or '5 %', as what is learned depends on the machine"
            )
