"""Rows of numbers from a file, and where in it each of them stands, so that a fault can be shown there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from edgesim.contracts import Arr, Ids
from edgesim.errors import DataError


@dataclass(frozen=True, slots=True)
class Rows:
    """Columns of numbers, each of shape (k,); `numbers`: the line (of a parquet file: row) of each, shape (k,)."""

    path: Path
    unit: str  # "line" or "row"
    numbers: Ids
    columns: Mapping[str, Arr]

    def where(self, index: int) -> str:
        """Return where a row stands, as in "line 3"."""
        return f"{self.unit} {self.numbers[index]}"

    def refuse(self, index: int, fault: str) -> DataError:
        """Return the error that a row has this fault."""
        return DataError(f"{self.path} {self.where(index)}: {fault}")
