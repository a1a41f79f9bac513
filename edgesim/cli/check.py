"""The `check` command: compares golden tables with new results of their studies."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import typer

from edgesim.cli.out import check_new_file, write_text
from edgesim.cli.tolerances import tolerances_of
from edgesim.core.errors import ConfigError, EdgesimError

if TYPE_CHECKING:
    from edgesim.studies.check import Checked
    from edgesim.studies.golden import Golden
    from edgesim.studies.rerun import Outcome, Verdict

_HOME = Path("golden")  # folder of golden tables in the current folder
_SHOWN = 12  # differing columns
_T = TypeVar("_T")
_R = TypeVar("_R")


@dataclass(frozen=True)
class Files:
    """Files that a check writes in addition to its printed output; None: not wanted."""

    junit: Path | None = None
    json: Path | None = None
    markdown: Path | None = None

    def check(self) -> None:
        """Raise ConfigError unless all files can be written."""
        wanted = list(self._wanted())
        for option, path in wanted:
            check_new_file(path, option)
        for place, (option, path) in enumerate(wanted):
            if os.path.realpath(path) in [os.path.realpath(other) for _, other in wanted[:place]]:
                raise ConfigError(f"{option}: {path} is another file of this command already")

    def write(self, verdicts: Sequence[Verdict], broken: EdgesimError | None = None) -> None:
        """Write each file atomically. Raises ConfigError if one cannot be written."""
        from edgesim.studies.check_texts import as_json, as_markdown, junit

        texts = {"--junit": junit, "--json": as_json, "--markdown": as_markdown}
        for option, path in self._wanted():
            write_text(path, texts[option](verdicts, broken), option)

    def _wanted(self) -> Iterator[tuple[str, Path]]:
        for option, path in (("--junit", self.junit), ("--json", self.json), ("--markdown", self.markdown)):
            if path is not None:
                yield option, path


def run_check(
    folders: Sequence[Path],
    update: bool,
    given: Path | None,
    workers: int,
    tolerances: Sequence[str] = (),
    files: Files | None = None,
) -> None:
    """Compare golden tables with new runs or given ones, or rewrite them. Exit with 1 on a difference.

    `files` are written in every case, even on broken input, but not after an interruption. A golden that is broken, or
    whose runs fail, does not stop the others: EdgesimError is raised after them. For invalid options it is raised
    before anything runs.
    """
    from edgesim.studies.golden import FILE, load_golden
    from edgesim.studies.rerun import tolerant
    from edgesim.studies.rerun import update as rewritten

    files = files or Files()
    files.check()
    verdicts: list[Verdict] = []
    broken: list[EdgesimError] = []
    try:
        folders = folders or sorted(path.parent for path in _HOME.glob(f"*/{FILE}"))
        if not folders:
            raise ConfigError(
                f"{_HOME}/: no golden tables (*/{FILE}) in the current folder; name some: edgesim check FOLDER"
            )
        if given and (update or len(folders) > 1):
            raise ConfigError("--from: takes one golden, to be compared with that run, and no --update")
        goldens = _each(load_golden, folders, broken)
        if goldens:
            goldens = tolerant(goldens, tolerances_of(tolerances))
        if update:
            verdicts = _each(rewritten, _rerun(goldens, workers), broken)
        else:
            verdicts = _compared(goldens, given, workers, broken)
        for verdict in verdicts:
            _report(verdict)
    except EdgesimError as error:
        files.write(verdicts, error)
        raise
    wrong = broken[0] if broken else None
    if broken and len(folders) > 1:
        wrong = EdgesimError(f"{len(broken)} of {len(folders)} goldens are broken; {'; '.join(map(str, broken))}")
    files.write(verdicts, wrong)
    faults = []
    for outcome in (verdict.outcome for verdict in verdicts if verdict.outcome.faults):
        cell, fault = next(iter(outcome.faults.items()))
        faults.append(f"{outcome.golden.folder}: {cell}: {fault}")
    if faults:
        more = f"; {wrong}" if wrong else ""
        raise EdgesimError(f"{len(faults)} of {len(folders)} goldens could not be run; {faults[0]}{more}")
    if wrong:
        raise wrong
    if not all(verdict.agrees for verdict in verdicts):
        raise typer.Exit(1)


def _each(call: Callable[[_T], _R], given: Iterable[_T], broken: list[EdgesimError]) -> list[_R]:
    """Return the results of all successful calls. Errors are added to `broken`."""
    found = []
    for one in given:
        try:
            found.append(call(one))
        except EdgesimError as error:
            broken.append(error)
    return found


def _rerun(goldens: Sequence[Golden], workers: int) -> list[Outcome]:
    from edgesim.cli.show import print_note
    from edgesim.studies.rerun import rerun

    try:
        return rerun(goldens, workers, print_note)
    except KeyboardInterrupt as stop:
        print_note("interrupted; nothing was compared")
        raise typer.Exit(130) from stop


def _compared(goldens: Sequence[Golden], given: Path | None, workers: int, broken: list[EdgesimError]) -> list[Verdict]:
    from edgesim.cli.show import print_note
    from edgesim.studies import rerun
    from edgesim.studies.golden import read_numbers

    stored = _each(lambda golden: (golden, read_numbers(golden)), goldens, broken)
    if given and stored:
        outcomes = [rerun.given(stored[0][0], given)]
        print_note(f"compared with {given}; nothing was run anew")
    else:
        outcomes = _rerun([golden for golden, _ in stored], workers)
    pairs = [(outcome, numbers) for outcome, (_, numbers) in zip(outcomes, stored, strict=True)]
    return _each(lambda pair: rerun.verdict_on(*pair), pairs, broken)


# --- what is printed --------------------------------------------------------------------------------------------


def _report(verdict: Verdict) -> None:
    """Print the comparison of a golden with its tables, or the changes of rewritten tables."""
    outcome, checked = verdict.outcome, verdict.checked
    if outcome.faults:
        return  # the last line of the command reports them
    folder = outcome.golden.folder
    if verdict.written:
        from edgesim.studies.check_texts import result_of

        moved = "" if checked is None else f"; {result_of(verdict).removeprefix('written, ')}"
        before = f"; what was there: {verdict.why}" if verdict.why else ""
        print(f"{folder}: written, {len(outcome.found.cells)} cells{moved}{before}")
    elif checked is not None:
        cells, jobs = len(outcome.found.cells), sum(map(len, outcome.found.jobs.values()))
        amount = f"{cells} cells, {cells * len(outcome.golden.study.columns)} numbers, {jobs} jobs"
        print(f"{folder}: {'as stored' if checked.agrees else 'DIFFERS'} ({amount})")
    if checked is not None and not checked.agrees:
        _print_differences(outcome.golden, checked)


def _print_differences(golden: Golden, checked: Checked) -> None:
    from edgesim.cli.show import print_table
    from edgesim.studies.check_texts import change_of, side_of, where_of
    from edgesim.studies.golden import as_text

    rows = [
        {"cell": cell, "column": d.column, "stored": as_text(d.stored), "found": as_text(d.found)}
        | {"allowed": d.allowed, "change": change_of(d)}
        for cell, d in checked.columns[:_SHOWN]
    ]
    if rows:
        more = len(checked.columns) - len(rows)
        title = f"  columns that differ{f' (and {more} more)' if more else ''}"
        print_table(rows, {name: name for name in rows[0]}, title)
    if checked.jobs:
        first = checked.jobs[0]
        side = side_of(first)
        place = f"{where_of(first)}{f' {side}' if side else ''}"
        print(f"  first of {first.jobs} differing jobs of cell {first.cell}: {place}")
        for d in first.differences if not side else ():
            print(f"    {d.column}: stored {as_text(d.stored)}, found {as_text(d.found)}")
    else:
        kept = "" if golden.file.rounds is None else f" of the first {golden.file.rounds} rounds, which are kept,"
        print(f"  no job{kept} differs")
