"""Tables that fit a terminal: headings and sentences wrap, and columns without room follow in a block below.

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
_SENTENCE = 24  # a cell with more characters and a space is a sentence, which may wrap
_NUMBER = re.compile(r"[-+]?(\d[\d.,]*(e[-+]?\d+)?|inf|nan)( ?[^\d\s]+)?( ± .*)?|-")


@dataclass(frozen=True)
class GridColumn:
    """A column of texts under a heading."""

    heading: str
    cells: Sequence[str]

    @property
    def is_numeric(self) -> bool:
        """True if all cells are numbers, with or without a unit, or dashes."""
        return all(_NUMBER.fullmatch(cell) for cell in self.cells)

    @property
    def widest(self) -> int:
        """Width in characters without wrapping."""
        return max(map(cell_len, (self.heading, *self.cells)))

    @property
    def narrowest(self) -> int:
        """Smallest width in characters: its longest number, name or word of a sentence."""
        needed = []
        for cell in self.cells:
            is_sentence = not self.is_numeric and " " in cell and cell_len(cell) > _SENTENCE
            needed += _words(cell) if is_sentence else [cell]
        return max(map(cell_len, (*_words(self.heading), *needed)))


def print_grid(columns: Sequence[GridColumn], keys: int = 1, width: int | None = None) -> None:
    """Print columns side by side. If they do not fit, print blocks that each begin with the first `keys` columns.

    `width`: characters of a line, by default of the terminal. A pipe has no limit.
    """
    if width is None and sys.stdout.isatty():
        width = shutil.get_terminal_size().columns
    columns = [GridColumn(visible(each.heading), list(map(visible, each.cells))) for each in columns]
    for block in blocks(columns, keys, width):
        sizes = widths(block, width)
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, _GAP - 1, 0, 0))
        for column, size in zip(block, sizes, strict=True):
            side: Literal["right", "left"] = "right" if column.is_numeric else "left"
            table.add_column(column.heading, justify=side, width=size, overflow="fold")
        for row in zip(*(column.cells for column in block), strict=True):
            table.add_row(*row)
        whole = sum(sizes) + _GAP * len(block)  # lines may be wider than the terminal if a name is
        Console(width=whole, markup=False, highlight=False, emoji=False).print(table)
        print()


def blocks(columns: Sequence[GridColumn], keys: int, width: int | None) -> list[list[GridColumn]]:
    """Return columns in the fewest blocks that fit the width, each with the first `keys` columns in front."""
    key, rest = list(columns[:keys]), columns[keys:]
    found = [list(key)]
    for column in rest:
        block = [*found[-1], column]
        least = sum(each.narrowest for each in block) + _GAP * (len(block) - 1)
        if width is not None and len(found[-1]) > len(key) and least > width:
            found.append(list(key))
        found[-1].append(column)
    return found


def widths(columns: Sequence[GridColumn], width: int | None) -> list[int]:
    """Return the width of each column. Sentences and headings share the width that numbers and names leave."""
    found = [column.widest for column in columns]
    if width is None:
        return found
    least = [column.narrowest for column in columns]
    excess = sum(found) + _GAP * (len(columns) - 1) - width
    while excess > 0 and found != least:  # the widest column that can wrap gives a character
        place = max((i for i in range(len(columns)) if found[i] > least[i]), key=lambda i: found[i])
        found[place] -= 1
        excess -= 1
    return found


def _words(text: str) -> list[str]:
    return text.split() or [""]
