"""Check of golden tables: reruns their cells, or takes existing runs, and compares the results with the stored ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from edgesim.config.load import load_scenario
from edgesim.core.errors import ConfigError, DataError
from edgesim.records.manifest import MANIFEST
from edgesim.reports.compare import Tolerance
from edgesim.reports.load import Run, open_run
from edgesim.studies.golden import CELLS, JOB, Golden, GoldenNumbers, Job, numbers_of, read_numbers, write_numbers
from edgesim.studies.runs import Planned, run_all
from edgesim.studies.study import StudyCell

# --- comparison ------------------------------------------------------------------------------------------------------

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
        different: list[tuple[Job | None, Job | None, list[Difference]]] = []
        for a, b in ((was.get(number), now.get(number)) for number in was | now):
            differing = [
                Difference(column, a[column], b[column], str(golden.file.tolerances.get(f"jobs.{column}", EQUAL)))
                for column in (JOB if a and b else ())
                if a and b and not golden.allows_job(column, a[column], b[column])
            ]
            if differing or a is None or b is None:
                different.append((a, b, differing))
        if different:
            first_jobs.append(FirstJob(cell, *different[0], len(different)))
    return Checked(columns, first_jobs)


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
    run.read()
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


# --- runs to compare -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """Results of the cells of a golden.

    `found`: numbers of the cells that ran. `host_s`: host seconds by cell that ran. `faults`: error lines by cell that
    failed.
    """

    golden: Golden
    found: GoldenNumbers
    host_s: Mapping[str, float]
    faults: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Verdict:
    """Comparison of the cells of a golden with its stored tables.

    `checked`: None if there is nothing to compare with, for the reason `why`. `written`: the tables were rewritten.
    """

    outcome: Outcome
    checked: Checked | None
    written: bool = False
    why: str = ""

    @property
    def agrees(self) -> bool:
        """True if all cells ran, and either nothing differs or the tables were rewritten."""
        return not self.outcome.faults and (self.written or (self.checked is not None and self.checked.agrees))


def tolerant(goldens: Sequence[Golden], given: Mapping[str, Tolerance]) -> list[Golden]:
    """Return goldens with tolerances of the command line. Raises ConfigError for a column that no golden knows."""
    unknown = [column for column in given if not any(golden.knows(column) for golden in goldens)]
    if unknown:
        known = ", ".join(dict.fromkeys(column for golden in goldens for column in golden.study.columns))
        raise ConfigError(f"--tolerance: {unknown[0]!r} is no column of these golden tables ({known}, jobs.COLUMN)")
    return [golden.with_tolerances(given) for golden in goldens]


def rerun(goldens: Sequence[Golden], workers: int, tell: Callable[[str], None] = lambda line: None) -> list[Outcome]:
    """Run all cells of goldens in `workers` processes. `tell` receives a line for each cell that ends.

    Raises KeyboardInterrupt if a run was interrupted.
    """
    with TemporaryDirectory(prefix="edgesim-check-") as scratch:
        planned = [golden.plan(Path(scratch) / str(place)) for place, golden in enumerate(goldens)]
        golden_of = {each.folder: golden for golden, cells in zip(goldens, planned, strict=True) for each in cells}
        todo = [each for cells in planned for each in cells]
        fault_of: dict[Path, str] = {}  # run folder -> fault, "" if there is none
        for step in run_all(todo, workers, fresh=True):
            if step.ended is not None:
                folder = step.ended.folder
                fault_of[folder] = step.fault
                where = f"{golden_of[folder].folder}: {step.ended.cell.name}"
                tell(f"{len(fault_of)} of {len(todo)}: {where}{' failed' if step.fault else ''}")
        outcomes = []
        for golden, cells in zip(goldens, planned, strict=True):
            ran = [(each.cell, open_run(each.folder).views[0]) for each in cells if not fault_of[each.folder]]
            faults = {each.cell.name: fault for each in cells if (fault := fault_of[each.folder])}
            outcomes.append(_of_runs(golden, ran, faults))
        return outcomes


def given(golden: Golden, folder: Path) -> Outcome:
    """Return the outcome of existing runs: a run folder, or the folder of runs of a study. Raises as `given_runs`."""
    return _of_runs(golden, [(each.cell, run) for each, run in given_runs(golden.plan(folder), folder)], {})


def update(outcome: Outcome) -> Verdict:
    """Rewrite the tables of a golden if all its cells ran. The verdict compares numbers without tolerances.

    Raises as `write_numbers` does.
    """
    golden, checked, why = outcome.golden, None, ""
    if (golden.folder / CELLS).exists():
        try:
            checked = compare(golden.exact(), read_numbers(golden), outcome.found)
        except DataError as error:  # tables of another schema, study or cells are replaced
            why = str(error)
    if not outcome.faults:
        write_numbers(outcome.golden, outcome.found)
    return Verdict(outcome, checked, not outcome.faults, why)


def verdict_on(outcome: Outcome, stored: GoldenNumbers) -> Verdict:
    """Compare an outcome with stored tables."""
    return Verdict(outcome, compare(outcome.golden, stored, outcome.found))


def _of_runs(golden: Golden, runs: Sequence[tuple[StudyCell, Run]], faults: Mapping[str, str]) -> Outcome:
    host_s = {cell.name: float(run.manifest["host_s"]) for cell, run in runs}
    return Outcome(golden, numbers_of(golden, runs), host_s, faults)
