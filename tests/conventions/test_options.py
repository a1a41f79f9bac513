"""The page of options tells the truth: every key of every method, its default, and a test that exists."""

from __future__ import annotations

import ast
import dataclasses
import re
import tomllib
from functools import cache
from typing import Any, NamedTuple

import pytest

from edgesim.catalogue import parts_of
from tests.conventions.source_tree import ROOT

PAGE = (ROOT / "docs" / "options.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| `(\w+)` \| `([^`]+)` \| (.+) \| `(tests/[\w/]+\.py)::(\w+)` \|$", re.MULTILINE)
METHODS = parts_of("method")


class Option(NamedTuple):
    """A row of the page."""

    key: str
    default: str
    source: str
    file: str
    test: str


def sections() -> dict[str, str]:
    """Return the text of each method's section, by method."""
    _, *parts = re.split(r"^## ", PAGE, flags=re.MULTILINE)
    return {heading: text for heading, _, text in (part.partition("\n") for part in parts) if "|" in text}


def options(method: str) -> list[Option]:
    """Return the rows of a method's section."""
    return [Option(*row) for row in ROW.findall(sections().get(method, ""))]


def written(default: str) -> Any:
    """Return the default that a row shows, in the words of a scenario."""
    return None if default == "unset" else tomllib.loads(f"value = {default}")["value"]


def scenario_value(value: Any) -> Any:
    """Return a default as a scenario would have it: tuples are lists there."""
    return [scenario_value(item) for item in value] if isinstance(value, tuple) else value


def default_of(field: dataclasses.Field[Any]) -> Any:
    """Return the default of a field."""
    assert field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING, field.name
    value = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
    return scenario_value(value)


@cache
def names_in(file: str) -> frozenset[str]:
    """Return the names of the tests of a file."""
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef))


def test_every_method_has_a_section_and_nobody_else():
    """Methods without keys need none."""
    with_keys = {name for name, cls in METHODS.items() if dataclasses.fields(cls)}
    assert sections().keys() == with_keys


@pytest.mark.parametrize("method", METHODS)
def test_keys_and_defaults_are_those_of_the_class(method):
    """In the order of the class, each once, with the type of the default: 1 is not 1.0."""
    found = [(option.key, repr(written(option.default))) for option in options(method)]
    assert found == [(field.name, repr(default_of(field))) for field in dataclasses.fields(METHODS[method])]


@pytest.mark.parametrize("method", METHODS)
def test_every_row_is_read(method):
    """A row that the pattern does not know would be skipped in silence: there are as many as lines of the table."""
    lines = [line for line in sections().get(method, "").splitlines() if line.startswith("|")]
    assert len(options(method)) == max(0, len(lines) - 2)  # without heading and rule


@pytest.mark.parametrize("method", METHODS)
def test_named_tests_exist(method):
    """A reader finds them where the page says."""
    missing = [f"{o.file}::{o.test}" for o in options(method) if o.test not in names_in(o.file)]
    assert missing == []
