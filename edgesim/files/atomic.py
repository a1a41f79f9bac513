"""Atomic writing of files: a file exists completely or not at all."""

from __future__ import annotations

import glob
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from edgesim.core.errors import ConfigError


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


def write_text(path: Path, text: str) -> None:
    """Write a text file as a whole, and its folder if need be. Raises ConfigError if it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as growing:
            growing.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror or error}") from error


def growing_file(path: Path) -> Path:
    """Return the path of the temporary file that will replace `path`; an existing one was cut off."""
    return path.with_name(f".{path.name}.growing")


def checkpoint_of(folder: Path) -> Path:
    """Return the checkpoint of a run folder: a hidden file beside it."""
    return folder.parent / f".{folder.name}.checkpoint"


def checkpoint_of_session(file: Path, session: str) -> Path:
    """Return the checkpoint of a further session of a run, beside the run's own."""
    return file.with_name(f"{file.name}.{session}")


def checkpoints_of_run(file: Path) -> list[Path]:
    """Return the existing checkpoints of a run: its own, and those of further sessions."""
    return [each for each in (file, *sorted(file.parent.glob(f"{glob.escape(file.name)}.*"))) if each.exists()]


def remove_checkpoint(file: Path) -> None:
    """Remove the checkpoints of a run and partly written ones."""
    for each in {file, *checkpoints_of_run(file)}:
        each.unlink(missing_ok=True)
        growing_file(each).unlink(missing_ok=True)
