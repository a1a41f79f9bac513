"""Commands that keep, check and pass on results: `check`, `export` and `cache`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from edgesim.cli.look import all_opened, flat
from edgesim.cli.options import AsJson, StudyFolder, Tolerances, check_new_file, tolerances_of, write_text
from edgesim.cli.printing import print_json, print_note, print_table
from edgesim.cli.study import CellsOfStudy
from edgesim.core.errors import ConfigError, EdgesimError
from edgesim.reports.format import divergence, text

if TYPE_CHECKING:
    from edgesim.reports.export import Exported
    from edgesim.studies.check import Outcome, Verdict
    from edgesim.studies.golden import Golden

_HOME = Path("golden")  # folder of golden tables in the current folder
_MOST_COLUMNS = 12  # differing columns that are printed
_T = TypeVar("_T")
_R = TypeVar("_R")


@dataclass(frozen=True, kw_only=True)
class CheckFiles:
    """Files that a check writes in addition to its printed output."""

    junit: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a JUnit XML file with a case for each run.")
    ] = None
    as_json: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write all results as JSON.")] = None
    markdown: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a summary for a pull request.")] = None

    def check(self) -> None:
        """Raise ConfigError unless all files can be written."""
        wanted = list(self._wanted())
        for option, path in wanted:
            check_new_file(path, option)
        for place, (option, path) in enumerate(wanted):
            if os.path.realpath(path) in [os.path.realpath(other) for _, other in wanted[:place]]:
                raise ConfigError(f"{option}: {path} is also the file of another option")

    def write(self, verdicts: Sequence[Verdict], broken: EdgesimError | None = None) -> None:
        """Write each file atomically. Raises ConfigError if one cannot be written."""
        from edgesim.studies import check_texts

        texts = {"--junit": check_texts.junit, "--json": check_texts.as_json, "--markdown": check_texts.as_markdown}
        for option, path in self._wanted():
            write_text(path, texts[option](verdicts, broken), option)

    def _wanted(self) -> Iterator[tuple[str, Path]]:
        for option, path in (("--junit", self.junit), ("--json", self.as_json), ("--markdown", self.markdown)):
            if path is not None:
                yield option, path


def check(
    files: CheckFiles,
    goldens: Annotated[
        list[Path] | None, typer.Argument(metavar="GOLDEN...", help="Folders of golden tables. Default: golden/*.")
    ] = None,
    update: Annotated[bool, typer.Option("--update", help="Rewrite the tables and show the changes.")] = False,
    from_: Annotated[
        Path | None, typer.Option("--from", metavar="RUN", help="Compare this run, or the folder of runs of a study.")
    ] = None,
    workers: Annotated[
        int, typer.Option(min=1, help="Number of runs in parallel, each in a process with one thread.")
    ] = 1,
    tolerance: Tolerances = None,
) -> None:
    """Rerun and compare golden tables. The exit code is 1 on a difference and 2 on broken input."""
    # The files are written in every case, even on broken input, but not after an interruption. A golden that is broken,
    # or whose runs fail, does not stop the others: its error is raised after them. Invalid options are refused before
    # anything runs.
    from edgesim.studies.check import tolerant
    from edgesim.studies.check import update as rewritten
    from edgesim.studies.golden import FILE, load_golden

    files.check()
    verdicts: list[Verdict] = []
    broken: list[EdgesimError] = []
    try:
        folders = goldens or sorted(path.parent for path in _HOME.glob(f"*/{FILE}"))
        if not folders:
            raise ConfigError(
                f"{_HOME}/: no golden tables (*/{FILE}) in the current folder; name some: edgesim check FOLDER"
            )
        if from_ and (update or len(folders) > 1):
            raise ConfigError("--from: compares one golden with that run; name one, without --update")
        loaded = _each(load_golden, folders, broken)
        if loaded:
            loaded = tolerant(loaded, tolerances_of(tolerance or []))
        if update:
            verdicts = _each(rewritten, _rerun(loaded, workers), broken)
        else:
            verdicts = _compared(loaded, from_, workers, broken)
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
    from edgesim.studies.check import rerun

    try:
        return rerun(goldens, workers, print_note)
    except KeyboardInterrupt as stop:
        print_note("interrupted; nothing was compared")
        raise typer.Exit(130) from stop


def _compared(goldens: Sequence[Golden], given: Path | None, workers: int, broken: list[EdgesimError]) -> list[Verdict]:
    from edgesim.studies import check
    from edgesim.studies.golden import read_numbers

    stored = _each(lambda golden: (golden, read_numbers(golden)), goldens, broken)
    if given and stored:
        outcomes = [check.given(stored[0][0], given)]
        print_note(f"compared with {given}; nothing was run again")
    else:
        outcomes = _rerun([golden for golden, _ in stored], workers)
    pairs = [(outcome, numbers) for outcome, (_, numbers) in zip(outcomes, stored, strict=True)]
    return _each(lambda pair: check.verdict_on(*pair), pairs, broken)


def _report(verdict: Verdict) -> None:
    """Print the comparison of a golden with its tables, or the changes of rewritten tables."""
    from edgesim.studies.check_texts import change_of, result_of, side_of, where_of
    from edgesim.studies.golden import as_text

    outcome, checked = verdict.outcome, verdict.checked
    if outcome.faults:
        return  # the last line of the command reports them
    folder = outcome.golden.folder
    if verdict.written:
        moved = "" if checked is None else f"; {result_of(verdict).removeprefix('written, ')}"
        before = f"; what was there: {verdict.why}" if verdict.why else ""
        print(f"{folder}: written, {len(outcome.found.cells)} cells{moved}{before}")
    elif checked is not None:
        cells, jobs = len(outcome.found.cells), sum(map(len, outcome.found.jobs.values()))
        amount = f"{cells} cells, {cells * len(outcome.golden.study.columns)} numbers, {jobs} jobs"
        print(f"{folder}: {'as stored' if checked.agrees else 'DIFFERS'} ({amount})")
    if checked is None or checked.agrees:
        return
    rows = [
        {"cell": cell, "column": d.column, "stored": as_text(d.stored), "found": as_text(d.found)}
        | {"allowed": d.allowed, "change": change_of(d)}
        for cell, d in checked.columns[:_MOST_COLUMNS]
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
        rounds = outcome.golden.file.rounds
        print(f"  no job{'' if rounds is None else f' of the first {rounds} rounds, which are kept,'} differs")


# --- export ------------------------------------------------------------------------------------------------------


class ExportTo(StrEnum):
    """Formats of exported runs."""

    TENSORBOARD = "tensorboard"
    MLFLOW = "mlflow"
    CSV = "csv"
    ARROW = "arrow"
    PARQUET = "parquet"


def export(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN|STUDY...", help="Run folders, folders with run folders, patterns, or a study file."
        ),
    ],
    to: Annotated[ExportTo, typer.Option("--to", help="Format to write.")],
    out: Annotated[
        str, typer.Option(metavar="FOLDER", help="Folder to write to. For mlflow also the address of a tracking store.")
    ],
    place: StudyFolder,
) -> None:
    """Export runs to TensorBoard or MLflow, with simulated time as step, or to table files."""
    from edgesim.reports.export import is_address, write_mlflow, write_tensorboard

    if is_address(out) and to != ExportTo.MLFLOW:
        raise ConfigError(f"--out: {out!r} is an address, {to} is written to a folder")
    found, experiment = _exported(runs, place)
    try:
        if to == ExportTo.MLFLOW:
            lines = write_mlflow(found, out, experiment)
        elif to == ExportTo.TENSORBOARD:
            lines = [str(path) for path in write_tensorboard(found, Path(out))]
        else:
            lines = [str(path) for path in _write_tables(found, Path(out), to)]
    except OSError as error:
        raise ConfigError(f"--out: {out}: cannot be written: {error.strerror or error}") from error
    print("\n".join(lines))


def _exported(paths: Sequence[Path], place: StudyFolder) -> tuple[list[Exported], str]:
    """Return the runs of paths, and the name of an experiment with them."""
    from edgesim.reports.export import Exported, exported

    studies = [path for path in paths if path.suffix == ".toml" and path.is_file()]
    if not studies:
        if place.folder is not None:
            raise ConfigError("--runs: is for a study; name its file")
        runs = exported(all_opened(paths))
        return runs, str(runs[0].run.manifest.get("name") or "edgesim")
    if len(paths) > 1:
        raise ConfigError(f"{studies[0]}: is a study; name it alone")
    made = CellsOfStudy(study=studies[0], size=place.size, folder=place.folder).made()
    return [Exported(cell.name, run, cell.labels) for cell, run in made.runs], made.study.name


def _write_tables(runs: Sequence[Exported], out: Path, form: str) -> list[Path]:
    import pandas as pd

    from edgesim.reports.export import write_tables

    about = flat([each.run for each in runs])
    about["run"] = [each.name for each in runs]
    about["diverged"] = pd.array(
        [None if found is None or found is pd.NA else divergence(found) for found in about["diverged"]], dtype="string"
    )
    axes = pd.DataFrame([dict(each.axes) for each in runs]).add_prefix("axis.")
    return write_tables(runs, pd.concat([about, axes], axis=1), out, form)


# --- cache -------------------------------------------------------------------------------------------------------


def cache(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A folder of runs.")] = Path("runs"),
    prune: Annotated[bool, typer.Option("--prune", help="Delete the cached results. Runs stay unchanged.")] = False,
    of_user: Annotated[
        bool,
        typer.Option(
            "--user", help="Use the cache of all runs of this user: cost profiles, data sets, compiled steps."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show or delete cached results that later runs reuse."""
    if of_user:
        from edgesim.files import user_cache

        rows = [{"kind": kind, **held._asdict()} for kind, held in user_cache.held().items()]
        if prune:
            user_cache.prune()
        where, about = user_cache.cache_folder(), {"kept": rows}
        headings = {"kind": "kind", "files": "files", "nbytes": "size"}
    else:
        if not folder.is_dir():
            raise ConfigError(f"{folder}: no such folder")
        from edgesim.execution.result_cache import Answers  # loads torch

        with closing(Answers(folder)) as answers:
            rows = [answers.held()._asdict()]
            if prune:
                answers.remove()
        where, about = answers.folder, rows[0]
        headings = {"answers": "answers", "models": "models", "snapshots": "snapshots", "nbytes": "size"}
    if as_json:
        print_json({"folder": str(where), **about, "removed": prune})
        return
    print_table([row | {"nbytes": text("disk_bytes", row["nbytes"])} for row in rows], headings, str(where))
    if prune:
        print("removed")
