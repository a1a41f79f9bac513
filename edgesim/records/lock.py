"""Who writes a run folder: one process at a time, until it ends, in whatever way."""

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

_TRIES, _BETWEEN_S = 20, 0.01  # somebody who looks whether a folder is held holds it for an instant


def lock_of(folder: Path) -> Path:
    """Return the hidden file beside a run folder that is locked while somebody writes it."""
    place = folder.absolute()
    return place.parent / f".{place.name}.lock"


@contextmanager
def hold(folder: Path, wait: bool = False) -> Iterator[None]:
    """Keep others from writing a run folder, which need not exist. The system ends that when this process dies.

    If another process writes it, raises FolderBusy at once, or waits until it does not. Raises ConfigError if no file
    can be locked there.
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
        with suppress(OSError):  # a full disk; it only helps whoever is refused
            os.ftruncate(file, 0)
            os.write(file, f"process {os.getpid()} on {platform.node()}".encode())
        yield
    finally:
        path.unlink(missing_ok=True)  # before others can have it: a file that is gone is locked in vain
        os.close(file)


def check_free(folder: Path) -> None:
    """Raise FolderBusy if a process, maybe this one, writes a run folder."""
    if is_held(folder):
        raise FolderBusy(_says(folder))


def is_held(folder: Path) -> bool:
    """Return whether a process, maybe this one, writes a run folder."""
    try:
        file = os.open(lock_of(folder), os.O_RDONLY | os.O_NONBLOCK)  # else a named pipe waits
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # of a file system without locks, where nobody can have one
        return False
    finally:
        os.close(file)
    return False


def _locked(path: Path, wait: bool) -> int | None:
    """Return the descriptor of the locked file, None if another has the lock and is not waited for."""
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
    """Return whether an open file is still the one of this name, and not one that its owner has removed."""
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False


def _says(folder: Path) -> str:
    try:
        owner = in_short(read_text(lock_of(folder), ConfigError))
    except ConfigError:
        owner = ""
    who = owner or "another process"
    return f"{folder}: {who} is at work on it; wait for that run to end or choose another run folder"
