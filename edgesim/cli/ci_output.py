"""The commands that hand results on: to who watches, to a CI service, and to other tools."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from edgesim.cli.export import ExportTo
from edgesim.cli.study import Runs
from edgesim.cli.tolerances import Tolerances


def watch(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    every: Annotated[float, typer.Option(min=0.1, metavar="SECONDS", help="Between two looks.")] = 1.0,
    session: Annotated[
        str | None, typer.Option("--session", metavar="NAME", help="Which session, of a run of several.")
    ] = None,
) -> None:
    """Show a run that goes on in another process, until it ends; the exit code is 0 if it finished, else 1.

    It reads what the run has written to its folder, which is every few seconds, and disturbs it in nothing.
    """
    from edgesim.cli.watch import watch as look

    look(run, every, session)


def diff(
    run_a: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    run_b: Annotated[Path, typer.Argument(metavar="RUN", help="Another run folder.")],
    tolerance: Tolerances = None,
) -> None:
    """Compare the tables and weights of two runs value by value; the exit code is 1 if they differ.

    A tolerance is of a column as in rounds.energy_j, of all columns of a name as in energy_j, or of `weights`.
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
        list[Path] | None, typer.Argument(metavar="[GOLDEN...]", help="Folders of golden tables; default golden/*.")
    ] = None,
    update: Annotated[
        bool, typer.Option("--update", help="Write the tables anew instead, and show what moved.")
    ] = False,
    from_: Annotated[
        Path | None, typer.Option("--from", metavar="RUN", help="Compare this run, or a study's folder of runs.")
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="So many runs at a time, a process and thread each.")] = 1,
    tolerance: Tolerances = None,
    junit: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a JUnit XML file, a case each run.")] = None,
    as_json: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write all that was found as JSON.")
    ] = None,
    markdown: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a summary for a pull request.")] = None,
) -> None:
    """Run the studies of golden tables and compare; the exit code is 1 on a difference and 2 on broken input."""
    from edgesim.cli.check import Files, run_check

    run_check(goldens or [], update, from_, workers, tolerance or [], Files(junit, as_json, markdown))


def export(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN|STUDY...", help="Run folders, folders of them, patterns; or study files."),
    ],
    to: Annotated[ExportTo, typer.Option("--to", help="What to write.")],
    out: Annotated[str, typer.Option(metavar="FOLDER", help="Where; of mlflow also the address of a tracking store.")],
    size: Annotated[str, typer.Option(metavar="quick|full", help="Of a study: which size.")] = "quick",
    folder: Runs = None,
) -> None:
    """Write runs for other tools: TensorBoard and MLflow with simulated time as their step, or tables in files."""
    from edgesim.cli.export import export_runs

    export_runs(runs, to.value, out, size, folder)


COMMANDS = (watch, diff, check, export)
