"""The options of commands that print a table: as CSV, Markdown, LaTeX JSON, and sorted by a column."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from edgesim.config.plugins import meant
from edgesim.core.errors import ConfigError
from edgesim.files.reading import quoted

if TYPE_CHECKING:
    import pandas as pd

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")]
AsCsv = Annotated[bool, typer.Option("--csv", help="Print CSV, numbers in SI units and to their last digit.")]
AsMarkdown = Annotated[bool, typer.Option("--markdown", help="Print a table for a Markdown page.")]
AsLatex = Annotated[bool, typer.Option("--latex", help="Print a table for LaTeX (booktabs).")]
SortBy = Annotated[
    str | None, typer.Option("--sort", metavar="COLUMN", help="Sort by a column of --csv; -COLUMN: the largest first.")
]

_SIGNS = {"±": r"\pm", "×": r"\times", "µ": r"\mu", "≥": r"\ge", "≤": r"\le", "−": "-", ">": ">", "<": "<"}
_IN_LATEX = str.maketrans({sign: f"${text}$" for sign, text in _SIGNS.items()} | {"–": "--", "\u00a0": "~"})


def one_of(**given: bool) -> str:
    """Return the name of the one format that is given, "" if none is. Raises ConfigError if there are several."""
    names = [name for name, asked in given.items() if asked]
    if len(names) > 1:
        raise ConfigError(f"{', '.join(f'--{name}' for name in names)}: give one of them")
    return "".join(names)


def order(frame: pd.DataFrame, column: str) -> list[int]:
    """Return the places of the rows of a frame in the order of a column, missing values last; -COLUMN: descending.

    Rows that are equal keep their order. Raises ConfigError that offers the nearest if there is no such column.
    """
    import pandas as pd

    name = column.removeprefix("-")
    if name not in frame:
        known = [str(each) for each in frame]
        raise ConfigError(f"--sort: no column {quoted(name)}{meant(name, known)} (known: {', '.join(known)})")
    values = frame[name].reset_index(drop=True)
    if pd.to_numeric(values, errors="coerce").notna().equals(values.notna()):
        values = pd.to_numeric(values)  # labels such as 10 and 9 are texts
    return list(values.sort_values(ascending=name == column, kind="stable", na_position="last").index)


def markdown(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table of texts."""
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def latex(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a LaTeX table of texts, with the rules of the package booktabs; signs stand in mathematics."""
    import pandas as pd

    frame = pd.DataFrame([list(row) for row in rows], columns=list(headings))
    return frame.to_latex(index=False, escape=True).rstrip().translate(_IN_LATEX)
