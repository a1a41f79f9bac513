"""Golden tables: results of a study or a scenario that are kept in a folder, to compare with later results."""

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
from edgesim.files.atomic import whole_file
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
    """What golden tables hold, by the names of cells: column -> number (None: not reached), and jobs as they end."""

    cells: Mapping[str, Mapping[str, float | None]]
    jobs: Mapping[str, Sequence[Job]]


def numbers_of(golden: Golden, runs: Iterable[tuple[StudyCell, Run]]) -> GoldenNumbers:
    """Return the numbers of runs of a golden's cells."""
    cells: dict[str, Mapping[str, float | None]] = {}
    jobs: dict[str, Sequence[Job]] = {}
    for cell, run in runs:
        cells[cell.name] = {column: parse_column(column).of(run) for column in golden.study.columns}
        table = run.jobs if golden.file.rounds is None else run.jobs[run.jobs["round"] < golden.file.rounds]
        jobs[cell.name] = table[list(JOB)].to_dict("records")
    return GoldenNumbers(cells, jobs)


# --- into files -------------------------------------------------------------------------------------------------


def write_numbers(golden: Golden, numbers: GoldenNumbers) -> None:
    """Write the tables of a golden, over those it has.

    Raises DataError, with nothing written, if an exact column has no number, and ConfigError if a file cannot be.
    """
    for cell, row in numbers.cells.items():
        for column, value in row.items():
            _check_number(golden, column, value, f"{golden.folder}: cell {cell}")
    texts = {
        CELLS: _csv(golden, golden.study.columns, ((cell, row) for cell, row in numbers.cells.items())),
        JOBS: _csv(golden, JOB, ((cell, job) for cell, jobs in numbers.jobs.items() for job in jobs)),
    }
    for name, text in texts.items():
        try:
            with whole_file(golden.folder / name) as growing:
                growing.write_text(text, encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"{golden.folder / name}: cannot be written: {error.strerror}") from error


def as_text(value: Any) -> str:
    """Return a value as the tables have it: nothing for None; numbers with as many digits as make them that number."""
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
        cells[cell] = {column: _stored(golden, column, text, where) for column, text in row.items()}
    lost = [name for name in known if name not in cells]
    if lost:
        raise DataError(f"{path}: has no row of cell {lost[0]}; {_anew(golden)}")
    jobs: dict[str, dict[int, Job]] = {name: {} for name in known}
    for where, cell, row in _rows(golden, golden.folder / JOBS, JOB, known):
        job = {column: _job_value(column, text, where) for column, text in row.items()}
        if job["job"] in jobs[cell]:
            raise DataError(f"{where}: job {job['job']} of cell {cell} has a row already")
        jobs[cell][job["job"]] = job
    return GoldenNumbers(cells, {cell: list(of_cell.values()) for cell, of_cell in jobs.items()})


def _rows(
    golden: Golden, path: Path, columns: Sequence[str], known: Sequence[str]
) -> Iterator[tuple[str, str, dict[str, str]]]:
    """Yield where each row stands, its cell and its other values. Raises DataError if it is not such a table."""
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


def _stored(golden: Golden, column: str, text: str, where: str) -> float | None:
    value = _number(text, float, f"{where}: {column}") if text else None
    _check_number(golden, column, value, where)
    return value


def _check_number(golden: Golden, column: str, value: float | None, where: str) -> None:
    if value is None and column not in golden.file.tolerances:
        raise DataError(f"{where}: {column} has no number, and no tolerance in golden.toml that would allow for it")
    if value is not None and not math.isfinite(value):
        raise DataError(f"{where}: {column} must be a finite number, got {value}")


def _job_value(column: str, text: str, where: str) -> Any:
    kinds: Mapping[str, Callable[[str], Any]] = {INT: int, REAL: float, TEXT: str}
    value = _number(text, kinds[TABLES["jobs"][column]], f"{where}: {column}")
    if isinstance(value, float) and not math.isfinite(value):
        raise DataError(f"{where}: {column} must be a finite number, got {value}")
    return value


def _number(text: str, kind: Callable[[str], Any], where: str) -> Any:
    try:
        return kind(text)
    except ValueError as error:
        raise DataError(f"{where} must be a number, got {quoted(text)}") from error


FILE = "golden.toml"

# Which job it is, and all that a job spends.
JOB = (
    *("job", "device", "round", "submodel", "outcome", "end_s", "flops", "down_bytes", "up_bytes"),
    *("down_j", "compute_j", "up_j", "peer_j", "link_j"),
)
_WHICH_JOB = ("job", "device", "round")
_OF_JOBS = tuple(f"jobs.{name}" for name in JOB if name not in _WHICH_JOB and TABLES["jobs"][name] != TEXT)

# Between CPUs and versions of Python the last bits of sums, exponentials and logarithms may differ.
_SAME = 1e-12
_OF_A_SCENARIO = ("sim_time_s", "energy_j", "down_bytes", "up_bytes", "flops")  # columns, where none are named


def same(stored: Any, found: Any) -> bool:
    """Return whether two values are equal; real numbers may differ by 1e-12 of them, whole ones (FLOPs) by nothing."""
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
    """golden.toml. `study`: its file, from the folder of golden.toml; `size`: of the study; `only`: the cells to keep
    (none named: all).

    In the place of a study a file may name a `scenario`, which is run as it is, and the `columns` to keep of it.
    `tolerances`: how far a number may lie from the stored one, by column of the study, or of a job as in jobs.end_s; in
    the unit of the column, or as a share such as "5 %", or one of both as in "5 % or 0.1". What has no tolerance must
    be equal. `rounds`: the jobs of so many first rounds are kept, all if not given.
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
    """Golden tables in a folder, with the study that they belong to."""

    folder: Path
    file: GoldenFile
    study: Study
    study_file: Path  # or that of the scenario, where there is no study

    @property
    def cells(self) -> list[StudyCell]:
        """Return the cells whose numbers are kept."""
        return self.study.cells(self.file.size, self.file.only)

    @property
    def base(self) -> Path:
        """Return the file of the scenario that all cells build on; a study may hold it itself."""
        base = self.study.base
        return scenario_file(base, self.study_file.parent) if isinstance(base, str) else self.study_file

    def plan(self, out: Path) -> list[Planned]:
        """Return the runs of these cells, in folders below `out`."""
        return plan(self.study, self.study_file, self.file.size, self.file.only, out)

    def allows(self, column: str, stored: float | None, found: float | None) -> bool:
        """Return whether a number of a run agrees with the stored one; None: the run has no such number."""
        tolerance = self.file.tolerances.get(column)
        if tolerance is None or stored is None or found is None:
            return same(stored, found)
        return bool(tolerance.allows(stored, found))

    def allows_job(self, column: str, stored: Any, found: Any) -> bool:
        """Return whether a value of a job agrees with the stored one."""
        tolerance = self.file.tolerances.get(f"jobs.{column}")
        return same(stored, found) or (tolerance is not None and bool(tolerance.allows(stored, found)))

    def knows(self, column: str) -> bool:
        """Return whether a tolerance may name a column."""
        return column in self.study.columns or column in _OF_JOBS

    def exact(self) -> Golden:
        """Return this without tolerances."""
        return replace(self, file=self.file.model_copy(update={"tolerances": {}}))

    def with_tolerances(self, more: Mapping[str, Tolerance]) -> Golden:
        """Return this with other tolerances, of the columns that it knows, over those of its file."""
        own = {column: tolerance for column, tolerance in more.items() if self.knows(column)}
        return replace(self, file=self.file.model_copy(update={"tolerances": {**self.file.tolerances, **own}}))


def load_golden(folder: Path) -> Golden:
    """Return the golden tables of a folder, which may not have been written yet.

    Raises ConfigError, one line that names golden.toml or the study's file and the key.
    """
    path = folder / FILE
    file = read_fixed(path, GoldenFile)
    fault = _fault_of_source(file)
    if fault:
        raise ConfigError(f"{path}: {fault}")
    source = folder / str(file.scenario if file.study is None else file.study)
    study = load_study(source) if file.study is not None else None
    try:
        study = study or _study_of(source, file.columns)
        _check(file, study)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    return Golden(folder, file, study, source)


def _fault_of_source(file: GoldenFile) -> str:
    """Return what is wrong with where a golden's runs come from; "": nothing."""
    given = file.model_fields_set
    if (file.study is None) == (file.scenario is None):
        return f"{'scenario' if file.study else 'study'}: give a study or a scenario, one of them"
    wrong = sorted(given & ({"size", "only"} if file.study is None else {"columns"}))
    if wrong:
        return f"{wrong[0]}: belongs to a {'study' if file.study is None else 'scenario; a study names its own'}"
    return ""


def _study_of(scenario: Path, columns: tuple[str, ...]) -> Study:
    """Return a study of one cell: the scenario of a file, with its own seed."""
    try:
        seed = str(load_scenario(scenario).seed)
    except ConfigError as error:
        raise ConfigError(f"scenario: {error}") from error
    axes = {SEED: {seed: (f"{SEED}={seed}",)}}
    return Study(name=scenario.stem, base=scenario.name, axes=axes, columns=columns)


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
