"""Comparison of runs with golden tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from edgesim.config.load import load_scenario
from edgesim.core.errors import ConfigError
from edgesim.records.manifest import MANIFEST
from edgesim.records.schema import TABLES
from edgesim.reports.load import Run, open_run
from edgesim.studies.golden import JOB, Golden, GoldenNumbers, Job
from edgesim.studies.runs import Planned

EQUAL = "equal"
_FILES = {"extends", "fleet", "profile"}  # keys that name files to read into a scenario. No manifest has them


class Difference(NamedTuple):
    """A number that differs from the stored one."""

    column: str
    stored: Any
    found: Any
    allowed: str = EQUAL

    @property
    def change(self) -> float | None:
        """Relative increase over the stored number; None unless both are numbers."""
        both = all(isinstance(value, int | float) for value in (self.stored, self.found))
        return (self.found - self.stored) / abs(self.stored) if both and self.stored else None


@dataclass(frozen=True)
class FirstJob:
    """First job of a cell that differs, in the order of the stored table.

    `stored`, `found`: the job, None if it is missing. `differences`: the columns that differ, none if one side is
    missing. `jobs`: number of jobs of the cell that differ.
    """

    cell: str
    stored: Job | None
    found: Job | None
    differences: Sequence[Difference]
    jobs: int

    @property
    def label(self) -> Job:
        """The stored job, or the found one if it is new."""
        return self.stored or self.found or {}


@dataclass(frozen=True)
class Checked:
    """Result of a check: columns that differ, with their cells, and the first differing job of each cell."""

    columns: Sequence[tuple[str, Difference]]
    jobs: Sequence[FirstJob]

    @property
    def agrees(self) -> bool:
        """True if nothing differs."""
        return not (self.columns or self.jobs)

    def of(self, cell: str) -> Checked:
        """Return the differences of one cell."""
        return Checked([each for each in self.columns if each[0] == cell], [j for j in self.jobs if j.cell == cell])


def compare(golden: Golden, stored: GoldenNumbers, found: GoldenNumbers) -> Checked:
    """Return the differences between the found cells and the stored ones."""
    columns = [
        (cell, Difference(column, was, row[column], str(golden.file.tolerances.get(column, EQUAL))))
        for cell, row in found.cells.items()
        for column, was in stored.cells[cell].items()
        if not golden.allows(column, was, row[column])
    ]
    first_jobs = []
    for cell in found.cells:
        was, now = ({job["job"]: job for job in numbers.jobs[cell]} for numbers in (stored, found))
        both = ((was.get(number), now.get(number)) for number in was | now)
        different = [
            (a, b, differing) for a, b in both if (differing := _differing(golden, a, b)) or a is None or b is None
        ]
        if different:
            first_jobs.append(FirstJob(cell, *different[0], len(different)))
    return Checked(columns, first_jobs)


def _differing(golden: Golden, stored: Job | None, found: Job | None) -> list[Difference]:
    if stored is None or found is None:
        return []
    return [
        Difference(column, stored[column], found[column], str(golden.file.tolerances.get(f"jobs.{column}", EQUAL)))
        for column in JOB
        if not golden.allows_job(column, stored[column], found[column])
    ]


def given_runs(planned: Sequence[Planned], folder: Path) -> list[tuple[Planned, Run]]:
    """Return the cells with their runs from a folder, which is a run folder or the folder of runs of a study.

    Raises ConfigError if a run is missing, half-written, or of another scenario.
    """
    if (folder / MANIFEST).exists():
        run = _whole(folder)
        cells = [each for each in planned if _answers(each, run)]
        if not cells:
            raise ConfigError(f"{folder}: is a run of none of the {len(planned)} cells")
        return [(cells[0], run)]
    runs = []
    for each in planned:
        run = _whole(folder / each.cell.name)
        if not _answers(each, run):
            raise ConfigError(f"{run.folder}: is a run of another scenario than that of cell {each.cell.name}")
        runs.append((each, run))
    return runs


def _whole(folder: Path) -> Run:
    run = open_run(folder)
    for table in TABLES:
        run.table(table)
    status = run.manifest.get("status")
    if status != "finished":
        raise ConfigError(f"{folder}: not a finished run; {MANIFEST} has the status {status!r}")
    return run


def _outside(table: Any) -> Iterator[str]:
    """Yield the texts of a table that may name a class from outside, or a file that names one."""
    if isinstance(table, Mapping):
        for key, value in table.items():
            yield from [str(value)] if key in _FILES and isinstance(value, str) else _outside(value)
    elif isinstance(table, list | tuple):
        for item in table:
            yield from _outside(item)
    elif isinstance(table, str) and ":" in table:
        yield table


def _answers(planned: Planned, run: Run) -> bool:
    table = run.manifest["scenario"]
    # the run may come from elsewhere: import only classes that the study itself names
    if not (isinstance(table, Mapping) and set(_outside(table)) <= set(_outside(planned.scenario))):
        return False
    try:
        scenario = load_scenario(table)
    except ConfigError as error:
        raise ConfigError(f"{run.folder / MANIFEST}: scenario.{error}") from error
    asked = (planned.stamp["scenario"], planned.stamp["trains"])
    return asked == (scenario.digest(), scenario.backend.value.trains)
