"""The page of the run folder tells the truth: every table, column with its type, and outcome."""

from __future__ import annotations

import re
from typing import get_args

import pytest

from edgesim.contracts import Outcome
from edgesim.records.schema import INT, REAL, TABLES, TEXT
from tests.conventions.source_tree import ROOT

PAGE = (ROOT / "docs" / "run_folder.md").read_text(encoding="utf-8")
WORDS = {INT: "integer", REAL: "real", TEXT: "text"}
_, *PARTS = re.split(r"^## ", PAGE, flags=re.MULTILINE)
SECTIONS = {heading: text for heading, _, text in (part.partition("\n") for part in PARTS)}


def rows(text: str, cells: int) -> list[list[str]]:
    """Return the rows of a text's tables that have so many cells and begin with a name in code, bare."""
    split = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| `")]
    return [[row[0].strip("`"), *row[1:]] for row in split if len(row) == cells]


def test_every_table_has_a_section_and_nothing_else():
    """In the order of the schema."""
    assert list(SECTIONS) == list(TABLES)


@pytest.mark.parametrize("table", TABLES)
def test_columns_and_types_are_those_of_the_schema(table):
    """In order, each once."""
    shown = [(name, dtype) for name, dtype, _ in rows(SECTIONS[table], 3)]
    assert shown == [(name, WORDS[dtype]) for name, dtype in TABLES[table].items()]


def test_every_outcome_is_explained():
    """In the order of the contracts."""
    assert [name for name, _ in rows(SECTIONS["jobs"], 2)] == list(get_args(Outcome))
