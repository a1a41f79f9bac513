"""Reads TOML files: scenarios, device profiles, studies."""

from __future__ import annotations

import tomllib
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from edgesim.errors import ConfigError
from edgesim.reading import in_short, read_text


def read_toml(file: Path | Traversable) -> dict[str, Any]:
    """Return the table in a TOML file. Raises ConfigError that names the file if it cannot be read or is not TOML."""
    try:
        return tomllib.loads(read_text(Path(str(file)), ConfigError))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file}: not valid TOML: {in_short(error)}") from error
