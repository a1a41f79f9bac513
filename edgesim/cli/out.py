"""The option --out, and its like, of commands that write a file."""

from __future__ import annotations

import os
from pathlib import Path

from edgesim.core.errors import ConfigError


def check_file(out: Path, option: str = "--out") -> None:
    """Raise ConfigError unless a file can be written at `out`, in a folder that is there."""
    if out.name in ("", ".."):
        raise ConfigError(f"{option}: {str(out)!r} is no file name")
    folder = Path(os.path.realpath(out)).parent  # unlike `resolve` it goes on at a link to itself
    if not folder.is_dir():
        raise ConfigError(f"{option}: {out.parent} is not a folder")
    if out.is_dir() or not os.access(out if out.exists() else folder, os.W_OK):
        raise ConfigError(f"{option}: {out} cannot be written")


def check_new_file(out: Path, option: str) -> None:
    """Raise ConfigError, as `check_file`, also where a file could not take the place of what is at `out`."""
    check_file(out, option)
    if out.exists() and not out.is_file():
        raise ConfigError(f"{option}: {out} is no regular file")
    if not os.access(Path(os.path.realpath(out)).parent, os.W_OK):
        raise ConfigError(f"{option}: {out} cannot be written")


def write_text(out: Path, text: str, option: str) -> None:
    """Write a file, which appears whole or not at all. Raises ConfigError if it cannot be written."""
    from edgesim.files.atomic import whole_file

    try:
        with whole_file(Path(os.path.realpath(out))) as growing:
            growing.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{option}: {out} cannot be written: {error.strerror}") from error
