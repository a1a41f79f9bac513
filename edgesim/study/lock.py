"""Holds the place of a run folder against other processes, so that several can share the cells of a study."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


@contextmanager
def held(folder: Path, wait: bool = False) -> Iterator[bool]:
    """Hold the place of a run folder; give False if another process has it, or `wait` until it has not.

    The lock is one of the operating system on a hidden file beside the folder: it goes with the process that has it,
    however that ends. Raises OSError if the file cannot be made.
    """
    path = _file(folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    file = _taken(path, wait)
    try:
        yield file is not None
    finally:
        if file is not None:
            path.unlink(missing_ok=True)
            file.close()


def is_held(folder: Path) -> bool:
    """Return whether a process holds the place of a run folder."""
    try:
        with _file(folder).open("r") as file:
            return not _locked(file, wait=False)
    except OSError:  # there is no such file
        return False


def _file(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.lock")


def _taken(path: Path, wait: bool) -> IO[str] | None:
    """Return the file of a path, open and locked; None if another process has it."""
    while True:
        file = path.open("a")
        if not _locked(file, wait):
            file.close()
            return None
        if _is_at(path, file):
            return file
        file.close()


def _locked(file: IO[str], wait: bool) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_at(path: Path, file: IO[str]) -> bool:
    """Return whether an open file is still the one of this path: whoever had it before has removed it at the end."""
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False
