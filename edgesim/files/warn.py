"""Warnings about what edgesim keeps for later runs; they end no run and stand in no table."""

from __future__ import annotations

import sys
from functools import cache

from edgesim.files.reading import one_line


@cache
def warn_once(line: str) -> None:
    """Print a warning to stderr, once in a process."""
    print("warning:", one_line(line), file=sys.stderr)
