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
    growing = path.with_name(f".{path.name}.growing")
    try:
        yield growing
        growing.replace(path)
    finally:
        growing.unlink(missing_ok=True)
