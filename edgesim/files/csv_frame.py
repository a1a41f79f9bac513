"""Reads a user's CSV file into a data frame: each fault is one short line, and what there is no room for is refused."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from edgesim.core.errors import DataError
from edgesim.files.reading import Kind, check_regular, check_room, reading

if TYPE_CHECKING:
    import pandas as pd

_BYTES_PER_BYTE = 8  # of a number in memory for one digit in a file, at most


def read_frame(path: Path, kind: Kind = DataError) -> pd.DataFrame:
    """Return the rows of a CSV file with a line of names. Raises `kind` if it is none, damaged or too large."""
    import pandas as pd

    check_room(_BYTES_PER_BYTE * check_regular(path, kind), path, kind)
    with reading(path, "CSV file", kind):
        frame = pd.read_csv(path, low_memory=False)  # else a long column may be numbers in one part, texts in another
    if not isinstance(frame.index, pd.RangeIndex):  # what has no name was taken for names of rows
        raise kind(f"{path}: rows have more values than the first line has names")
    return frame
