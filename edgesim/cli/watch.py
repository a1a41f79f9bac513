"""The `watch` command: looks at the run folder of another process, and changes nothing in it."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import typer
from rich.console import Console

from edgesim.cli.show import print_note
from edgesim.core.errors import ConfigError
from edgesim.records.lock import is_held
from edgesim.records.manifest import MANIFEST, RUNNING, read_manifest
from edgesim.reports.load import Run, open_run
from edgesim.simulation.live import Display, glance_of

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
            display.show(glance_of(run))
    if run is None:
        raise ConfigError(f"{folder}: the run that was about to begin there has ended without a trace")
    rounds = len(run.rounds)
    reason = f": {run.manifest['stop_reason']}" if run.manifest.get("stop_reason") else ""
    print(f"{run.name}: {run.status} after {rounds} round{'s'[: rounds != 1]}{reason}")
    if not run.finished:
        raise typer.Exit(1)


def _states(folder: Path, every_s: float) -> Iterator[Run]:
    """Yield the run each time that its state in the folder is another, the last time when it goes on no more."""
    if not (folder / MANIFEST).exists() and is_held(folder):
        print_note(f"{folder}: a run is about to begin there")
    seen, goes_on = "", True
    while goes_on:
        began_s = time.perf_counter()
        goes_on = is_held(folder)  # asked first: what is read after the end is the end
        try:
            manifest = read_manifest(folder)
            state = f"{manifest['sha256']} {manifest['status']}"
            if state != seen:
                yield _opened(folder)
                seen = state
            goes_on = manifest["status"] == RUNNING
        except ConfigError:
            if not goes_on:  # nobody is writing it
                yield _opened(folder)
        if goes_on:
            time.sleep(max(every_s, _READING * (time.perf_counter() - began_s)))


def _opened(folder: Path) -> Run:
    """Return the run in a folder with the tables that are looked at."""
    run = open_run(folder, _TABLES)
    run.read(_TABLES)
    return run
