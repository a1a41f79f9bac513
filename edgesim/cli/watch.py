"""The command `watch`: a run of another process, on a terminal or, as a study too, as a local page in a browser."""

from __future__ import annotations

import sys
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from edgesim.cli.options import InSession, StudyFolder
from edgesim.cli.printing import print_note
from edgesim.core.errors import ConfigError
from edgesim.files.reading import visible

_LAST_PORT = 65535


def watch(
    what: Annotated[Path, typer.Argument(metavar="RUN|STUDY", help="A run folder, or with --web a study file (TOML).")],
    place: StudyFolder,
    every: Annotated[float, typer.Option(min=0.1, metavar="SECONDS", help="Refresh interval.")] = 1.0,
    session: InSession = None,
    web: Annotated[
        bool, typer.Option("--web", help="Serve a page with charts to browsers of this machine, until Ctrl-C.")
    ] = False,
    port: Annotated[
        int | None, typer.Option(min=0, max=_LAST_PORT, help="Port of the page. Default: a free one.")
    ] = None,
) -> None:
    """Show a run of another process until it ends. The exit code is 0 if the run finished, else 1.

    The command only reads the run folder, which the run updates every few seconds.
    """
    is_study = what.suffix == ".toml"
    if port is not None and not web:
        raise ConfigError("--port: is for --web")
    if is_study and not web:
        raise ConfigError(f"{what}: a study is watched with --web; name a run folder without it")
    if is_study and session is not None:
        raise ConfigError("--session: is for a run, not for a study")
    if not is_study and place != StudyFolder():
        raise ConfigError("--runs, --size: are for studies")
    if not web:
        _show(what, every, session)
        return
    from edgesim.cli.watch_page import CellsOnPage, RunOnPage, serve

    serve(CellsOnPage(what, place, every) if is_study else RunOnPage(what, session, every), every, port or 0)


def _show(folder: Path, every_s: float, session: str | None) -> None:
    from rich.console import Console

    from edgesim.runs.progress import READING, SHOWN, Display, glance_of
    from edgesim.studies.followed import FollowedRun

    followed, shown = FollowedRun(folder, SHOWN), None
    with closing(Display(Console(file=sys.stdout, markup=False, highlight=False))) as display:
        if followed.waits:
            print_note(f"{folder}: waiting for a run to begin")
        while followed.goes_on:
            began_s = time.perf_counter()
            if (whole := followed.changed()) is not None:
                shown = whole if session is None else whole.session(session)
                display.show(replace(glance_of(shown), name=visible(followed.name_of(shown))))
            if followed.goes_on:
                time.sleep(max(every_s, READING * (time.perf_counter() - began_s)))
    if shown is None:
        raise ConfigError(f"{folder}: the run that was to begin there ended and wrote nothing")
    rounds = len(shown.rounds)
    reason = f": {shown.manifest['stop_reason']}" if shown.manifest.get("stop_reason") else ""
    print(f"{followed.name_of(shown)}: {shown.status} after {rounds} round{'s'[: rounds != 1]}{reason}")
    if not shown.finished:
        raise typer.Exit(1)
