"""Runs what golden tables keep anew, and says of each golden what came out."""

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
from edgesim.studies.runs import Planned, run_all
from edgesim.studies.study import StudyCell


@dataclass(frozen=True)
class Outcome:
    """What came out of the cells of a golden.

    `found`: the numbers of the cells that ran; `host_s`: seconds of the host that each of them took; `faults`: what
    went wrong with the others, by cell.
    """

    golden: Golden
    found: GoldenNumbers
    host_s: Mapping[str, float]
    faults: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Verdict:
    """How the cells of a golden compare with its stored tables.

    `checked`: None where there is nothing to compare with: `why` says so. `written`: the tables were written anew.
    """

    outcome: Outcome
    checked: Checked | None
    written: bool = False
    why: str = ""

    @property
    def agrees(self) -> bool:
        """Return whether all cells ran and nothing differs, or what differed was written."""
        return not self.outcome.faults and (self.written or (self.checked is not None and self.checked.agrees))


def tolerant(goldens: Sequence[Golden], given: Mapping[str, Tolerance]) -> list[Golden]:
    """Return goldens with tolerances of the command line. Raises ConfigError for a column that none of them knows."""
    unknown = [column for column in given if not any(golden.knows(column) for golden in goldens)]
    if unknown:
        known = ", ".join(dict.fromkeys(column for golden in goldens for column in golden.study.columns))
        raise ConfigError(f"--tolerance: {unknown[0]!r} is no column of these golden tables ({known}, jobs.COLUMN)")
    return [golden.with_tolerances(given) for golden in goldens]


def rerun(goldens: Sequence[Golden], workers: int, tell: Callable[[str], None] = lambda line: None) -> list[Outcome]:
    """Run all cells of goldens, in so many processes; `tell` is told of each that ends.

    Raises KeyboardInterrupt if a run was interrupted.
    """
    with TemporaryDirectory(prefix="edgesim-check-") as scratch:
        planned = [golden.plan(Path(scratch) / str(place)) for place, golden in enumerate(goldens)]
        pairs = [*zip(goldens, planned, strict=True)]
        fault_of = _run([(golden, each) for golden, cells in pairs for each in cells], workers, tell)
        return [_outcome(golden, cells, fault_of) for golden, cells in pairs]


def given(golden: Golden, folder: Path) -> Outcome:
    """Return what runs that are there gave: of one run, or of a study's folder of runs. Raises as `given_runs` does."""
    return _of_runs(golden, [(each.cell, run) for each, run in given_runs(golden.plan(folder), folder)], {})


def update(outcome: Outcome) -> Verdict:
    """Write the tables of a golden anew if all its cells ran; say what moved, by the numbers and not by tolerances.

    Raises as `write_numbers` does.
    """
    checked, why = _moved(outcome)
    if not outcome.faults:
        write_numbers(outcome.golden, outcome.found)
    return Verdict(outcome, checked, not outcome.faults, why)


def _moved(outcome: Outcome) -> tuple[Checked | None, str]:
    """Return where a golden's numbers differ from its tables, and why that cannot be said if it cannot."""
    golden = outcome.golden
    if not (golden.folder / CELLS).exists():
        return None, ""
    try:
        return compare(golden.exact(), read_numbers(golden), outcome.found), ""
    except DataError as error:  # of another schema, study or cells: they are replaced, whatever they were
        return None, str(error)


def verdict_on(outcome: Outcome, stored: GoldenNumbers) -> Verdict:
    """Return how what came out compares with stored tables."""
    return Verdict(outcome, compare(outcome.golden, stored, outcome.found))


def _run(planned: Sequence[tuple[Golden, Planned]], workers: int, tell: Callable[[str], None]) -> dict[Path, str]:
    """Run cells of goldens; return what went wrong by run folder ("": nothing)."""
    golden_of = {each.folder: golden for golden, each in planned}
    faults: dict[Path, str] = {}
    for step in run_all([each for _, each in planned], workers, fresh=True):
        if step.ended is None:
            continue
        folder = step.ended.folder
        faults[folder] = step.fault
        where = f"{golden_of[folder].folder}: {step.ended.cell.name}"
        tell(f"{len(faults)} of {len(planned)}: {where}{' failed' if step.fault else ''}")
    return faults


def _outcome(golden: Golden, cells: Sequence[Planned], fault_of: Mapping[Path, str]) -> Outcome:
    ran = [(each.cell, open_run(each.folder).views[0]) for each in cells if not fault_of[each.folder]]
    return _of_runs(golden, ran, {each.cell.name: fault for each in cells if (fault := fault_of[each.folder])})


def _of_runs(golden: Golden, runs: Sequence[tuple[StudyCell, Run]], faults: Mapping[str, str]) -> Outcome:
    host_s = {cell.name: float(run.manifest["host_s"]) for cell, run in runs}
    return Outcome(golden, numbers_of(golden, runs), host_s, faults)
