"""Writes docs/explanation/validation.md from what edgesim gives now: python -m tests.validation.page."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.validation.checks import Item, Row, Value
from tests.validation.items import ITEMS

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "validation.md"

HEAD = """# Validation

edgesim beside closed forms, exact oracles and published numbers. The column "edgesim" is read from the tables and the
ledger of simulated runs; only memory is asked of the cost profile. `make validation` writes this page anew, and
`tests/validation` fails if an item is missing or a verdict changes. Errors and tolerances are in the unit of the row
or, where it says "rel.", shares of the expected number. Numbers are rounded for print, not for the verdict.
"""
COLUMNS = "| what | expected | edgesim | error | tolerance | verdict |\n|---|---|---|---|---|---|"
LINE = re.compile(r"\| (?P<what>.+?) \|.*\| (?P<verdict>pass|FAIL) \|")


def write(page: Path = PAGE) -> None:
    """Write the page."""
    page.write_text(render({item: item.rows() for item in ITEMS}), encoding="utf-8")


def render(results: Mapping[Item, Sequence[Row]]) -> str:
    """Return the page as Markdown: a summary, then a section with a table for every item."""
    rows = [row for found in results.values() for row in found]
    failed = sum(row.verdict == "FAIL" for row in rows)
    summary = f"{len(results)} items, {len(rows)} rows, {failed or 'none'} failed.\n"
    return "\n".join([HEAD, summary, *(_section(item, found) for item, found in results.items())])


def verdicts(text: str) -> dict[str, list[tuple[str, str]]]:
    """Return the titles of a page, and under each what its rows are about and their verdicts."""
    sections = (section.partition("\n") for section in text.split("\n## ")[1:])
    return {
        title: [(line["what"], line["verdict"]) for line in map(LINE.fullmatch, body.splitlines()) if line]
        for title, _, body in sections
    }


def _section(item: Item, rows: Sequence[Row]) -> str:
    against = textwrap.fill(f"Against: {item.against}.", 120)
    return "\n".join([f"## {item.title}", "", against, "", COLUMNS, *map(_line, rows), ""])


def _line(row: Row) -> str:
    share = " rel." if row.relative else ""
    error, tolerance = f"{_error(row)}{share}", f"{row.tolerance:.2g}{share}"
    return f"| {row.what} | {_number(row.expected)} | {_number(row.found)} | {error} | {tolerance} | {row.verdict} |"


def _number(value: Value) -> str:
    """Return a number to seven digits: further ones may differ from machine to machine."""
    if isinstance(value, str):
        return value
    if isinstance(value, int):
        return f"{value:,}"
    return "0" if abs(value) < 1e-12 else f"{value:.7g}"


def _error(row: Row) -> str:
    """Return an error to one digit; of numbers that need not be equal, what rounding leaves is not told."""
    return "< 1e-12" if row.tolerance and row.error < 1e-12 else f"{row.error:.1g}"


if __name__ == "__main__":
    write()
