"""Locks of run folders: one process at a time writes a folder, and its lock ends with the process."""

from __future__ import annotations

import fcntl
import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

from edgesim.core.errors import ConfigError, FolderBusy
from edgesim.files.reading import in_short, read_text

_TRIES, _BETWEEN_S = 20, 0.01  # a process that checks a lock holds it for an instant


def lock_of(folder: Path) -> Path:
    """Return the hidden file beside a run folder that is locked while a process writes the folder."""
    place = folder.absolute()
    return place.parent / f".{place.name}.lock"


@contextmanager
def hold(folder: Path, wait: bool = False) -> Iterator[None]:
    """Lock a run folder, which need not exist, for writing. The system releases the lock when this process dies.

    If another process has the lock, raises FolderBusy at once, or with `wait` waits for it. Raises ConfigError if no
    file can be locked there.
    """
    path = lock_of(folder)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = _locked(path, wait)
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be made: {path}: {error.strerror}") from error
    if file is None:
        raise FolderBusy(_says(folder))
    try:
        with suppress(OSError):  # a full disk; the text is only for messages of other processes
            os.ftruncate(file, 0)
            os.write(file, f"process {os.getpid()} on {platform.node()}".encode())
        yield
    finally:
        path.unlink(missing_ok=True)  # while it is locked, so that no other process locks a file that is gone
        os.close(file)


def check_free(folder: Path) -> None:
    """Raise FolderBusy if a process, possibly this one, writes a run folder."""
    if is_held(folder):
        raise FolderBusy(_says(folder))


def is_held(folder: Path) -> bool:
    """Tell whether a process, possibly this one, writes a run folder."""
    try:
        file = os.open(lock_of(folder), os.O_RDONLY | os.O_NONBLOCK)  # opening a named pipe would block otherwise
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # a file system without locks, so no process has one
        return False
    finally:
        os.close(file)
    return False


def _locked(path: Path, wait: bool) -> int | None:
    """Return the descriptor of the locked file; None if another process has the lock and `wait` is False."""
    for _ in count() if wait else range(_TRIES):
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(path, file):
                return file
        except BlockingIOError:
            time.sleep(_BETWEEN_S)
        except OSError:
            os.close(file)
            raise
        os.close(file)
    return None


def _is_at(path: Path, file: int) -> bool:
    """Tell whether an open file still has this name. Its owner may have removed it."""
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False


def _says(folder: Path) -> str:
    try:
        owner = in_short(read_text(lock_of(folder), ConfigError))
    except ConfigError:
        owner = ""
    writer = owner or "another process"
    return f"{folder}: {writer} is at work on it; wait for that run to end or choose another run folder"
