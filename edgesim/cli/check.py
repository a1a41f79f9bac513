"""The command that holds golden tables against what their studies give now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, TypeAlias

import typer

from edgesim.core.errors import ConfigError, EdgesimError

if TYPE_CHECKING:
    from edgesim.studies.check import Checked, FirstJob
    from edgesim.studies.golden import Golden
    from edgesim.studies.golden_tables import Numbers
    from edgesim.studies.runs import Planned

Found: TypeAlias = "Mapping[int, Numbers]"  # by the place of a golden among those named

_HOME = Path("golden")  # of the project in the current folder
_SHOWN = 12  # differing columns


def run_check(folders: Sequence[Path], update: bool, given: Path | None, workers: int) -> None:
    """Compare golden tables with new runs or given ones, or write them anew; exit with 1 on a difference.

    Raises EdgesimError on broken input: before anything runs, or, where a run fails, after the other goldens.
    """
    from edgesim.cli.show import print_note
    from edgesim.studies.golden import load_golden
    from edgesim.studies.golden_tables import read_numbers, write_numbers

    goldens = [load_golden(folder) for folder in folders or _at_home()]
    if given and (update or len(goldens) > 1):
        raise ConfigError("--from: takes one golden, to be compared with that run, and no --update")
    stored = [] if update else [read_numbers(golden) for golden in goldens]
    if given:
        found, faults = _given(goldens[0], given), list[str]()
        print_note(f"compared with {given}; nothing was run anew")
    else:
        found, faults = _rerun(goldens, workers)
    if update:
        for place, numbers in found.items():
            write_numbers(goldens[place], numbers)
            print(f"{goldens[place].folder}: written, {len(numbers.cells)} cells")
        agree = True
    else:
        agree = all([_report(goldens[place], stored[place], numbers) for place, numbers in found.items()])
    if faults:
        raise EdgesimError(f"{len(faults)} of {len(goldens)} goldens could not be run; {faults[0]}")
    if not agree:
        raise typer.Exit(1)


def _at_home() -> list[Path]:
    from edgesim.studies.golden import FILE

    folders = sorted(path.parent for path in _HOME.glob(f"*/{FILE}"))
    if not folders:
        raise ConfigError(
            f"{_HOME}/: no golden tables (*/{FILE}) in the current folder; name some: edgesim check FOLDER"
        )
    return folders


def _given(golden: Golden, folder: Path) -> Found:
    from edgesim.studies.check import given_runs
    from edgesim.studies.golden_tables import numbers_of

    return {0: numbers_of(golden, [(each.cell, run) for each, run in given_runs(golden.plan(folder), folder)])}


def _rerun(goldens: Sequence[Golden], workers: int) -> tuple[Found, list[str]]:
    """Run all cells; return the numbers of goldens whose cells all ended, and what stopped the others."""
    from edgesim.reports.load import open_run
    from edgesim.studies.golden_tables import numbers_of

    found, faults = {}, []
    with TemporaryDirectory(prefix="edgesim-check-") as scratch:
        planned = [golden.plan(Path(scratch) / str(place)) for place, golden in enumerate(goldens)]
        pairs = [*zip(goldens, planned, strict=True)]
        fault_of = _run([(golden, each) for golden, cells in pairs for each in cells], workers)
        for place, (golden, cells) in enumerate(pairs):
            wrong = ((each.cell.name, fault_of[each.folder]) for each in cells)
            failed = [f"{golden.folder}: {name}: {fault}" for name, fault in wrong if fault]
            if failed:
                faults.append(failed[0])
            else:
                found[place] = numbers_of(golden, [(each.cell, open_run(each.folder)) for each in cells])
    return found, faults


def _run(planned: Sequence[tuple[Golden, Planned]], workers: int) -> dict[Path, str]:
    """Run cells of goldens; return what went wrong by run folder ("": nothing)."""
    from edgesim.cli.show import print_note
    from edgesim.studies.runs import run_all

    golden_of = {each.folder: golden for golden, each in planned}
    faults: dict[Path, str] = {}
    try:
        for step in run_all([each for _, each in planned], workers, fresh=True):
            if step.ended is None:
                continue
            folder = step.ended.folder
            faults[folder] = step.fault
            where = f"{golden_of[folder].folder}: {step.ended.cell.name}"
            print_note(f"{len(faults)} of {len(planned)}: {where}{' failed' if step.fault else ''}")
    except KeyboardInterrupt as stop:
        print_note("interrupted; nothing was compared")
        raise typer.Exit(130) from stop
    return faults


def _report(golden: Golden, stored: Numbers, found: Numbers) -> bool:
    """Print how numbers compare with the stored ones; return whether they agree."""
    from edgesim.studies.check import compare

    checked = compare(golden, stored, found)
    cells = len(found.cells)
    compared = f"{cells} cells, {cells * len(golden.study.columns)} numbers, {sum(map(len, found.jobs.values()))} jobs"
    print(f"{golden.folder}: {'as stored' if checked.agrees else 'DIFFERS'} ({compared})")
    if not checked.agrees:
        _print_differences(golden, checked)
    return checked.agrees


def _print_differences(golden: Golden, checked: Checked) -> None:
    from edgesim.cli.show import print_table
    from edgesim.studies.golden_tables import as_text

    rows = [
        {"cell": cell, "column": d.column, "stored": as_text(d.stored), "found": as_text(d.found), "allowed": d.allowed}
        for cell, d in checked.columns[:_SHOWN]
    ]
    if rows:
        more = len(checked.columns) - len(rows)
        title = f"  columns that differ{f' (and {more} more)' if more else ''}"
        print_table(rows, {name: name for name in rows[0]}, title)
    if checked.jobs:
        print("\n".join(_lines(checked.jobs[0])))
    else:
        kept = "" if golden.file.rounds is None else f" of the first {golden.file.rounds} rounds, which are kept,"
        print(f"  no job{kept} differs")


def _lines(first: FirstJob) -> list[str]:
    """Return the first job that differs in words, a line a value."""
    from edgesim.studies.golden_tables import as_text

    job = first.label
    where = f"job {job['job']} (device {job['device']}, round {job['round']}, submodel {job['submodel']})"
    head = f"  first of {first.jobs} differing jobs of cell {first.cell}: {where}"
    if first.found is None or first.stored is None:
        return [f"{head} {'is stored but was not found' if first.stored else 'was found but is not stored'}"]
    return [head, *(f"    {d.column}: stored {as_text(d.stored)}, found {as_text(d.found)}" for d in first.differences)]
