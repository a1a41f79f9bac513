"""The command `watch`: a run of another process, on a terminal or as a local page in a browser."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edgesim.cli.options import InSession, OneRun
from edgesim.cli.printing import print_note
from edgesim.core.errors import ConfigError
from edgesim.files.reading import one_line, visible

if TYPE_CHECKING:
    from edgesim.reports.html.local_server import Resource
    from edgesim.reports.load import Run

_SHOWN = ("devices", "rounds", "evals")  # tables: jobs may be many millions, and a terminal shows no single one
_READING = 20  # reading and drawing take at most a 20th of the time
_LAST_PORT = 65535


def watch(
    run: OneRun,
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
    if port is not None and not web:
        raise ConfigError("--port: is for --web")
    if web:
        _serve(run, every, session, port or 0)
    else:
        _show(run, every, session)


def _show(folder: Path, every_s: float, session: str | None) -> None:
    from rich.console import Console

    from edgesim.runs.progress import Display, glance_of

    followed, shown = _Followed(folder, _SHOWN), None
    with closing(Display(Console(file=sys.stdout, markup=False, highlight=False))) as display:
        if followed.waits:
            print_note(f"{folder}: waiting for a run to begin")
        while followed.goes_on:
            began_s = time.perf_counter()
            if (whole := followed.changed()) is not None:
                shown = whole if session is None else whole.session(session)
                display.show(replace(glance_of(shown), name=visible(followed.name_of(shown))))
            if followed.goes_on:
                time.sleep(max(every_s, _READING * (time.perf_counter() - began_s)))
    if shown is None:
        raise ConfigError(f"{folder}: the run that was to begin there ended and wrote nothing")
    rounds = len(shown.rounds)
    reason = f": {shown.manifest['stop_reason']}" if shown.manifest.get("stop_reason") else ""
    print(f"{followed.name_of(shown)}: {shown.status} after {rounds} round{'s'[: rounds != 1]}{reason}")
    if not shown.finished:
        raise typer.Exit(1)


def _serve(folder: Path, every_s: float, session: str | None, port: int) -> None:
    from edgesim.reports.html.live_page import assets_of_page
    from edgesim.reports.html.local_server import serving

    pages = _pages(folder, every_s, session)
    served = {"/": next(pages), **assets_of_page()}
    with suppress(KeyboardInterrupt), serving(served, port) as address:
        print(f"{address}  (Ctrl-C ends it)", flush=True)
        for page in pages:
            served["/"] = page


def _pages(folder: Path, every_s: float, session: str | None) -> Iterator[Resource]:
    """Yield the page of a run without end, whenever it has changed. Raises ConfigError if nothing is there at first."""
    from edgesim.reports.html.live_page import DRAWN, Progress, live_page, notes_of
    from edgesim.reports.html.words import number
    from edgesim.reports.load import open_run
    from edgesim.runs.progress import facts_of, glance_of

    def in_percent(accuracies: Sequence[float]) -> dict[str, str]:
        return {"accuracy": f"{number('accuracy', accuracies[-1])}, best {number('accuracy', max(accuracies))}"}

    followed = _Followed(folder, DRAWN)
    if not (followed.waits or folder.is_dir() or followed.place.is_dir()):
        followed.changed()  # raises
    if session is not None and not followed.waits:
        open_run(followed.place, ()).session(session)
    title, last = visible(folder.resolve().name), None
    if followed.waits:
        last = live_page(title, every_s, notes=["Waiting for the run to begin."])
        yield last
    while True:
        began_s, page = time.perf_counter(), None
        try:
            if (whole := followed.changed()) is not None:
                views = whole.views if session is None else (whole.session(session),)
                glances = [glance_of(view) for view in views]
                progress = [
                    Progress(
                        title=view.chosen or "",
                        status=f"{glance.method}, {glance.rounds}, {glance.status}",
                        share=glance.share,
                        facts=facts_of(glance) | (in_percent(glance.accuracies) if glance.accuracies else {}),
                    )
                    for view, glance in zip(views, glances, strict=True)
                ]
                page = live_page(title, every_s, progress, views, list(notes_of(whole)))
        except ConfigError as error:  # the folder may be damaged, replaced or gone, and come back
            page = live_page(title, every_s, notes=[one_line(str(error))])
        spent_s = 0.0 if last is None else time.perf_counter() - began_s  # much of the first time is spent on imports
        if page is not None and page != last:
            yield page
            last = page
        time.sleep(max(every_s, _READING * spent_s))


class _Followed:
    """A run folder that another process may be writing. `goes_on`: False once the run has ended."""

    def __init__(self, folder: Path, tables: Sequence[str]) -> None:
        """`tables`: the tables that are read at each change."""
        from edgesim.studies.runs import growing_folder

        self._folder = folder
        self._growing = growing_folder(Path(os.path.realpath(folder)))
        self._tables = tables
        self._seen = ""
        self.goes_on = True

    @property
    def place(self) -> Path:
        """The folder that is written: one beside it while a study makes the run, or was killed doing so."""
        from edgesim.records.lock import is_held
        from edgesim.records.manifest import MANIFEST

        folder, growing = self._folder, self._growing
        cut_off = not is_held(folder) and not (folder / MANIFEST).exists() and (growing / MANIFEST).exists()
        return growing if cut_off or is_held(growing) else folder

    @property
    def waits(self) -> bool:
        """True if a process has taken the folder, and no run has begun in it."""
        from edgesim.records.lock import is_held
        from edgesim.records.manifest import MANIFEST

        return not (self.place / MANIFEST).exists() and is_held(self._folder)

    def name_of(self, run: Run) -> str:
        """Return the name of the folder, also while a study still writes its run beside it."""
        return run.name.replace(self._growing.name, Path(os.path.realpath(self._folder)).name)

    def changed(self) -> Run | None:
        """Return the run if it has changed since the last call. Raises ConfigError if it cannot be read."""
        from edgesim.records.lock import is_held
        from edgesim.records.manifest import RUNNING, read_manifest

        self.goes_on = is_held(self._folder)  # asked first, so that a read after the end sees the final state
        try:
            place = self.place
            manifest = read_manifest(place)
            state, run = f"{manifest['sha256']} {manifest['status']}", None
            if state != self._seen:
                run, self._seen = self._opened(place), state
            self.goes_on = manifest["status"] == RUNNING
            return run
        except ConfigError:
            self._seen = ""
            return None if self.goes_on else self._opened(self._folder)  # unless a process is writing it

    def _opened(self, place: Path) -> Run:
        from edgesim.reports.load import open_run

        run = open_run(place, self._tables)
        run.read(self._tables)
        return run
