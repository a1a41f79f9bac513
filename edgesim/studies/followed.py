"""A run folder that another process may be writing, also a study that makes the run of a cell."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from edgesim.core.errors import ConfigError
from edgesim.records.lock import is_held
from edgesim.records.manifest import MANIFEST, RUNNING, read_manifest
from edgesim.reports.load import Run, open_run
from edgesim.studies.runs import growing_folder


class FollowedRun:
    """Reads a run folder again whenever it has changed. `goes_on`: False once the run has ended."""

    def __init__(self, folder: Path, tables: Sequence[str]) -> None:
        """`tables`: the tables that are read at each change."""
        self._folder = folder
        self._growing = growing_folder(Path(os.path.realpath(folder)))
        self._tables = tables
        self._seen = ""
        self.goes_on = True

    @property
    def place(self) -> Path:
        """The folder that is written: one beside it while a study makes the run, or was killed doing so."""
        folder, growing = self._folder, self._growing
        cut_off = not is_held(folder) and not (folder / MANIFEST).exists() and (growing / MANIFEST).exists()
        return growing if cut_off or is_held(growing) else folder

    @property
    def waits(self) -> bool:
        """True if a process has taken the folder, and no run has begun in it."""
        return not (self.place / MANIFEST).exists() and is_held(self._folder)

    def name_of(self, run: Run) -> str:
        """Return the name of the folder, also while a study still writes its run beside it."""
        return run.name.replace(self._growing.name, Path(os.path.realpath(self._folder)).name)

    def changed(self) -> Run | None:
        """Return the run if it has changed since the last call. Raises ConfigError if it cannot be read."""
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
        run = open_run(place, self._tables)
        run.read(self._tables)
        return run
