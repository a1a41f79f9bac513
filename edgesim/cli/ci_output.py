"""Commands that pass results on: to a terminal, to a CI service, and to other tools."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from edgesim.cli.export import ExportTo
from edgesim.cli.study import Runs
from edgesim.cli.tolerances import Tolerances


def watch(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    every: Annotated[float, typer.Option(min=0.1, metavar="SECONDS", help="Refresh interval.")] = 1.0,
    session: Annotated[
        str | None, typer.Option("--session", metavar="NAME", help="The session to show, if the run has several.")
    ] = None,
) -> None:
    """Show a run of another process until it ends. The exit code is 0 if the run finished, else 1.

    The command only reads the run folder, which the run updates every few seconds.
    """
    from edgesim.cli.watch import watch as look

    look(run, every, session)


def diff(
    run_a: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    run_b: Annotated[Path, typer.Argument(metavar="RUN", help="Another run folder.")],
    tolerance: Tolerances = None,
) -> None:
    """Compare tables and weights of two runs value by value. The exit code is 1 if they differ.

    A tolerance applies to a column as in rounds.energy_j, to all columns of a name as in energy_j, or to `weights`.
    """
    from edgesim.cli import show
    from edgesim.cli.open_runs import opened
    from edgesim.cli.tolerances import tolerances_of
    from edgesim.reports.compare import diff as compare

    allowed = tolerances_of(tolerance or [])
    found = compare(opened(run_a), opened(run_b), allowed)
    if found.empty:
        print("identical" if not allowed else "equal within the tolerances")
        return
    show.print_frame(found.astype({"a": "str", "b": "str"}))
    raise typer.Exit(1)


def check(
    goldens: Annotated[
        list[Path] | None, typer.Argument(metavar="[GOLDEN...]", help="Folders of golden tables. Default: golden/*.")
    ] = None,
    update: Annotated[bool, typer.Option("--update", help="Rewrite the tables and show the changes.")] = False,
    from_: Annotated[
        Path | None, typer.Option("--from", metavar="RUN", help="Compare this run, or the folder of runs of a study.")
    ] = None,
    workers: Annotated[
        int, typer.Option(min=1, help="Number of runs in parallel, each in a process with one thread.")
    ] = 1,
    tolerance: Tolerances = None,
    junit: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a JUnit XML file with a case for each run.")
    ] = None,
    as_json: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write all results as JSON.")] = None,
    markdown: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a summary for a pull request.")] = None,
) -> None:
    """Rerun and compare golden tables. The exit code is 1 on a difference and 2 on broken input."""
    from edgesim.cli.check import Files, run_check

    run_check(goldens or [], update, from_, workers, tolerance or [], Files(junit, as_json, markdown))


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
    size: Annotated[str, typer.Option(metavar="quick|full", help="Size of the study.")] = "quick",
    folder: Runs = None,
) -> None:
    """Export runs to TensorBoard or MLflow, with simulated time as step, or to table files."""
    from edgesim.cli.export import export_runs

    export_runs(runs, to.value, out, size, folder)


COMMANDS = (watch, diff, check, export)
