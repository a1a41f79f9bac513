"""Reads TOML files: scenarios, device profiles, studies."""

from __future__ import annotations

import tomllib
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from edgesim.errors import ConfigError


def read_toml(file: Path | Traversable) -> dict[str, Any]:
    """Return the table in a TOML file. Raises ConfigError that names the file if it cannot be read or is not TOML."""
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: not valid TOML: {error}") from error
