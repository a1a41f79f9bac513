"""The option --out of commands that write a file."""

from __future__ import annotations

import os
from pathlib import Path

from edgesim.core.errors import ConfigError


def check_file(out: Path) -> None:
    """Raise ConfigError unless a file can be written at `out`, in a folder that is there."""
    if out.name in ("", ".."):
        raise ConfigError(f"--out: {str(out)!r} is no file name")
    folder = out.resolve().parent
    if not folder.is_dir():
        raise ConfigError(f"--out: {out.parent} is not a folder")
    if out.is_dir() or not os.access(out if out.exists() else folder, os.W_OK):
        raise ConfigError(f"--out: {out} cannot be written")
