"""Atomic writing of files: a file exists completely or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yield the path of a hidden file to write beside `path`, which it replaces at the end of the with-block.

    If writing fails or is interrupted, an older file stays unchanged. Raises OSError as writing and renaming do.
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
    """Return the path of the temporary file that will replace `path`; an existing one was cut off."""
    return path.with_name(f".{path.name}.growing")


def checkpoint_of(folder: Path) -> Path:
    """Return the checkpoint of a run folder: a hidden file beside it."""
    return folder.parent / f".{folder.name}.checkpoint"


def remove_checkpoint(file: Path) -> None:
    """Remove a checkpoint if it exists, and a partly written one."""
    for each in file, growing_file(file):
        each.unlink(missing_ok=True)
