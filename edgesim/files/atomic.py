"""Files that are there whole or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Give the path of a hidden file to write beside `path`, whose place it takes in the end.

    If writing fails, or is broken off, an older file stays as it was. Raises OSError as writing and renaming do.
    """
    growing = growing_file(path)
    if growing.is_fifo():  # opening it would wait for a reader
        growing.unlink()
    try:
        yield growing
        growing.replace(path)
    finally:
        growing.unlink(missing_ok=True)


def growing_file(path: Path) -> Path:
    """Return where a file grows that is to take the place of `path`; one that is there was cut off."""
    return path.with_name(f".{path.name}.growing")


def checkpoint_of(folder: Path) -> Path:
    """Return the checkpoint of a run folder: a hidden file beside it."""
    return folder.parent / f".{folder.name}.checkpoint"


def remove_checkpoint(file: Path) -> None:
    """Remove a checkpoint, if there is one, and one that was cut off while it was written."""
    for each in file, growing_file(file):
        each.unlink(missing_ok=True)
