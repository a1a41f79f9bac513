"""Writes a run folder. What lies there is always one whole state of the run, or the folder says that it was cut off."""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from safetensors.numpy import save

from edgesim.core.errors import ConfigError
from edgesim.files.atomic import checkpoint_of
from edgesim.records.lock import check_free, hold
from edgesim.records.manifest import CUT_OFF, FINISHED, MANIFEST, NEXT, RUNNING, read_manifest, sealed
from edgesim.records.schema import TABLES, conform

WEIGHTS = ("final", "best")

Tables = Mapping[str, pd.DataFrame]
Weights = Mapping[str, Mapping[str, np.ndarray]]


def check_writable(folder: Path, overwrite: bool = False, goes_on: bool = False) -> None:
    """Raise ConfigError if a run folder cannot be made at this path. Asked before a run, so that none is lost.

    `overwrite`: a run that is there may be replaced. `goes_on`: one that did not finish is gone on with. Raises
    FolderBusy if a run is going on there.
    """
    check_free(folder)
    try:
        exists = folder.exists()
    except OSError as error:  # such as a name that is too long
        raise ConfigError(f"{folder}: cannot be made: {error.strerror}") from error
    if exists:
        _check_replaceable(folder, overwrite, goes_on)
        return
    ancestor = next(parent for parent in folder.absolute().parents if parent.exists())
    if not (ancestor.is_dir() and os.access(ancestor, os.W_OK | os.X_OK)):
        raise ConfigError(f"{folder}: cannot be made, as {ancestor} is not a writable folder")


@contextmanager
def taken(folder: Path, overwrite: bool = False, goes_on: bool = False) -> Iterator[RunFolder]:
    """Give a run folder to write, which nobody else writes meanwhile. Nothing is made or replaced before `write`.

    Raises as `check_writable` does.
    """
    check_writable(folder, overwrite, goes_on)
    with hold(folder):
        run = RunFolder(folder)
        if run.aside.exists() and not folder.exists():  # killed as it was to be replaced
            run.aside.rename(folder)
        if folder.exists():
            status = _check_replaceable(folder, overwrite, goes_on)
            run.replaces = not (goes_on and status != FINISHED)
            if status != CUT_OFF:  # it stands, and its writer was killed before it could give up what was there before
                shutil.rmtree(run.aside, ignore_errors=True)
            _settle(folder)
        try:
            yield run
        finally:
            run.leave()


class RunFolder:
    """A run folder that this process alone writes, state after state. `aside`: where one lies that it replaces."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.aside = path.with_name(f".{path.name}.old")
        self.replaces = False  # whether the run that is there is to be taken away before the first state is written
        self._growing = path.with_name(f".{path.name}.growing")
        self._only_begun = False

    def write(self, tables: Tables, manifest: Mapping[str, Any], weights: Weights) -> None:
        """Put a state of the run in the place of the one before; a kill at any instant leaves one of the two.

        With the first state that is not "running" a run that was replaced is given up. Raises ConfigError if it cannot
        be written; what could not be written then is gone, what was there before is not.
        """
        running = manifest.get("status") == RUNNING
        try:
            if self.replaces:
                self._put_aside()
            begins = not self.path.exists()
            self._put(tables, manifest, weights)
            self._only_begun = running and (begins or self._only_begun) and not len(tables["rounds"])
            if not running:
                shutil.rmtree(self.aside, ignore_errors=True)
        except OSError as error:
            raise ConfigError(f"{self.path}: cannot be written: {error}") from error

    def leave(self) -> None:
        """Clear away what is not part of a state; a run that came to nothing leaves nothing, and what it replaced."""
        shutil.rmtree(self._growing, ignore_errors=True)
        if self._only_begun:
            shutil.rmtree(self.path, ignore_errors=True)
        if self.path.exists():
            _settle(self.path)
        elif self.aside.exists():
            self.aside.rename(self.path)

    def _put_aside(self) -> None:
        """Take the run away that is to be replaced; if that was doing so itself, what it replaced is kept instead."""
        if self.aside.exists():
            shutil.rmtree(self.path)
        else:
            self.path.rename(self.aside)
        self.replaces = False

    def _put(self, tables: Tables, manifest: Mapping[str, Any], weights: Weights) -> None:
        new = self.path / NEXT if self.path.exists() else self._growing
        shutil.rmtree(new, ignore_errors=True)  # left by a run that was killed while it wrote
        new.mkdir(parents=True)
        digests = {}
        for name, content in _contents(str(self.path), tables, weights):
            (new / name).write_bytes(content)
            digests[name] = sha256(content).hexdigest()
        (new / MANIFEST).write_text(sealed(dict(manifest), digests), encoding="utf-8")
        if new == self._growing:
            new.rename(self.path)
        else:
            (new / MANIFEST).replace(self.path / MANIFEST)  # from here on the new state holds
            _settle(self.path)


def _contents(where: str, tables: Tables, weights: Weights) -> Iterator[tuple[str, bytes]]:
    missing = TABLES.keys() - tables.keys()
    if missing:
        raise ConfigError(f"{where}: no table {', '.join(sorted(missing))}")
    for table in TABLES:
        buffer = io.BytesIO()
        conform(table, tables[table], where).to_parquet(buffer, index=False)
        yield f"{table}.parquet", buffer.getvalue()
    for which, arrays in weights.items():
        # safetensors writes the memory as it lies, so a transposed view must be laid out first.
        yield f"{which}.safetensors", save({name: np.asarray(array, order="C") for name, array in arrays.items()})


def _settle(folder: Path) -> None:
    """Put the files that the manifest names in their places, and remove those of other states."""
    if not (folder / NEXT).exists():
        return
    digests = read_manifest(folder)["files"]
    for path in (folder / NEXT).glob("*"):
        if sha256(path.read_bytes()).hexdigest() == digests.get(path.name):
            path.replace(folder / path.name)
    for name in (f"{which}.safetensors" for which in WEIGHTS):
        if name not in digests:
            (folder / name).unlink(missing_ok=True)
    shutil.rmtree(folder / NEXT, ignore_errors=True)


def _check_replaceable(folder: Path, overwrite: bool, goes_on: bool) -> str:
    """Return the status of the run in a folder. Raises ConfigError if it is none, or one that may not be replaced."""
    try:
        status = str(read_manifest(folder).get("status"))
    except ConfigError as error:  # it may hold anything
        raise ConfigError(f"{folder}: already exists; remove it or choose another run folder") from error
    if overwrite or (goes_on and status != FINISHED):
        return status
    more = ""
    if status != FINISHED and checkpoint_of(folder).exists():
        more = f", --checkpoint goes on from {checkpoint_of(folder)}"
    raise ConfigError(f"{folder}: already exists, a run that is {status}; --overwrite replaces it{more}")
