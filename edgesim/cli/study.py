"""Commands about studies: plan and run the missing cells, search, and print tables."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from edgesim.cli.options import (
    AsJson,
    CellTraining,
    Draws,
    Only,
    SortBy,
    StudyFolder,
    TableStyle,
    checkpoint_s,
    order,
)
from edgesim.cli.printing import (
    GridColumn,
    digits,
    latex,
    markdown,
    print_digits,
    print_frame_as,
    print_grid,
    print_json,
    print_note,
    print_table,
    warn,
)
from edgesim.core.errors import ConfigError, EdgesimError
from edgesim.reports.format import lost_runs, text, texts

if TYPE_CHECKING:
    from edgesim.execution.processes import Pool
    from edgesim.reports.load import Run
    from edgesim.studies.clock_intervals import ClockIntervals
    from edgesim.studies.optimise import Trial
    from edgesim.studies.plan import Outlook
    from edgesim.studies.runs import Planned
    from edgesim.studies.study import Study, StudyCell

_ENDS = ("low", "median", "high")  # of an interval over draws
_EQUAL = 1e-9  # relative; the mean of equal numbers may differ in the last bit


class _Where(StrEnum):
    """Processes that run cells, named like the backends that train in such processes."""

    MACHINE = "workers"
    CLUSTER = "ray"


StudyFile = Annotated[Path, typer.Argument(metavar="STUDY", help="A study file (TOML).")]


class MadeRuns(NamedTuple):
    """Existing runs of a study in a size, the number of its cells, and the names of missing cells."""

    study: Study
    size: str
    runs: Sequence[tuple[StudyCell, Run]]
    cells: int
    missing: Sequence[str]

    @property
    def told(self) -> str:
        """Number of missing cells in words."""
        return f"{len(self.missing)} of {self.cells} cells are missing"


@dataclass(frozen=True, kw_only=True)
class CellsOfStudy(StudyFolder):
    """Cells of a study."""

    study: StudyFile
    only: Only = None

    def owned(self) -> tuple[Path, str]:
        """Return the folder of the runs, and the name of the study in it."""
        from edgesim.studies.runs import owner_of

        folder = self.folder_of(self.study)
        return folder, owner_of(self.study, folder)

    def planned(self) -> tuple[Study, list[Planned]]:
        """Return the study, and its cells with their folders, those of its search included."""
        from edgesim.studies.runs import plan
        from edgesim.studies.study import load_study, with_trials

        folder = self.folder_of(self.study)
        study = with_trials(load_study(self.study), folder)
        return study, plan(study, self.study, self.size, self.only or [], folder)

    def outlook(self, costs: bool = False) -> tuple[Study, list[Outlook], list[str]]:
        """Return the study, the state of its cells, and each warning about them once. `costs`: estimate them too.

        Raises ConfigError if the folder has the runs of another study.
        """
        from edgesim.runs.warnings import once
        from edgesim.studies.plan import outlook
        from edgesim.studies.runs import check_owner

        study, planned = self.planned()
        check_owner(*self.owned())
        cells = outlook(planned, costs)
        return study, cells, once([each.planned.warnings for each in cells])

    def made(self) -> MadeRuns:
        """Return the existing runs, and report on stderr the missing, the outdated and those of `lost_runs`.

        Raises EdgesimError if there are no runs.
        """
        study, planned = self.planned()
        kept = [(each, run) for each in planned if (run := each.kept()) is not None]
        if not kept:
            others = sum(each.folder.exists() for each in planned)
            stale = f" as the study is now, {others} as it was before" if others else ""
            command = f"edgesim study run {self.study} --size {self.size}"
            raise EdgesimError(f"{self.study}: no cell has been run{stale}; first: {command}")
        here = {each.cell.name for each, _ in kept}
        missing = [each.cell.name for each in planned if each.cell.name not in here]
        found = MadeRuns(study, self.size, [(each.cell, run) for each, run in kept], len(planned), missing)
        if missing:
            print_note(found.told)
        if not all(each.is_current() for each, _ in kept):
            print_note("some runs were made by other code; edgesim study run repeats them")
        for learned, charged in dict.fromkeys((run.learned_by, run.charged_as) for _, run in kept if run.charged_as):
            print_note(f"learned by {learned}, charged as {charged}")
        for line in lost_runs({each.cell.name: run.manifest for each, run in kept}):
            print_note(line)
        return found


def plan(cells: CellsOfStudy, as_json: AsJson = False) -> None:
    """Build all missing cells without training, and estimate the time and disk space to run them on this host."""
    from edgesim.studies.plan import bad

    study, found, warnings = cells.outlook(costs=True)
    headings = {"cell": "cell", "state": "state", "host_s": "host time", "disk_bytes": "disk", "fault": "why"}
    rows: list[dict[str, Any]] = [{"cell": each.planned.cell.name, **each.told()} for each in found]
    totals = {name: sum(row[name] or 0 for row in rows) for name in ("host_s", "disk_bytes")}
    if as_json:
        print_json({"study": study.name, "size": cells.size, "cells": rows, "totals": totals, "warnings": warnings})
    else:
        print_table(rows, headings, f"{study.name} ({cells.size})")
        unknown = any(row["host_s"] is None and row["state"] not in ("done", "bad") for row in rows)
        spent = ", ".join(text(name, value) for name, value in totals.items())
        print(f"to run: {spent} in one process{', without cells of unknown time' if unknown else ''}")
        warn(warnings)
    if faults := bad(found):
        raise EdgesimError(f"{len(faults)} of {len(found)} cells cannot be run; {faults[0]}")


def run(
    cells: CellsOfStudy,
    training: CellTraining,
    keep_going: Annotated[
        bool, typer.Option("--keep-going", help="If some cells cannot run, run the others. The exit code is then 1.")
    ] = False,
    backend: Annotated[
        _Where, typer.Option(help="Run cells in processes of this machine, or of a Ray cluster.")
    ] = _Where.MACHINE,
    address: Annotated[
        str | None,
        typer.Option(help="The Ray cluster, HOST:PORT or auto. Default: RAY_ADDRESS, else this machine."),
    ] = None,
) -> None:
    """Run the cells that are missing, or whose scenario, data or code have changed.

    All cells are built before the first one runs. Work that cells share, such as training under several networks, is
    done once. Several of these commands in parallel share the cells among them.
    """
    from edgesim.studies.eta import StudyProgress
    from edgesim.studies.order import apart
    from edgesim.studies.plan import bad
    from edgesim.studies.runs import claim, run_all

    every_s, workers = checkpoint_s(training.checkpoint), training.workers
    if backend is _Where.CLUSTER:
        from edgesim.execution.ray_cluster import check_installed

        check_installed("--backend")
    elif address:
        raise ConfigError("--address: needs --backend ray")
    elif workers > 1:
        _load_in_processes()
    _, found, warnings = cells.outlook()
    faults = bad(found)
    done = [each.planned for each in found if each.state == "done" and not training.fresh]
    print_note(f"{len(done)} of {len(found)} cells are done")
    warn(warnings)
    if faults and not keep_going:
        print_note("\n".join(faults))
        raise EdgesimError(
            f"{len(faults)} of {len(found)} cells cannot be run, so none was; --keep-going runs the others; {faults[0]}"
        )
    missing = [each.planned for each in found if each.state != "bad" and each.planned not in done]
    if missing:
        claim(*cells.owned())
    pool: AbstractContextManager[Pool | None] = nullcontext()
    if missing and backend is _Where.CLUSTER:
        from edgesim.studies.on_ray import ray_pool

        missing = [replace(each, folder=each.folder.absolute()) for each in missing]  # for processes on other machines
        pool = ray_pool(missing, workers, address)
    progress = StudyProgress(apart(missing) if training.fresh else missing, done, workers)
    try:
        with pool as processes:
            for step in run_all(missing, workers, every_s, training.fresh, processes):
                print_note(progress.take(step))
    except KeyboardInterrupt as stop:
        print_note("interrupted; the cells that ended are kept")
        raise typer.Exit(130) from stop
    failed = progress.failed
    if keep_going and (faults or failed):
        print_note("\n".join([*faults, *failed]))
        print_note(f"{len(faults)} of {len(found)} cells cannot be run, {len(failed)} failed")
        raise typer.Exit(1)
    if failed:
        raise EdgesimError(f"{len(failed)} of {len(missing)} cells failed; {failed[0]}")


def _load_in_processes() -> None:
    """Let worker processes load the code while this process builds the cells."""
    from edgesim.execution.processes import warm_up

    warm_up("edgesim.runs.simulate")


@dataclass(frozen=True, kw_only=True)
class StudyTableStyle(TableStyle):
    """Format of the table of a study."""

    as_markdown: Annotated[
        bool, typer.Option("--markdown", help="Print a Markdown section with a line for each cell.")
    ] = False
    long: Annotated[
        bool, typer.Option("--long", help="Print a line for each column: runs, deviation, intervals, ratio.")
    ] = False


def table(cells: CellsOfStudy, style: StudyTableStyle, sort: SortBy = None, intervals: Draws = None) -> None:
    """Print means over seeds with published values. Targets that some runs missed have medians.

    --long: also print standard deviation, 95 % intervals and all other statistics over seeds.
    --intervals: also time each run again with draws of the clocks' errors, without training.
    """
    from edgesim.studies.values import axes_of, numbers, pivoted, reordered, tabulate, with_one_interval

    form, found = style.name, cells.made()
    rows = tabulate(found.study, found.runs)
    if sort:
        rows = reordered(rows, order(numbers(rows), sort))
    name, size = found.study.name, cells.size
    drawn = clocks_of(found, found.study.columns, intervals)
    if form in ("json", "csv"):
        if drawn:
            ends = drawn.rows.rename(columns={end: f"clock_{end}" for end in _ENDS})
            rows = rows.merge(ends, how="left", on=[*axes_of(rows), "column"])
        print_frame_as(rows, form, "", 1, {"study": name, "size": size})
        return
    labels, pivot = axes_of(rows), pivoted(rows)
    headings = list(map(str, pivot.columns))
    texts = [list(row) for row in pivot.itertuples(index=False, name=None)]
    if form == "markdown":
        print(f"## {name}\n\n`edgesim study run {cells.study} --size {size}`\n")
        print(markdown([each if each in labels else f"`{each}`" for each in headings], texts))
        if found.missing:
            print(f"\n{found.told}.")  # the page is read without the notes of this command
        print()
    elif form == "latex":
        print(latex(headings, texts))
    elif form == "long":
        shown, interval = with_one_interval(rows)
        title = f"{name} ({size})" + (f"; low to high: 95 % interval of the mean by {interval}" if interval else "")
        print_digits(shown.dropna(axis="columns", how="all"), title, keys=len(labels) + 1)
    else:
        print(f"{name} ({size})")
        print_grid([GridColumn(each, list(pivot[each])) for each in headings], keys=len(labels))
    beside = rows[rows["published"].notna() & rows["mean"].notna()]
    if form in ("", "long") and len(beside):
        import numpy as np

        equal = np.isclose(beside["mean"], beside["published"], rtol=_EQUAL, atol=0).sum()
        print(f"{equal} of {len(beside)} published numbers are equal")
    if drawn:
        print_clocks(drawn)


def clocks_of(found: MadeRuns, columns: Sequence[str], draws: int | None) -> ClockIntervals | None:
    """Return the intervals of the clocks' errors, None without draws. Notes about them are printed on stderr."""
    if draws is None:
        return None
    from edgesim.studies.clock_intervals import clock_intervals

    drawn = clock_intervals(found.study, found.runs, columns, draws)
    for note in drawn.notes:
        print_note(note)
    return drawn


def print_clocks(drawn: ClockIntervals) -> None:
    """Print the intervals of a study's numbers over draws of the clocks' errors."""
    keys = [str(name) for name in drawn.rows.columns[:-3]]
    rows: list[dict[Any, Any]] = []
    for row in drawn.rows.to_dict("records"):
        ends = texts(row["column"].partition("@")[0], [row[end] for end in _ENDS])
        rows.append(row | dict(zip(_ENDS, ends, strict=True)))
    headings = {**dict(zip(keys, keys, strict=True)), "low": "5 %", "median": "median", "high": "95 %"}
    print_table(rows, headings, f"90 % intervals over {drawn.draws} draws of the clocks' errors", keys=len(keys))


# --- search ------------------------------------------------------------------------------------------------------


def optimise(
    study: StudyFile,
    place: StudyFolder,
    training: CellTraining,
    trials: Annotated[int, typer.Option(min=1, help="Number of trials in total, including those of earlier commands.")],
    as_json: AsJson = False,
) -> None:
    """Search the space of a study for the best objectives. The trials become cells of the study.

    After an interruption the same command continues the search and comes to the same trials.
    """
    every_s, size = checkpoint_s(training.checkpoint), place.size
    if training.workers > 1:
        _load_in_processes()
    from edgesim.runs.warnings import new
    from edgesim.studies.optimise import Optimisation, Trial
    from edgesim.studies.study import TRIAL, USUAL, load_study

    loaded = load_study(study)
    search = Optimisation(loaded, study, size, place.folder_of(study))
    warned = set[str]()

    def values_of(trial: Trial) -> dict[str, float | None]:
        assert loaded.search is not None
        return dict(zip(loaded.search.objectives, trial.values, strict=True))

    def texts_of(trial: Trial) -> dict[str, str]:
        return {name: text(name.partition("@")[0], value) for name, value in values_of(trial).items()}

    def result_of(trial: Trial) -> str:
        if trial.pruned:
            return f"pruned, {trial.behind:.3g} behind the accuracy of others"
        if not trial.got_there:
            return f"missed the target by {trial.behind:.3g} of accuracy"
        return ", ".join(f"{name} {value}" for name, value in texts_of(trial).items())

    try:
        for each in search.run(trials, training.workers, every_s, training.fresh):
            warn(new(search.warnings, warned))
            if isinstance(each, Trial):
                print_note(f"trial {each.number}, {each.number + 1} of {trials}: {result_of(each)}")
            elif each.ended and not each.fault:
                print_note(f"  {each.ended.cell.name} {'runs in another process' if each.elsewhere else 'has run'}")
    except KeyboardInterrupt as stop:
        print_note("interrupted; the same command goes on")
        raise typer.Exit(130) from stop
    best, total = search.best, len(search.trials)
    if as_json:

        def row(trial: Trial) -> dict[str, Any]:
            about = {"point": dict(trial.point), "overrides": list(trial.overrides), "values": values_of(trial)}
            return {TRIAL: trial.number, **about, "behind": trial.behind, "pruned": trial.pruned}

        rows_of_all = {"best": list(map(row, best)), "trials": list(map(row, search.trials))}
        print_json({"study": loaded.name, "size": size, **rows_of_all})
        return
    pruned = sum(trial.pruned for trial in search.trials)
    short = sum(not trial.got_there for trial in search.trials) - pruned
    if best:
        rows = []
        for trial in best:
            point = {key: digits(each) if isinstance(each, float) else str(each) for key, each in trial.point.items()}
            rows.append({TRIAL: str(trial.number), **point, **texts_of(trial)})
        several = loaded.search is not None and len(loaded.search.objectives) > 1
        what = "the Pareto front of the trials" if several else "the best trial"
        print_table(rows, {name: name for name in rows[0]}, f"{loaded.name} ({size}): {what}")
        if short or pruned:
            said = f"{short} fell short of a target, {pruned} were pruned"
            print(f"of {total} trials {said}; these cannot be the best")
    else:
        print(f"none of {total} trials reached all targets: {short} fell short of a target, {pruned} were pruned")
    where = f"{'' if size == USUAL else f' --size {size}'}{f' --runs {place.folder}' if place.folder else ''}"
    print(f"all of them: edgesim study table {study}{where}")
