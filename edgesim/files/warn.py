"""Warnings about what edgesim keeps for later runs; they end no run and stand in no table."""

from __future__ import annotations

import sys
from pathlib import Path

from edgesim.files.reading import one_line

_SAID = set[str | Path]()


def warn_once(line: str, about: Path | None = None) -> None:
    """Print a warning to stderr, once in a process; of several about one file or folder the first alone."""
    key = line if about is None else about.absolute()
    if key not in _SAID:
        _SAID.add(key)
        print("warning:", one_line(line), file=sys.stderr)
