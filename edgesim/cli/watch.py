"""The `watch` command: looks at the run folder of another process, and changes nothing in it."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import typer
from rich.console import Console

from edgesim.cli.show import print_note
from edgesim.core.errors import ConfigError
from edgesim.files.reading import visible
from edgesim.records.lock import is_held
from edgesim.records.manifest import MANIFEST, RUNNING, read_manifest
from edgesim.reports.load import Run, open_run
from edgesim.runs.progress import Display, glance_of
from edgesim.studies.runs import growing_folder

_TABLES = ("devices", "rounds", "evals")  # jobs may be many millions, and nothing is told of single ones
_READING = 20  # reading takes at most one of so many seconds


def watch(folder: Path, every_s: float, session: str | None = None) -> None:
    """Show the run in a folder until it ends; the command then ends with 0 if it finished, else with 1.

    `every_s`: seconds between two looks. `session`: which, of a run of several. Raises ConfigError if there is no run,
    and nobody is about to begin one, or none of the sessions is named.
    """
    run: Run | None = None
    with closing(Display(Console(file=sys.stdout, markup=False, highlight=False))) as display:
        for whole in _states(folder, every_s):
            run = whole if session is None else whole.session(session)
            display.show(replace(glance_of(run), name=visible(_name(run, folder))))
    if run is None:
        raise ConfigError(f"{folder}: the run that was about to begin there has ended without a trace")
    rounds = len(run.rounds)
    reason = f": {run.manifest['stop_reason']}" if run.manifest.get("stop_reason") else ""
    print(f"{_name(run, folder)}: {run.status} after {rounds} round{'s'[: rounds != 1]}{reason}")
    if not run.finished:
        raise typer.Exit(1)


def _states(folder: Path, every_s: float) -> Iterator[Run]:
    """Yield the run each time that its state in the folder is another, the last time when it goes on no more."""
    if not (_written_to(folder) / MANIFEST).exists() and is_held(folder):
        print_note(f"{folder}: a run is about to begin there")
    seen, goes_on = "", True
    while goes_on:
        began_s = time.perf_counter()
        goes_on = is_held(folder)  # asked first: what is read after the end is the end
        place = _written_to(folder)
        try:
            manifest = read_manifest(place)
            state = f"{manifest['sha256']} {manifest['status']}"
            if state != seen:
                yield _opened(place)
                seen = state
            goes_on = manifest["status"] == RUNNING
        except ConfigError:
            if not goes_on:  # nobody is writing it
                yield _opened(folder)
        if goes_on:
            time.sleep(max(every_s, _READING * (time.perf_counter() - began_s)))


def _name(run: Run, folder: Path) -> str:
    """Return the name of a run, which is that of its place also before it is there."""
    place = Path(os.path.realpath(folder))
    return run.name.replace(growing_folder(place).name, place.name)


def _written_to(folder: Path) -> Path:
    """Return where the run of a folder is written: beside it while a study makes it, or was killed as it did."""
    growing = growing_folder(Path(os.path.realpath(folder)))
    cut_off = not is_held(folder) and not (folder / MANIFEST).exists() and (growing / MANIFEST).exists()
    return growing if cut_off or is_held(growing) else folder


def _opened(folder: Path) -> Run:
    """Return the run in a folder with the tables that are looked at."""
    run = open_run(folder, _TABLES)
    run.read(_TABLES)
    return run
