"""Results cached for later runs in the user's cache folder, by the hash of everything that decides them."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, NamedTuple

import numpy as np

from edgesim.core.errors import EdgesimError
from edgesim.files.reading import check_regular, one_line, read_text, reading

VARIABLE = "EDGESIM_CACHE"
PROFILES, DECODED, PROGRAMS = "profiles", "decoded", "programs"  # folders of cost profiles, data sets, compiled steps
KINDS = (PROFILES, DECODED, PROGRAMS)

_ENTRY = re.compile(r"[0-9a-f]{64}\.(json|npy|so|lock)|\.[0-9a-f]{16}\.\w+\.growing")  # names of files in the folders


_READS = [True]  # False: cached results are not read


class Held(NamedTuple):
    """Number of cached files of a kind, and their size in bytes."""

    files: int
    nbytes: int


def cache_folder() -> Path:
    """Return the user's cache folder; it need not exist.

    It is EDGESIM_CACHE, or else `edgesim` below XDG_CACHE_HOME or ~/.cache.
    """
    given, shared = os.environ.get(VARIABLE), Path(os.environ.get("XDG_CACHE_HOME", ""))
    if given:
        return Path(given).expanduser()
    return (shared if shared.is_absolute() else Path.home() / ".cache") / "edgesim"


def array_digest(array: np.ndarray) -> str:
    """Return the SHA-256 of an array's type, shape and numbers."""
    found = hashlib.sha256(f"{array.dtype} {tuple(array.shape)}".encode())
    found.update(np.ascontiguousarray(array).data)
    return found.hexdigest()


@contextmanager
def made_anew(wanted: bool) -> Iterator[None]:
    """Ignore cached results in the with-block if `wanted`; results made there replace them."""
    before, _READS[0] = _READS[0], _READS[0] and not wanted
    try:
        yield
    finally:
        _READS[0] = before


# --- tables -----------------------------------------------------------------------------------------------------------


def kept_table(kind: str, identity: Any) -> Any:
    """Return the table cached for an identity, both as JSON; None if there is none, or it is damaged."""
    if not _READS[0]:
        return None
    try:
        entry = json.loads(read_text(_file(kind, identity)))
        whole = entry["follows_from"] == identity and entry["sha256"] == _digest(entry["content"])
        return entry["content"] if whole else None
    except (EdgesimError, OSError, RuntimeError, ValueError, LookupError, TypeError, RecursionError):
        return None


def keep_table(kind: str, identity: Any, content: Any) -> None:
    """Cache a table for an identity, both as JSON; errors of writing are ignored."""
    entry = {"follows_from": identity, "sha256": _digest(content), "content": content}
    with suppress(OSError, RuntimeError), _whole(_file(kind, identity)) as growing:
        growing.write_text(json.dumps(entry, indent=1), encoding="utf-8")


# --- arrays -----------------------------------------------------------------------------------------------------------


def kept_array(kind: str, digest: str) -> Path | None:
    """Return the file of the array with this `array_digest`; None if there is none, or its content differs."""
    try:
        path = cache_folder() / kind / f"{digest}.npy"
        return path if array_digest(mapped(path)) == digest else None
    except (EdgesimError, OSError, RuntimeError):
        return None


def keep_array(kind: str, array: np.ndarray) -> str:
    """Cache an array, unless it is cached already; return its digest."""
    digest = array_digest(array)
    if kept_array(kind, digest) is None:
        path = cache_folder() / kind / f"{digest}.npy"
        with suppress(OSError, RuntimeError), _whole(path) as growing, growing.open("wb") as file:
            np.lib.format.write_array(file, np.ascontiguousarray(array), allow_pickle=False)
    return digest


def mapped(path: Path) -> np.ndarray:
    """Map a .npy file into memory that processes share; writes to the array stay private.

    Raises DataError if it cannot be read.
    """
    check_regular(path)
    with reading(path, ".npy file"):
        return np.lib.format.open_memmap(path, mode="c")  # torch warns about read-only memory


# --- files of any kind ------------------------------------------------------------------------------------------------


def keep_file(kind: str, name: str, make: Callable[[Path], None]) -> Path:
    """Return the cached file of this name, a SHA-256 with a suffix. If there is none, `make` writes it to a path.

    One process at a time makes a file, others wait for it. Raises OSError if it cannot be written.
    """
    path = cache_folder() / kind / name
    if path.is_file():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_suffix(".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # until it is closed, or its process dies
        if not path.is_file():
            with _whole(path) as growing:
                make(growing)
    return path


# --- all of it --------------------------------------------------------------------------------------------------------


def held() -> dict[str, Held]:
    """Return the number and size of cached files by kind."""
    found = {}
    for kind in KINDS:
        sizes = [path.stat().st_size for path in _entries(kind) if path.is_file()]
        found[kind] = Held(len(sizes), sum(sizes))
    return found


def prune() -> None:
    """Remove all cached results; other files, such as downloaded data sets, stay. Runs in progress go on."""
    for kind in KINDS:
        with suppress(OSError):  # files that cannot be removed stay, and so does a folder with files of the user
            for path in _entries(kind):
                path.unlink(missing_ok=True)
            (cache_folder() / kind).rmdir()


def _entries(kind: str) -> list[Path]:
    """Return the cached files of a kind, partly written ones included; the folder may have other files."""
    folder = cache_folder() / kind
    return [path for path in folder.iterdir() if _ENTRY.fullmatch(path.name)] if folder.is_dir() else []


def _file(kind: str, identity: Any) -> Path:
    return cache_folder() / kind / f"{_digest(identity)}.json"


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


@contextmanager
def _whole(path: Path) -> Iterator[Path]:
    """Yield the path of a temporary file of this process, which replaces `path` at the end of the with-block."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with NamedTemporaryFile(dir=path.parent, prefix=f".{path.stem[:16]}.", suffix=".growing", delete=False) as file:
        growing = Path(file.name)
    try:
        yield growing
        growing.replace(path)
    finally:
        growing.unlink(missing_ok=True)


_SAID = set[str | Path]()


def warn_once(line: str, about: Path | None = None) -> None:
    """Print a warning to stderr, once in a process; of several about one file or folder only the first."""
    key = line if about is None else about.absolute()
    if key not in _SAID:
        _SAID.add(key)
        print("warning:", one_line(line), file=sys.stderr)
