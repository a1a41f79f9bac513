"""Paths inside a scenario: relative to the folder of the file in which they are written."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, TypeAlias

from pydantic import BeforeValidator

from edgesim.errors import ConfigError


class FileText(str):
    """A string of a scenario that remembers the folder of its file, as `extends` mixes files of several folders."""

    folder: Path

    def path(self) -> Path:
        """Return the path that this string gives, absolute. Raises ConfigError if it names an unknown user's folder."""
        try:
            return (self.folder / Path(self).expanduser()).resolve()
        except RuntimeError as error:  # there is no such user
            raise ConfigError(f"{str(self)!r} is no path: {error}") from error


def located(value: Any, folder: Path, where: str) -> Any:
    """Return a copy of a scenario's value in which every string is a FileText of `folder`.

    Raises ConfigError naming the key `where` for a value that scenarios do not have, such as a date or nan.
    """
    if isinstance(value, Mapping):
        return {str(key): located(item, folder, f"{where}.{key}".lstrip(".")) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [located(item, folder, f"{where}.{i}") for i, item in enumerate(value)]
    if isinstance(value, str | Path):
        text = FileText(value)
        text.folder = getattr(value, "folder", folder)
        return text
    # nan is the one value that differs from itself
    if value is None or (isinstance(value, bool | int | float) and value == value):
        return value
    raise ConfigError(f"{where}: a number, string, list or table is needed, got {value!r}")


def _resolve(value: Any) -> Any:
    return value.path() if isinstance(value, FileText) else value


# For the fields of parts: a path that a scenario may write relative to its own file.
ScenarioPath: TypeAlias = Annotated[Path, BeforeValidator(_resolve)]
