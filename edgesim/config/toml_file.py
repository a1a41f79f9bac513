"""Reads TOML files, merges tables, and resolves the paths in them.

Paths are relative to the folder of their file.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated, Any, TypeAlias

from pydantic import BeforeValidator

from edgesim.config.plugin_fields import as_table
from edgesim.config.plugins import PACKAGES
from edgesim.core.errors import ConfigError
from edgesim.files.reading import in_short, quoted, read_text

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
    """Return the table of a TOML text. Raises ValueError if it is not TOML, or nested more deeply than Python reads."""
    if _LONG_KEY.search(text):  # each part costs as much time and memory as all parts before it
        raise ValueError("a key of more than 200 parts")
    try:
        return tomllib.loads(text)
    except RecursionError as error:
        raise ValueError("brackets nested too deeply") from error


def merged(base: Mapping[str, Any], top: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` with the sections of `top` laid over it.

    Tables merge one level deep, so that a distribution or another inner table is replaced as a whole. A part of
    another name replaces its section, because the new part does not know the keys of the old one.
    """
    found = dict(base)
    for key, section in top.items():
        old = as_table(base.get(key)) if key in PACKAGES else base.get(key)
        same = isinstance(section, Mapping) and section.get("name", _name_of(old)) == _name_of(old)
        found[key] = {**old, **section} if same and isinstance(old, Mapping) else section
    return found


def _name_of(section: Any) -> Any:
    return section.get("name") if isinstance(section, Mapping) else None


_LONGEST = 4096  # characters of a path on Linux
_DEEPEST = 32  # levels of tables and lists in a scenario, of which valid scenarios need half a dozen


class FileText(str):
    """A string of a scenario that keeps the folder of its file, because `extends` mixes files of several folders."""

    folder: Path

    def path(self) -> Path:
        """Return the absolute path that this string gives. Raises ConfigError if it cannot be a path."""
        if len(self) > _LONGEST:
            raise ConfigError(f"{quoted(str(self))} is no path: it has more than {_LONGEST} characters")
        try:
            return (self.folder / Path(self).expanduser()).resolve()
        except (RuntimeError, ValueError, OSError) as error:  # an unknown user's folder, a zero byte, a link to itself
            raise ConfigError(f"{quoted(str(self))} is no path: {error}") from error


def located(value: Any, folder: Path, where: str, depth: int = 0) -> Any:
    """Return a copy of a scenario's value in which every string is a FileText of `folder`.

    Raises ConfigError that names the key `where` for a value that scenarios do not allow, such as a date or nan, and
    for a value that is nested too deeply.
    """
    if depth > _DEEPEST:
        raise ConfigError(f"{in_short(where)}: is nested more than {_DEEPEST} levels deep")
    if isinstance(value, Mapping):
        return {str(key): located(item, folder, f"{where}.{key}".lstrip("."), depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [located(item, folder, f"{where}.{i}", depth + 1) for i, item in enumerate(value)]
    if isinstance(value, str | Path):
        text = FileText(value)
        text.folder = value.folder if isinstance(value, FileText) else folder
        return text
    # nan is the one value that differs from itself
    if value is None or (isinstance(value, bool | int | float) and value == value):
        return value
    raise ConfigError(f"{in_short(where)}: a number, string, list or table is needed, got {quoted(value)}")


# For the fields of parts: a path that a scenario may write relative to its own file.
ScenarioPath: TypeAlias = Annotated[
    Path, BeforeValidator(lambda value: value.path() if isinstance(value, FileText) else value)
]
