"""Reads TOML files: scenarios, device profiles, studies."""

from __future__ import annotations

import re
import tomllib
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from edgesim.core.errors import ConfigError
from edgesim.files.reading import in_short, read_text

_LONG_KEY = re.compile(r"(?<![\w\"'.-])(?:[\w\"'-]++\s*+\.\s*+){200}")


def read_toml(file: Path | Traversable) -> dict[str, Any]:
    """Return the table in a TOML file. Raises ConfigError that names the file if it cannot be read or is not TOML."""
    return toml_of(read_text(Path(str(file)), ConfigError), file)


def toml_of(text: str, file: object) -> dict[str, Any]:
    """Return the table of the text of a file. Raises ConfigError that names the file if it is not TOML."""
    try:
        return parse_toml(text)
    except ValueError as error:
        raise ConfigError(f"{file}: not valid TOML: {in_short(error)}") from error


def parse_toml(text: str) -> dict[str, Any]:
    """Return the table of a TOML text. Raises ValueError if it is not TOML, or more deeply nested than Python reads."""
    if _LONG_KEY.search(text):  # each part costs as much time and memory as all before it
        raise ValueError("a key of more than 200 parts")
    try:
        return tomllib.loads(text)
    except RecursionError as error:
        raise ValueError("brackets nested too deeply") from error
