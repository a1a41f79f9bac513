"""Where runs differ from golden tables."""

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
_FILES = {"extends", "fleet", "profile"}  # keys of files that are read as parts of a scenario; no manifest has them


class Difference(NamedTuple):
    """A number that is not what it was."""

    column: str
    stored: Any
    found: Any
    allowed: str = EQUAL

    @property
    def change(self) -> float | None:
        """Return by which share of the stored number the found one is larger; None unless both are numbers."""
        both = all(isinstance(value, int | float) for value in (self.stored, self.found))
        return (self.found - self.stored) / abs(self.stored) if both and self.stored else None


@dataclass(frozen=True)
class FirstJob:
    """The first job of a cell, as they ended when the tables were written, that is not what it was.

    `stored`, `found`: None if there was, or is, no such job. `differences`: the columns that differ; none if there is
    only one side. `jobs`: how many of the cell differ.
    """

    cell: str
    stored: Job | None
    found: Job | None
    differences: Sequence[Difference]
    jobs: int

    @property
    def label(self) -> Job:
        """The job as it was stored, or as it was found if it is new."""
        return self.stored or self.found or {}


@dataclass(frozen=True)
class Checked:
    """What a check of a golden found: differing columns by cell, and the first differing job of every cell with one."""

    columns: Sequence[tuple[str, Difference]]
    jobs: Sequence[FirstJob]

    @property
    def agrees(self) -> bool:
        """Return whether nothing differs."""
        return not (self.columns or self.jobs)

    def of(self, cell: str) -> Checked:
        """Return what was found of one cell."""
        return Checked([each for each in self.columns if each[0] == cell], [j for j in self.jobs if j.cell == cell])


def compare(golden: Golden, stored: GoldenNumbers, found: GoldenNumbers) -> Checked:
    """Return where the cells that were found differ from the stored ones."""
    columns = [
        (cell, Difference(column, was, row[column], str(golden.file.tolerances.get(column, EQUAL))))
        for cell, row in found.cells.items()
        for column, was in stored.cells[cell].items()
        if not golden.allows(column, was, row[column])
    ]
    jobs = (_first_job(golden, cell, stored.jobs[cell], found.jobs[cell]) for cell in found.cells)
    return Checked(columns, [first for first in jobs if first is not None])


def _first_job(golden: Golden, cell: str, stored: Sequence[Job], found: Sequence[Job]) -> FirstJob | None:
    was, now = ({job["job"]: job for job in jobs} for jobs in (stored, found))
    both = ((was.get(number), now.get(number)) for number in was | now)
    different = [
        (a, b, differing) for a, b in both if (differing := _differing(golden, a, b)) or a is None or b is None
    ]
    return FirstJob(cell, *different[0], len(different)) if different else None


def _differing(golden: Golden, stored: Job | None, found: Job | None) -> list[Difference]:
    if stored is None or found is None:
        return []
    return [
        Difference(column, stored[column], found[column], str(golden.file.tolerances.get(f"jobs.{column}", EQUAL)))
        for column in JOB
        if not golden.allows_job(column, stored[column], found[column])
    ]


def given_runs(planned: Sequence[Planned], folder: Path) -> list[tuple[Planned, Run]]:
    """Return the runs of a folder as runs of cells: the folder of one run, or that of a whole study's.

    Raises ConfigError if a run is missing, half-written, or of another scenario.
    """
    if (folder / MANIFEST).exists():
        run = _whole(folder)
        cells = [each for each in planned if _answers(each, run)]
        if not cells:
            raise ConfigError(f"{folder}: is a run of none of the {len(planned)} cells")
        return [(cells[0], run)]
    return list(_by_name(planned, folder))


def _by_name(planned: Sequence[Planned], folder: Path) -> Iterator[tuple[Planned, Run]]:
    for each in planned:
        run = _whole(folder / each.cell.name)
        if not _answers(each, run):
            raise ConfigError(f"{run.folder}: is a run of another scenario than that of cell {each.cell.name}")
        yield each, run


def _whole(folder: Path) -> Run:
    run = open_run(folder)
    for table in TABLES:
        run.table(table)
    status = run.manifest.get("status")
    if status != "finished":
        raise ConfigError(f"{folder}: not a finished run; {MANIFEST} has the status {status!r}")
    return run


def _outside(table: Any) -> Iterator[str]:
    """Yield all that a table says which may be the name of a class from outside, or of a file that names one."""
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
    # a run may be somebody else's: no class is imported but those that the study names itself
    if not (isinstance(table, Mapping) and set(_outside(table)) <= set(_outside(planned.scenario))):
        return False
    try:
        scenario = load_scenario(table)
    except ConfigError as error:
        raise ConfigError(f"{run.folder / MANIFEST}: scenario.{error}") from error
    asked = (planned.stamp["scenario"], planned.stamp["trains"])
    return asked == (scenario.digest(), scenario.backend.value.trains)
