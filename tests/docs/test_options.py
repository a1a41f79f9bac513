"""Every key of every method has a test that exists, and says where its default comes from."""

from __future__ import annotations

import ast
import dataclasses
import re
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from edgesim.config.describe import describe
from edgesim.config.plugins import PACKAGES, plugins_of
from tests.docs.pages import ROOT
from tests.sizes import full

METHODS = plugins_of("method")


class Row(NamedTuple):
    """A key of a method and the test that shows what it does."""

    method: str
    key: str
    file: str
    test: str


@cache
def rows() -> list[Row]:
    """Return what OPTIONS of the tests of methods say: a test by its name, or by its file and name."""
    found = []
    for path in sorted((ROOT / "tests" / "methods").glob("test_*.py")):
        for node in parsed(path).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "OPTIONS":
                for method, keys in ast.literal_eval(node.value).items():
                    for key, test in keys.items():
                        file, _, name = test.rpartition("::")
                        found.append(Row(method, key, file or path.name, name))
    return found


@cache
def parsed(path: Path) -> ast.Module:
    """Return the syntax of a file."""
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def names_of_tests() -> dict[str, frozenset[str]]:
    """Return the names of the tests of the files that are named, by the name of the file."""
    found, wanted = {}, {row.file for row in rows()}
    for path in (ROOT / "tests").rglob("test_*.py"):
        if path.name in wanted:
            found[path.name] = frozenset(node.name for node in parsed(path).body if isinstance(node, ast.FunctionDef))
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


SAME_MEANING = {  # texts that are true of each of these keys as they stand: where a default comes from, or a heading
    "Paper and code.": {"b", "p"},
    "As in the paper.": {"batch", "lr", "temperature"},
    "The authors' earlier code.": {"hessian_samples", "lanczos_starts"},
    "Published code.": {
        "align_lr", "alpha", "decay", "generated", "generator_steps", "server_epochs", "temperature"
    },
    "Published code, with Adam.": {"server_lr", "server_weight_decay"},
    "Published settings.": {"diversity", "generator_weight_decay"},
    "As in the authors' code and in Adam.": {"beta1", "beta2"},
    "Of both splits together.": {"documents_per_author", "samples_per_device", "samples_per_user"},
    "Equal to the number of devices of the fleet, with partition by_column.": {"authors", "users"},
}  # fmt: skip


def keys_by_text() -> dict[str, set[str]]:
    """Return which keys of all plug-ins each text stands for, their meanings and what is said below fields."""
    found = defaultdict(set)
    for kind in PACKAGES:
        for name in plugins_of(kind):
            for key in describe(kind, name).keys:
                found[key.meaning].add(key.key)
                found[key.background].add(key.key)
    return {text: keys for text, keys in found.items() if text}


@full
def test_no_key_has_the_words_of_another() -> None:
    """A text that stands for several keys says something of each, by its name, or is true of all."""
    shared = {text: keys for text, keys in keys_by_text().items() if len(keys) > 1}
    unnamed = {text: keys for text, keys in shared.items() if not all(re.search(rf"\b{k}\b", text) for k in keys)}
    assert unnamed == SAME_MEANING
