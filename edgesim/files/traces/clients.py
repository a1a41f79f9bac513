"""JSON files of clients: an object whose keys are the clients and whose values are tables."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from math import isfinite
from pathlib import Path
from typing import Any

from edgesim.core.errors import DataError
from edgesim.files.reading import in_short, quoted, read_text

_MOST_BYTES = 2**31  # of a file: a few hundred thousand clients have a tenth of it


@dataclass(frozen=True)
class Client:
    """A client of a file: its name and its table."""

    path: Path
    name: str
    table: Mapping[str, Any]

    def refuse(self, key: str, needs: str, found: Any) -> DataError:
        """Return the error for a value that is not as needed."""
        return DataError(f"{self.path}: client {quoted(self.name)}: {key} must be {needs}, got {quoted(found)}")

    def number(self, key: str, least: float = 0.0, above: bool = False) -> float:
        """Return a number. Raises DataError unless it is finite and at least, or above, `least`."""
        return self._checked(key, self.value(key), least, above)

    def numbers(self, key: str) -> list[float]:
        """Return a list of finite numbers of at least 0. Raises DataError if it is none."""
        found = self.value(key)
        if not isinstance(found, Sequence) or isinstance(found, str):
            raise self.refuse(key, "a list of numbers", found)
        return [self._checked(f"{key}[{place}]", each, 0.0, False) for place, each in enumerate(found)]

    def text(self, key: str) -> str:
        """Return a text. Raises DataError if it is none."""
        found = self.value(key)
        if not isinstance(found, str):
            raise self.refuse(key, "a text", found)
        return found

    def value(self, key: str) -> Any:
        """Return the value of a key. Raises DataError if there is none."""
        if key not in self.table:
            has = in_short(", ".join(self.table)) or "nothing"
            raise DataError(f"{self.path}: client {quoted(self.name)}: has no {quoted(key)}; it has {has}")
        return self.table[key]

    def _checked(self, key: str, found: Any, least: float, above: bool) -> float:
        fine = isinstance(found, int | float) and not isinstance(found, bool) and isfinite(found)
        if not fine or found < least or (above and found == least):
            raise self.refuse(key, f"a finite number {'above' if above else 'of at least'} {least:g}", found)
        return float(found)


def read_clients(path: Path, most: int | None) -> list[Client]:
    """Return the first `most` clients of a JSON file; None: all.

    Raises DataError that names the file, and for invalid JSON line and column, if it holds no clients.
    """
    try:
        table = json.loads(read_text(path, most_bytes=_MOST_BYTES))
    except json.JSONDecodeError as error:
        raise DataError(f"{path} line {error.lineno} column {error.colno}: not JSON: {error.msg}") from error
    except (RecursionError, ValueError) as error:
        raise DataError(f"{path}: not JSON: {in_short(error)}") from error
    if not isinstance(table, dict) or not table:
        raise DataError(f"{path}: must be a JSON object of clients, got {quoted(table)}")
    for name, entry in table.items():
        if not isinstance(entry, dict):
            raise DataError(f"{path}: client {quoted(name)}: must be a JSON object, got {quoted(entry)}")
    return [Client(path, name, entry) for name, entry in islice(table.items(), most)]
