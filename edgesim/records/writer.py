"""Writes a run folder and its parquet tables.

The folder always holds one complete state of the run, or its status is "cut off".
"""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from safetensors.numpy import save

from edgesim.core.errors import ConfigError
from edgesim.core.limits import memory_bytes
from edgesim.files.atomic import checkpoint_of, whole_file
from edgesim.files.tables import column_names, read_columns
from edgesim.records.lock import check_free, hold
from edgesim.records.manifest import (
    CUT_OFF,
    FINISHED,
    MANIFEST,
    NEXT,
    PARTS,
    RUNNING,
    STAMP,
    digest_of,
    read_file,
    read_manifest,
    sealed,
)
from edgesim.records.schema import PART_ROWS, TABLES, conform


def as_arrow(frame: pd.DataFrame) -> pa.Table:
    """Return a frame as an Arrow table without its index, as pandas itself would write it to parquet."""
    return pa.Table.from_pandas(frame, preserve_index=False)


def encoded(frame: pd.DataFrame) -> bytes:
    """Return the content of a parquet file with the rows of a frame."""
    buffer = io.BytesIO()
    _write([as_arrow(frame)], buffer)
    return buffer.getvalue()


@cache
def _without_rows(table: str) -> bytes:
    """Return the content of the parquet file of a table that has no rows, as several of most runs have none."""
    columns = {name: pd.Series(dtype=dtype) for name, dtype in TABLES[table].items()}
    return encoded(conform(table, pd.DataFrame(columns), table))


def join(parts: Iterable[bytes], rest: pd.DataFrame, path: Path) -> None:
    """Write a parquet file with the rows of parts, each the content of a parquet file, followed by those of a frame.

    Each part must have PART_ROWS rows. Then the file is the same as if all rows had been written at once. Raises
    OSError if it cannot be written.
    """

    def rows() -> Iterable[pa.Table]:
        for part in parts:
            yield read_columns(path, column_names(path, ConfigError, part), ConfigError, part)
        if len(rest):
            yield as_arrow(rest)

    _write(rows(), path)


def _write(tables: Iterable[pa.Table], where: Path | io.BytesIO) -> None:
    writer = None
    try:
        for table in tables:
            writer = writer or pq.ParquetWriter(where, table.schema)
            writer.write_table(table, row_group_size=PART_ROWS)
    finally:
        if writer is not None:
            writer.close()


WEIGHTS = ("final", "best")

Tables = Mapping[str, pd.DataFrame]
Weights = Mapping[str, Mapping[str, np.ndarray]]


class Part(NamedTuple):
    """A file in a run folder with PART_ROWS rows of a table, and its SHA-256."""

    name: str
    digest: str


Parts = Mapping[str, Sequence[Part]]


def check_writable(folder: Path, overwrite: bool = False, goes_on: bool = False) -> None:
    """Raise ConfigError if a run folder cannot be made at this path. Checked before a run, so that no run is lost.

    `overwrite`: an existing run may be replaced. `goes_on`: an unfinished run may be continued. Raises FolderBusy if a
    process writes a run there.
    """
    if folder.name in ("", ".."):
        raise ConfigError(f"{folder}: is no name of a run folder; choose another one")
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
    """Give a run folder to write, locked for other processes. Nothing is made or replaced before `write`.

    Raises the errors of `check_writable`.
    """
    check_writable(folder, overwrite, goes_on)
    with hold(folder):
        run = RunFolder(folder)
        if run.aside.exists() and not folder.exists():  # a process was killed while it replaced the run
            run.aside.rename(folder)
        if folder.exists():
            status = _check_replaceable(folder, overwrite, goes_on)
            run.replaces = not (goes_on and status != FINISHED)
            if status != CUT_OFF:  # complete; its writer was killed before it could delete the run that it replaced
                give_up(run.aside, folder)
            _settle(folder)
        try:
            yield run
        finally:
            run.leave()


class RunFolder:
    """A run folder that this process alone writes, state after state. `aside`: place of the run that it replaces."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.aside = path.with_name(f".{path.name}.old")
        self.replaces = False  # True: move the existing run aside before the first state is written
        self._growing = path.with_name(f".{path.name}.growing")
        self._only_begun = False

    def add_part(self, table: str, rows: pd.DataFrame) -> Part:
        """Write PART_ROWS rows of a table. They become part of the run with the first state that names them.

        Raises ConfigError if they cannot be written.
        """
        content = encoded(conform(table, rows, str(self.path)))
        digest = sha256(content).hexdigest()
        part = Part(f"{PARTS}/{table}-{digest[:16]}.parquet", digest)
        try:
            (self.path / PARTS).mkdir(exist_ok=True)
            with whole_file(self.path / part.name) as growing:  # an existing state may have the same part
                growing.write_bytes(content)
        except OSError as error:
            raise ConfigError(f"{self.path}: cannot be written: {error}") from error
        return part

    def write(self, tables: Tables, manifest: Mapping[str, Any], weights: Weights, parts: Parts | None = None) -> None:
        """Replace the state of the run by a new one. A kill at any instant leaves one of the two.

        `parts`: for each table the rows that were added before the rows in `tables`. They stay in their files while the
        run is running.

        The first state that is not "running" makes one file of each table, and deletes the run that was replaced.
        Raises ConfigError if the state cannot be written. Then the state before it remains.
        """
        running = manifest.get("status") == RUNNING
        try:
            if self.replaces:
                if self.aside.exists():  # the run in place was to replace another one: that one is kept instead
                    give_up(self.path, self.aside)
                else:
                    self.path.rename(self.aside)
                self.replaces = False
            begins = not self.path.exists()
            self._put(tables, manifest, weights, parts or {})
            _move_others(self.aside, self.path)
            has_rounds = bool(len(tables["rounds"]) or (parts or {}).get("rounds"))
            self._only_begun = running and (begins or self._only_begun) and not has_rounds
            if not running:
                give_up(self.aside, self.path)
        except OSError as error:
            raise ConfigError(f"{self.path}: cannot be written: {error}") from error

    def leave(self) -> None:
        """Delete temporary files. If the run only began, delete it and restore the run that it replaced."""
        shutil.rmtree(self._growing, ignore_errors=True)
        if self._only_begun:
            give_up(self.path, self.aside)
        if (self.path / MANIFEST).exists():
            _settle(self.path)
        elif self.aside.exists():
            self.aside.rename(self.path)

    def _put(self, tables: Tables, manifest: Mapping[str, Any], weights: Weights, parts: Parts) -> None:
        missing = TABLES.keys() - tables.keys()
        if missing:
            raise ConfigError(f"{self.path}: no table {', '.join(sorted(missing))}")
        new = self.path / NEXT if self.path.exists() else self._growing
        shutil.rmtree(new, ignore_errors=True)  # left by a run that was killed while writing
        new.mkdir(parents=True)
        kept = {table: some for table, some in parts.items() if some} if manifest.get("status") == RUNNING else {}
        digests = {part.name: part.digest for some in kept.values() for part in some}
        named = {table: [*(part.name for part in some), f"{table}.rest.parquet"] for table, some in kept.items()}
        for table in TABLES:
            path = new / (named[table][-1] if table in named else f"{table}.parquet")
            joined = table not in named and bool(parts.get(table))
            if tables[table].empty and not joined:
                path.write_bytes(_without_rows(table))
            else:
                rows = conform(table, tables[table], str(self.path))
                if joined:
                    join((read_file(self.path, name, {name: digest}) for name, digest in parts[table]), rows, path)
                else:
                    path.write_bytes(encoded(rows))
            digests[path.name] = digest_of(path)
        for which, arrays in weights.items():
            # safetensors writes the memory in its order, so a transposed view must be laid out first.
            content = save({name: np.asarray(array, order="C") for name, array in arrays.items()})
            name = f"{which}.safetensors"
            (new / name).write_bytes(content)
            digests[name] = sha256(content).hexdigest()
        more = {"parts": named} if named else {}
        (new / MANIFEST).write_text(sealed({**manifest, **more}, digests), encoding="utf-8")
        if new == self._growing:
            new.rename(self.path)
        else:
            (new / MANIFEST).replace(self.path / MANIFEST)  # from here on the new state is valid
            _settle(self.path)


def _settle(folder: Path) -> None:
    """Move the files that the manifest names to their places, and delete the files of other states."""
    if not any((folder / name).exists() for name in (NEXT, PARTS)):
        return
    digests = read_manifest(folder)["files"]
    for path in (folder / NEXT).glob("*"):
        readable = path.is_file() and path.stat().st_size <= memory_bytes()  # no pipe, and no terabytes of holes
        if readable and digest_of(path) == digests.get(path.name):
            path.replace(folder / path.name)
    for path in _ours(folder):
        if path.name not in (MANIFEST, STAMP) and str(path.relative_to(folder)) not in digests:
            path.unlink(missing_ok=True)
    with suppress(OSError):  # it does not exist, or has parts that stay
        (folder / PARTS).rmdir()
    shutil.rmtree(folder / NEXT, ignore_errors=True)


def give_up(folder: Path, other: Path) -> None:
    """Delete the files of a run, and move all other files in its folder, the user's, to the folder `other`.

    The user's files stay in place if `other` does not exist. If `folder` is a link, only the link is deleted.
    """
    if folder.is_symlink():
        folder.unlink()
        return
    _move_others(folder, other)
    shutil.rmtree(folder / NEXT, ignore_errors=True)
    for path in _ours(folder):
        with suppress(OSError):  # a folder of this name is not the run's
            path.unlink(missing_ok=True)
    for each in folder / PARTS, folder:
        with suppress(OSError):  # the user's files are in it
            each.rmdir()


def _move_others(folder: Path, other: Path) -> None:
    """Move the files that no run writes from one run folder to another, if both exist."""
    if folder.is_symlink() or not (folder.is_dir() and other.is_dir()):
        return
    stay = {*_ours(folder), folder / NEXT, folder / PARTS}
    for path in [*folder.iterdir(), *(folder / PARTS).glob("*")]:
        if path not in stay:
            to = other / path.relative_to(folder)
            to.parent.mkdir(exist_ok=True)
            path.rename(to)


def _ours(folder: Path) -> list[Path]:
    """Return all paths of a run folder that edgesim writes. The manifest comes last, as it names the sessions."""
    sessions: Sequence[str] = ()
    with suppress(ConfigError):  # without a manifest it is no run with sessions
        sessions = tuple(read_manifest(folder).get("sessions") or ())
    weights = [f"{before}{which}.safetensors" for which in WEIGHTS for before in ("", *(f"{s}." for s in sessions))]
    tables = [f"{table}{rest}.parquet" for table in TABLES for rest in ("", ".rest")]
    forms = [form for table in TABLES for form in (f"{table}-*.parquet", f".{table}-*.parquet.growing")]
    parts = [path for form in forms for path in (folder / PARTS).glob(form)]
    return [*parts, *(folder / name for name in (*weights, *tables, STAMP, MANIFEST))]


def _check_replaceable(folder: Path, overwrite: bool, goes_on: bool) -> str:
    """Return the status of the run in a folder. Raises ConfigError if there is no run, or it may not be replaced."""
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
