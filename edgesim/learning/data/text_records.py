"""Records of texts in JSON lines or CSV. Files may be damaged; each fault is one short line with its place."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from edgesim.core.errors import DataError
from edgesim.files.reading import check_room, check_text, in_short, quoted, read_text
from edgesim.files.tables import read_frame

_MOST_BYTES = 2**31  # of a file of JSON lines
_BYTES_PER_BYTE = 8  # of a file in memory, as Python's texts and tables
_SCALARS = (str, int, float)


class Record(NamedTuple):
    """The fields of a record that have a value, and its place for messages."""

    where: str
    fields: Mapping[str, Any]

    def text(self, field: str) -> str:
        """Return a field as text. Raises DataError if it is absent, blank, or neither a text nor a number."""
        if field not in self.fields:
            known = in_short(", ".join(self.fields)) or "none"
            raise DataError(f"{self.where}: has no field {quoted(field)} (it has {known})")
        value = self.fields[field]
        if not isinstance(value, _SCALARS):
            raise DataError(f"{self.where}: field {quoted(field)} must be a text, found {quoted(value)}")
        if not str(value).strip():
            raise DataError(f"{self.where}: field {quoted(field)} is empty")
        return str(value)


def read_records(path: Path) -> list[Record]:
    """Return the records of a CSV file, or of JSON lines if its name does not end in .csv. Raises DataError."""
    if path.suffix == ".csv":
        rows = read_frame(path).astype(object).to_dict("records")
        found = [
            Record(f"{path} row {row}", {str(key): value for key, value in each.items() if value == value})
            for row, each in enumerate(rows, 1)
        ]
    else:
        check_room(_BYTES_PER_BYTE * check_text(path), path)
        lines = enumerate(read_text(path, most_bytes=_MOST_BYTES).split("\n"), 1)
        found = [_from_json(f"{path} line {number}", line) for number, line in lines if line.strip()]
    if not found:
        raise DataError(f"{path}: has no records")
    return found


def _from_json(where: str, line: str) -> Record:
    """Return the record of a line. Raises DataError, which names the place, unless it is a table in JSON."""
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: not valid JSON: {in_short(error)}") from error
    if not isinstance(fields, dict):
        raise DataError(f"{where}: must be a table of fields, found {quoted(fields)}")
    return Record(where, {key: value for key, value in fields.items() if value is not None})


def columns_of(records: Sequence[Record], without: Collection[str]) -> dict[str, np.ndarray]:
    """Return the fields with a text or number in every record, as texts, but for those of `without`."""
    names = [name for name in records[0].fields if name not in without]
    held = {name: [each.fields.get(name) for each in records] for name in names}
    return {
        name: np.array([str(value) for value in values])
        for name, values in held.items()
        if all(isinstance(value, _SCALARS) for value in values)
    }
