"""Golden tables: what a study or a scenario gave once, kept in a folder, to hold against what it gives now.

The folder has golden.toml, written by hand (which study in which size, which cells, which tolerances), and two tables
that are written for it: cells.csv, a row a run with the columns of the study, and jobs.csv, so that a difference can be
traced to the first job that has it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge, MinLen
from pydantic import Field, PlainValidator, Strict

from edgesim.config.load import load_scenario, scenario_file
from edgesim.config.units import refusal
from edgesim.core.errors import ConfigError
from edgesim.records.schema import TABLES, TEXT
from edgesim.reports.tolerance import Tolerance, parse_tolerance
from edgesim.studies.column import parse_column
from edgesim.studies.keys import FixedKeys
from edgesim.studies.runs import Planned, plan
from edgesim.studies.study import SEED, USUAL, Cell, Study, load_study, read_fixed

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
    def cells(self) -> list[Cell]:
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
