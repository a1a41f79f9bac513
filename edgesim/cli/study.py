"""Commands about studies: plan and run the missing cells, print tables, plot."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from edgesim.cli.checkpoint import Every, Fresh, seconds
from edgesim.cli.formats import AsCsv, AsJson, AsLatex, SortBy
from edgesim.cli.planned import looked_at, owned, planned_of
from edgesim.core.errors import ConfigError, EdgesimError

if TYPE_CHECKING:
    import pandas as pd

    from edgesim.execution.processes import Pool
    from edgesim.reports.load import Run
    from edgesim.studies.study import Study, StudyCell

_EQUAL = 1e-9  # relative; the mean of equal numbers may differ in the last bit

commands = typer.Typer(help="Run a study, many scenarios with one question, and print its table.")


class _Where(StrEnum):
    """Processes that run cells, named like the backends that train in such processes."""

    MACHINE = "workers"
    CLUSTER = "ray"


StudyFile = Annotated[Path, typer.Argument(metavar="STUDY", help="A study file (TOML).")]
Only = Annotated[
    list[str] | None, typer.Option(metavar="CELL", help="Only cells such as method=fedavg,seed=1. Repeatable.")
]
SizeName = Annotated[str, typer.Option(metavar="quick|full", help="Size of the study.")]
Runs = Annotated[
    Path | None, typer.Option("--runs", help="Folder of the runs of the study. Default: runs/studies/STUDY/SIZE.")
]


@commands.command()
def plan(
    study: StudyFile,
    only: Only = None,
    size: SizeName = "quick",
    folder: Runs = None,
    as_json: AsJson = False,
) -> None:
    """Build all missing cells without training, and estimate the time and disk space to run them on this host."""
    from edgesim.cli.scenario import warn
    from edgesim.cli.show import print_json, print_table
    from edgesim.reports.format import text
    from edgesim.studies.plan import bad

    loaded, cells, warnings = looked_at(study, only, size, folder, costs=True)
    headings = {"cell": "cell", "state": "state", "host_s": "host time", "disk_bytes": "disk", "fault": "why"}
    rows: list[dict[str, Any]] = [{"cell": each.planned.cell.name, **each.told()} for each in cells]
    totals = {name: sum(row[name] or 0 for row in rows) for name in ("host_s", "disk_bytes")}
    if as_json:
        print_json({"study": loaded.name, "size": size, "cells": rows, "totals": totals, "warnings": warnings})
    else:
        print_table(rows, headings, f"{loaded.name} ({size})")
        unknown = any(row["host_s"] is None and row["state"] not in ("done", "bad") for row in rows)
        spent = ", ".join(text(name, value) for name, value in totals.items())
        print(f"to run: {spent} in one process{', without those that cannot be told' if unknown else ''}")
        warn(warnings)
    if faults := bad(cells):
        raise EdgesimError(f"{len(faults)} of {len(cells)} cells cannot be run; {faults[0]}")


@commands.command()
def run(
    study: StudyFile,
    only: Only = None,
    workers: Annotated[
        int, typer.Option(min=1, help="Number of cells in parallel, each in a process with one thread.")
    ] = 1,
    size: SizeName = "quick",
    folder: Runs = None,
    checkpoint: Every = None,
    fresh: Fresh = False,
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
    from edgesim.cli.scenario import warn
    from edgesim.cli.show import print_note
    from edgesim.studies.eta import StudyProgress
    from edgesim.studies.order import apart
    from edgesim.studies.plan import bad
    from edgesim.studies.runs import claim, run_all

    checkpoint_s = seconds(checkpoint)
    if backend is _Where.CLUSTER:
        from edgesim.execution.ray_cluster import check_installed

        check_installed("--backend")
    elif address:
        raise ConfigError("--address: is that of a Ray cluster; add --backend ray")
    elif workers > 1:  # processes load the code while this one builds the cells
        from edgesim.execution.processes import warm_up

        warm_up("edgesim.runs.simulate")
    _, cells, warnings = looked_at(study, only, size, folder)
    faults = bad(cells)
    done = [each.planned for each in cells if each.state == "done" and not fresh]
    print_note(f"{len(done)} of {len(cells)} cells are done")
    warn(warnings)
    if faults and not keep_going:
        _print_lines(faults)
        raise EdgesimError(
            f"{len(faults)} of {len(cells)} cells cannot be run, so none was; --keep-going runs the others; {faults[0]}"
        )
    missing = [each.planned for each in cells if each.state != "bad" and each.planned not in done]
    if missing:
        claim(*owned(study, size, folder))
    pool: AbstractContextManager[Pool | None] = nullcontext()
    if missing and backend is _Where.CLUSTER:
        from edgesim.studies.on_ray import ray_pool

        missing = [replace(each, folder=each.folder.absolute()) for each in missing]  # for processes on other machines
        pool = ray_pool(missing, workers, address)
    progress = StudyProgress(apart(missing) if fresh else missing, done, workers)
    try:
        with pool as processes:
            for step in run_all(missing, workers, checkpoint_s, fresh, processes):
                print_note(progress.take(step))
    except KeyboardInterrupt as stop:
        print_note("interrupted; the cells that ended are kept")
        raise typer.Exit(130) from stop
    failed = progress.failed
    if keep_going and (faults or failed):
        _print_lines([*faults, *failed])
        print_note(f"{len(faults)} of {len(cells)} cells cannot be run, {len(failed)} failed")
        raise typer.Exit(1)
    if failed:
        raise EdgesimError(f"{len(failed)} of {len(missing)} cells failed; {failed[0]}")


@commands.command()
def optimise(
    study: StudyFile,
    trials: Annotated[int, typer.Option(min=1, help="Number of trials in total, including those of earlier commands.")],
    workers: Annotated[
        int, typer.Option(min=1, help="Number of cells in parallel, each in a process with one thread.")
    ] = 1,
    size: SizeName = "quick",
    folder: Runs = None,
    checkpoint: Every = None,
    fresh: Fresh = False,
    as_json: AsJson = False,
) -> None:
    """Search the space of a study for the best objectives. The trials become cells of the study.

    After an interruption the same command continues the search and comes to the same trials.
    """
    checkpoint_s = seconds(checkpoint)
    if workers > 1:
        from edgesim.execution.processes import warm_up

        warm_up("edgesim.runs.simulate")
    from edgesim.cli.optimise import optimise_study

    optimise_study(study, trials, workers, size, folder, checkpoint_s, fresh, as_json)


@commands.command()
def table(
    study: StudyFile,
    only: Only = None,
    size: SizeName = "quick",
    folder: Runs = None,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
    as_markdown: Annotated[
        bool, typer.Option("--markdown", help="Print a Markdown section with a line for each cell.")
    ] = False,
    as_latex: AsLatex = False,
    long: Annotated[
        bool, typer.Option("--long", help="Print a line for each column: runs, deviation, intervals, ratio.")
    ] = False,
    sort: SortBy = None,
) -> None:
    """Print means over seeds with published values. Targets that some runs missed have medians.

    --long: also print standard deviation, 95 % intervals and all other statistics over seeds.
    """
    from edgesim.cli.formats import one_of, order
    from edgesim.studies.values import numbers, reordered, tabulate

    style = one_of(json=as_json, csv=as_csv, markdown=as_markdown, latex=as_latex, long=long)
    found = made(study, only, size, folder)
    rows = tabulate(found.study, found.runs)
    if sort:
        rows = reordered(rows, order(numbers(rows), sort))
    if style == "markdown":
        print(f"## {found.study.name}\n\n`edgesim study run {study} --size {size}`\n")
    _print(rows, found.study.name, size, style)
    if style == "markdown" and found.missing:
        print(f"\n{found.told}.")  # the page is read without the notes of this command
    if style == "markdown":
        print()


class MadeRuns(NamedTuple):
    """Existing runs of a study, the number of its cells, and the names of missing cells."""

    study: Study
    runs: Sequence[tuple[StudyCell, Run]]
    cells: int
    missing: Sequence[str]

    @property
    def told(self) -> str:
        """Number of missing cells in words."""
        return f"{len(self.missing)} of {self.cells} cells are missing"


def made(study: Path, only: list[str] | None, size: str, folder: Path | None) -> MadeRuns:
    """Return the runs of a study, and report missing, outdated and diverged runs on stderr.

    Raises EdgesimError if there are no runs.
    """
    from edgesim.cli.show import print_note

    loaded, planned = planned_of(study, only, size, folder)
    kept = [(each, run) for each in planned if (run := each.kept()) is not None]
    if not kept:
        others = sum(each.folder.exists() for each in planned)
        stale = f" as the study is now, {others} as it was before" if others else ""
        raise EdgesimError(f"{study}: no cell has been run{stale}; first: edgesim study run {study} --size {size}")
    here = {each.cell.name for each, _ in kept}
    missing = [each.cell.name for each in planned if each.cell.name not in here]
    found = MadeRuns(loaded, [(each.cell, run) for each, run in kept], len(planned), missing)
    if missing:
        print_note(found.told)
    if not all(each.is_done() for each, _ in kept):
        print_note("some runs were made by other code; edgesim study run makes them anew")
    for learned, charged in dict.fromkeys((run.learned_by, run.charged_as) for _, run in kept if run.charged_as):
        print_note(f"learned by {learned}, charged as {charged}")
    astray = [each.cell.name for each, run in kept if run.manifest.get("diverged")]
    if astray:
        print_note(f"{len(astray)} of {len(kept)} runs diverged: {'; '.join(astray)}")
    return found


@commands.command()
def plot(
    study: StudyFile,
    kind: Annotated[
        str,
        typer.Option(
            metavar="KIND", help="One of accuracy, targets, pareto, energy, cost, heat, rounds, lorenz, topology."
        ),
    ] = "accuracy",
    only: Only = None,
    size: SizeName = "quick",
    folder: Runs = None,
    x: Annotated[str, typer.Option(help="Axes for accuracy, a column for pareto, an axis of the study for heat.")] = "",
    y: Annotated[str, typer.Option(help="The second column or axis.")] = "",
    column: Annotated[str, typer.Option(help="The column for targets and heat. Default: the first that fits.")] = "",
    width: Annotated[
        str, typer.Option(metavar="single|double|W", help="Width of the figure: columns of a journal, or 9cm.")
    ] = "single",
    out: Annotated[
        Path | None, typer.Option(help="The file. Without an ending, a PNG and an SVG. Default: the kind.")
    ] = None,
    formats: Annotated[
        str | None, typer.Option("--format", metavar="FORMATS", help="One or more of png, svg, pdf, with commas.")
    ] = None,
    title: Annotated[str, typer.Option(help="Title above the figure.")] = "",
) -> None:
    """Plot a study for a paper: statistics over seeds of its configurations."""
    from edgesim.cli.figures import plot_study

    for path in plot_study(study, kind, only, size, folder, (x, y, column), width, out, formats, title):
        print(path)


def _print_lines(lines: Sequence[str]) -> None:
    from edgesim.cli.show import print_note

    for line in lines:
        print_note(line)


def _print(rows: pd.DataFrame, name: str, size: str, style: str) -> None:
    from edgesim.cli.formats import latex, markdown
    from edgesim.cli.frames import print_digits
    from edgesim.cli.grid import GridColumn, print_grid
    from edgesim.cli.show import print_json
    from edgesim.studies.values import axes_of, few_runs, pivoted

    if style == "json":
        print_json(
            {"study": name, "size": size, "rows": rows.astype(object).where(rows.notna(), None).to_dict("records")}
        )
        return
    if style == "csv":
        from edgesim.files.tables import csv_text

        print(csv_text(rows), end="")
        return
    labels, table = axes_of(rows), pivoted(rows)
    headings = list(map(str, table.columns))
    cells = [list(row) for row in table.itertuples(index=False, name=None)]
    if style == "markdown":
        print(markdown([each if each in labels else f"`{each}`" for each in headings], cells))
    elif style == "latex":
        print(latex(headings, cells))
    elif style == "long":
        print_digits(rows.dropna(axis="columns", how="all"), f"{name} ({size})", keys=len(labels) + 1)
        if note := few_runs(rows):
            print(note)
        _print_equal(rows)
    else:
        print(f"{name} ({size})")
        print_grid([GridColumn(each, list(table[each])) for each in headings], keys=len(labels))
        _print_equal(rows)


def _print_equal(rows: pd.DataFrame) -> None:
    import numpy as np

    beside = rows[rows["published"].notna() & rows["mean"].notna()]
    if len(beside):
        equal = np.isclose(beside["mean"], beside["published"], rtol=_EQUAL, atol=0).sum()
        print(f"{equal} of {len(beside)} published numbers are equal")
