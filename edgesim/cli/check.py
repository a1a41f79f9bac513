"""The command that holds golden tables against what their studies give now."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import typer

from edgesim.cli.out import check_new_file, write_text
from edgesim.cli.tolerances import tolerances_of
from edgesim.core.errors import ConfigError, EdgesimError

if TYPE_CHECKING:
    from edgesim.studies.check import Checked
    from edgesim.studies.golden import Golden, GoldenNumbers
    from edgesim.studies.rerun import Outcome, Verdict

_HOME = Path("golden")  # of the project in the current folder
_SHOWN = 12  # differing columns
_T = TypeVar("_T")
_R = TypeVar("_R")


@dataclass(frozen=True)
class Files:
    """Files that a check writes beside what it prints; None: not wanted."""

    junit: Path | None = None
    json: Path | None = None
    markdown: Path | None = None

    def check(self) -> None:
        """Raise ConfigError unless all of them can be written."""
        wanted = list(self._wanted())
        for option, path in wanted:
            check_new_file(path, option)
        for place, (option, path) in enumerate(wanted):
            if os.path.realpath(path) in [os.path.realpath(other) for _, other in wanted[:place]]:
                raise ConfigError(f"{option}: {path} is another file of this command already")

    def write(self, verdicts: Sequence[Verdict], broken: EdgesimError | None = None) -> None:
        """Write them, each whole. Raises ConfigError if one cannot be written."""
        from edgesim.studies.check_texts import as_json, as_markdown, junit

        texts = {"--junit": junit, "--json": as_json, "--markdown": as_markdown}
        for option, path in self._wanted():
            write_text(path, texts[option](verdicts, broken), option)

    def _wanted(self) -> Iterator[tuple[str, Path]]:
        for field in fields(self):
            path = getattr(self, field.name)
            if path is not None:
                yield f"--{field.name}", path


def run_check(
    folders: Sequence[Path],
    update: bool,
    given: Path | None,
    workers: int,
    tolerances: Sequence[str] = (),
    files: Files | None = None,
) -> None:
    """Compare golden tables with new runs or given ones, or write them anew; exit with 1 on a difference.

    `files` are written whatever comes out, also on broken input; not if the command is interrupted. A golden that is
    broken, or whose runs fail, stops no other. Raises EdgesimError for such ones after the others, and for options that
    are wrong before anything runs.
    """
    files = files or Files()
    files.check()
    verdicts: list[Verdict] = []
    broken: list[EdgesimError] = []
    try:
        folders = folders or _at_home()
        goldens = _loaded(folders, update, given, tolerances, broken)
        verdicts = _updated(goldens, workers, broken) if update else _compared(goldens, given, workers, broken)
        for verdict in verdicts:
            _report(verdict)
    except EdgesimError as error:
        files.write(verdicts, error)
        raise
    wrong = _of_all(broken, len(folders))
    files.write(verdicts, wrong)
    faults = [fault for verdict in verdicts if (fault := _first_fault(verdict.outcome))]
    if faults:
        more = f"; {wrong}" if wrong else ""
        raise EdgesimError(f"{len(faults)} of {len(folders)} goldens could not be run; {faults[0]}{more}")
    if wrong:
        raise wrong
    if not all(verdict.agrees for verdict in verdicts):
        raise typer.Exit(1)


def _loaded(
    folders: Sequence[Path], update: bool, given: Path | None, tolerances: Sequence[str], broken: list[EdgesimError]
) -> list[Golden]:
    """Return the goldens of folders, with tolerances; those that are broken are left out and added to `broken`."""
    from edgesim.studies.golden import load_golden
    from edgesim.studies.rerun import tolerant

    if given and (update or len(folders) > 1):
        raise ConfigError("--from: takes one golden, to be compared with that run, and no --update")
    goldens = _each(load_golden, folders, broken)
    return tolerant(goldens, tolerances_of(tolerances)) if goldens else []


def _each(call: Callable[[_T], _R], given: Iterable[_T], broken: list[EdgesimError]) -> list[_R]:
    """Return the results of calls; an error of one ends no other, and is added to `broken`."""
    found = []
    for one in given:
        try:
            found.append(call(one))
        except EdgesimError as error:
            broken.append(error)
    return found


def _of_all(broken: Sequence[EdgesimError], goldens: int) -> EdgesimError | None:
    """Return one error for all broken goldens, None if there are none; of a single golden its own."""
    if not broken or goldens == 1:
        return broken[0] if broken else None
    return EdgesimError(f"{len(broken)} of {goldens} goldens are broken; {'; '.join(map(str, broken))}")


def _at_home() -> list[Path]:
    from edgesim.studies.golden import FILE

    folders = sorted(path.parent for path in _HOME.glob(f"*/{FILE}"))
    if not folders:
        raise ConfigError(
            f"{_HOME}/: no golden tables (*/{FILE}) in the current folder; name some: edgesim check FOLDER"
        )
    return folders


def _first_fault(outcome: Outcome) -> str:
    return next((f"{outcome.golden.folder}: {cell}: {fault}" for cell, fault in outcome.faults.items()), "")


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


def _updated(goldens: Sequence[Golden], workers: int, broken: list[EdgesimError]) -> list[Verdict]:
    from edgesim.studies.rerun import update

    return _each(update, _rerun(goldens, workers), broken)


# --- what is printed --------------------------------------------------------------------------------------------


def _report(verdict: Verdict) -> None:
    """Print how a golden compares with its tables, or what moved as they were written."""
    outcome, checked = verdict.outcome, verdict.checked
    if outcome.faults:
        return  # the command's last line says so
    folder = outcome.golden.folder
    if verdict.written:
        from edgesim.studies.check_texts import result_of

        cells = f"{len(outcome.found.cells)} cells"
        moved = "" if checked is None else f"; {result_of(verdict).removeprefix('written, ')}"
        print(f"{folder}: written, {cells}{moved}{f'; what was there: {verdict.why}' if verdict.why else ''}")
    elif checked is not None:
        print(f"{folder}: {'as stored' if checked.agrees else 'DIFFERS'} ({_amount(outcome.golden, outcome.found)})")
    if checked is not None and not checked.agrees:
        _print_differences(outcome.golden, checked)


def _amount(golden: Golden, found: GoldenNumbers) -> str:
    cells = len(found.cells)
    return f"{cells} cells, {cells * len(golden.study.columns)} numbers, {sum(map(len, found.jobs.values()))} jobs"


def _print_differences(golden: Golden, checked: Checked) -> None:
    from edgesim.cli.show import print_table
    from edgesim.studies.check_texts import change_of
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
        print("\n".join(_lines(checked)))
    else:
        kept = "" if golden.file.rounds is None else f" of the first {golden.file.rounds} rounds, which are kept,"
        print(f"  no job{kept} differs")


def _lines(checked: Checked) -> list[str]:
    """Return the first job that differs in words, a line a value."""
    from edgesim.studies.check_texts import side_of, where_of
    from edgesim.studies.golden import as_text

    first = checked.jobs[0]
    head = f"  first of {first.jobs} differing jobs of cell {first.cell}: {where_of(first)}"
    if side := side_of(first):
        return [f"{head} {side}"]
    return [head, *(f"    {d.column}: stored {as_text(d.stored)}, found {as_text(d.found)}" for d in first.differences)]
