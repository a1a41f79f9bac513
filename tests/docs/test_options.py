"""Every key of every method has a test that exists, and says where its default comes from."""

from __future__ import annotations

import ast
import csv
import dataclasses
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from edgesim.config.describe import describe
from edgesim.config.plugins import plugins_of
from tests.docs.pages import ROOT

METHODS = plugins_of("method")


class Row(NamedTuple):
    """A key of a method and the test that shows what it does."""

    method: str
    key: str
    file: str
    test: str


def rows() -> list[Row]:
    """Return the rows of tests_of_options.csv."""
    with (Path(__file__).parent / "tests_of_options.csv").open(encoding="utf-8", newline="") as file:
        return [Row(row["method"], row["key"], *row["test"].split("::")) for row in csv.DictReader(file)]


@cache
def names_of_tests() -> dict[str, frozenset[str]]:
    """Return the names of the tests of every file of tests, by the name of the file."""
    found = {}
    for path in (ROOT / "tests").rglob("test_*.py"):
        body = ast.parse(path.read_text(encoding="utf-8")).body
        found[path.name] = frozenset(node.name for node in body if isinstance(node, ast.FunctionDef))
    return found


@pytest.mark.parametrize("method", METHODS)
def test_every_key_has_a_test(method: str) -> None:
    """In the order of the class, each once."""
    keys = [field.name for field in dataclasses.fields(METHODS[method])]
    assert sorted(row.key for row in rows() if row.method == method) == sorted(keys)


def test_tests_exist() -> None:
    """A reader finds each; and there is none of a method that is gone."""
    known = names_of_tests()
    assert [row for row in rows() if row.test not in known.get(row.file, ())] == []
    assert {row.method for row in rows()} <= METHODS.keys()


@pytest.mark.parametrize("method", METHODS)
def test_every_key_says_where_it_comes_from(method: str) -> None:
    """A docstring below the field, of the class or of one that it builds on."""
    assert [key.key for key in describe("method", method).keys if not key.background.endswith((".", ")"))] == []
