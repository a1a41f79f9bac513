"""Reruns the cells of golden tables and compares the results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from edgesim.core.errors import ConfigError, DataError
from edgesim.reports.compare import Tolerance
from edgesim.reports.load import Run, open_run
from edgesim.studies.check import Checked, compare, given_runs
from edgesim.studies.golden import CELLS, Golden, GoldenNumbers, numbers_of, read_numbers, write_numbers
from edgesim.studies.runs import run_all
from edgesim.studies.study import StudyCell


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
