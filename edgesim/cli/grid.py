"""Tables that fit a terminal: headings and sentences are folded, and columns without room follow in a block below.

Numbers and names are never cut, whatever the width.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table

from edgesim.files.reading import visible

_GAP = 2  # spaces between columns
_SENTENCE = 24  # a cell with more characters and spaces in it is a sentence, which may be folded
_NUMBER = re.compile(r"[-+]?(\d[\d.,]*(e[-+]?\d+)?|inf|nan)( ?[^\d\s]+)?( ± .*)?|-")


@dataclass(frozen=True)
class GridColumn:
    """A column of texts under a heading."""

    heading: str
    cells: Sequence[str]

    @property
    def is_numeric(self) -> bool:
        """Return whether there are only numbers, with their units or without, and dashes."""
        return all(_NUMBER.fullmatch(cell) for cell in self.cells)

    @property
    def widest(self) -> int:
        """Return the characters that it takes unfolded."""
        return max(map(cell_len, (self.heading, *self.cells)))

    @property
    def narrowest(self) -> int:
        """Return the characters that it takes at least: those of its longest number, name or word of a sentence."""
        needed = (piece for cell in self.cells for piece in (_words(cell) if self._folds(cell) else [cell]))
        return max(map(cell_len, (*_words(self.heading), *needed)))

    def _folds(self, cell: str) -> bool:
        return not self.is_numeric and " " in cell and cell_len(cell) > _SENTENCE


def print_grid(columns: Sequence[GridColumn], keys: int = 1, width: int | None = None) -> None:
    """Print columns side by side; where they do not fit, in blocks that each begin with the first `keys` columns.

    `width`: characters a line, by default those of the terminal; a pipe has no end.
    """
    if width is None and sys.stdout.isatty():
        width = shutil.get_terminal_size().columns
    columns = [GridColumn(visible(each.heading), list(map(visible, each.cells))) for each in columns]
    for block in blocks(columns, keys, width):
        _print_block(block, widths(block, width))


def blocks(columns: Sequence[GridColumn], keys: int, width: int | None) -> list[list[GridColumn]]:
    """Return columns in as few blocks as fit the width, each with the first `keys` columns in front."""
    key, rest = list(columns[:keys]), columns[keys:]
    found = [list(key)]
    for column in rest:
        if width is not None and len(found[-1]) > len(key) and _least([*found[-1], column]) > width:
            found.append(list(key))
        found[-1].append(column)
    return found


def widths(columns: Sequence[GridColumn], width: int | None) -> list[int]:
    """Return the characters of each column: sentences and headings share what numbers and names leave."""
    found = [column.widest for column in columns]
    if width is None:
        return found
    least = [column.narrowest for column in columns]
    excess = sum(found) + _GAP * (len(columns) - 1) - width
    while excess > 0 and found != least:  # the widest that can be folded gives a character
        place = max((i for i in range(len(columns)) if found[i] > least[i]), key=lambda i: found[i])
        found[place] -= 1
        excess -= 1
    return found


def _least(columns: Sequence[GridColumn]) -> int:
    return sum(column.narrowest for column in columns) + _GAP * (len(columns) - 1)


def _words(text: str) -> list[str]:
    return text.split() or [""]


def _print_block(columns: Sequence[GridColumn], sizes: Sequence[int]) -> None:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, _GAP - 1, 0, 0))
    for column, size in zip(columns, sizes, strict=True):
        side: Literal["right", "left"] = "right" if column.is_numeric else "left"
        table.add_column(column.heading, justify=side, width=size, overflow="fold")
    for row in zip(*(column.cells for column in columns), strict=True):
        table.add_row(*row)
    whole = sum(sizes) + _GAP * len(columns)  # a name may be wider than the terminal: then its lines are
    Console(width=whole, markup=False, highlight=False, emoji=False).print(table)
    print()
