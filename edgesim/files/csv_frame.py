"""CSV files and data frames.

Of a user's file each fault is one short line, and what there is no room for is refused. What is written is text to a
spreadsheet too.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from edgesim.core.errors import DataError
from edgesim.files.reading import Kind, check_room, check_text, reading

if TYPE_CHECKING:
    import pandas as pd

_BYTES_PER_BYTE = 8  # of a number in memory for one digit in a file, at most
_NUMBER = re.compile(r"[-+](\d+\.?\d*(e[-+]?\d+)?|inf|nan)")


def read_frame(path: Path, kind: Kind = DataError) -> pd.DataFrame:
    """Return the rows of a CSV file with a line of names. Raises `kind` if it is none, damaged or too large."""
    import pandas as pd

    check_room(_BYTES_PER_BYTE * check_text(path, kind), path, kind)
    with reading(path, "CSV file", kind):
        frame = pd.read_csv(path, low_memory=False)  # else a long column may be numbers in one part, texts in another
    if not isinstance(frame.index, pd.RangeIndex):  # what has no name was taken for names of rows
        raise kind(f"{path}: rows have more values than the first line has names")
    return frame


def csv_text(frame: pd.DataFrame, header: bool = True) -> str:
    """Return a data frame as CSV with the names of its columns, all digits of numbers, and lines that end in a newline.

    A spreadsheet takes a text that begins with = + - or @ for a formula, and runs it: such a text, or name of a column,
    gets an apostrophe before it, unless it is a number.
    """
    inert: dict[str, pd.Series] = {}
    for name in frame.select_dtypes(["object", "string"]):
        changed = {each: f"'{each}" for each in {*frame[name]} if isinstance(each, str) and _is_formula(each)}
        if changed:
            inert[str(name)] = frame[name].replace(changed)
    names = {name: f"'{name}" for name in frame if _is_formula(str(name))}
    return frame.assign(**inert).rename(columns=names).to_csv(index=False, header=header, lineterminator="\n")


def _is_formula(text: str) -> bool:
    return text.startswith(("=", "+", "-", "@", "\t", "\r")) and not _NUMBER.fullmatch(text)
