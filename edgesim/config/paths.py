"""Paths inside a scenario: relative to the folder of the file in which they are written."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, TypeAlias

from pydantic import BeforeValidator

from edgesim.core.errors import ConfigError
from edgesim.files.reading import in_short, quoted

_LONGEST = 4096  # of a path, on Linux
_DEEPEST = 32  # levels of tables and lists in a scenario; what is read needs half a dozen


class FileText(str):
    """A string of a scenario that remembers the folder of its file, as `extends` mixes files of several folders."""

    folder: Path

    def path(self) -> Path:
        """Return the path that this string gives, absolute. Raises ConfigError if it can be none."""
        if len(self) > _LONGEST:
            raise ConfigError(f"{quoted(str(self))} is no path: it has more than {_LONGEST} characters")
        try:
            return (self.folder / Path(self).expanduser()).resolve()
        except (RuntimeError, ValueError, OSError) as error:  # an unknown user's folder, a zero byte, a link to itself
            raise ConfigError(f"{quoted(str(self))} is no path: {error}") from error


def located(value: Any, folder: Path, where: str, depth: int = 0) -> Any:
    """Return a copy of a scenario's value in which every string is a FileText of `folder`.

    Raises ConfigError naming the key `where` for a value that scenarios do not have, such as a date or nan, and for
    one that lies deeper than they go.
    """
    if depth > _DEEPEST:
        raise ConfigError(f"{in_short(where)}: is nested more than {_DEEPEST} levels deep")
    if isinstance(value, Mapping):
        return {str(key): located(item, folder, f"{where}.{key}".lstrip("."), depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [located(item, folder, f"{where}.{i}", depth + 1) for i, item in enumerate(value)]
    if isinstance(value, str | Path):
        text = FileText(value)
        text.folder = getattr(value, "folder", folder)
        return text
    # nan is the one value that differs from itself
    if value is None or (isinstance(value, bool | int | float) and value == value):
        return value
    raise ConfigError(f"{in_short(where)}: a number, string, list or table is needed, got {quoted(value)}")


def _resolve(value: Any) -> Any:
    return value.path() if isinstance(value, FileText) else value


# For the fields of parts: a path that a scenario may write relative to its own file.
ScenarioPath: TypeAlias = Annotated[Path, BeforeValidator(_resolve)]
