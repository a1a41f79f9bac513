"""Every path of this project that a comment, a docstring, a scenario or a page names is there."""

from __future__ import annotations

import ast
import io
import json
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conventions.source_tree import PACKAGE, ROOT
from tests.sizes import full

FOLDERS = (".ci", ".github", "analysis", "benchmarks", "docs", "edgesim", "golden", "scenarios", "tests")
READ = (".py", ".toml", ".md", ".ipynb", ".yml", ".cff")
FILES = (".py", ".toml", ".md", ".csv", ".png", ".ipynb", ".yml", ".json")
# Names with a folder in front, or of modules and pages, that begin a word: no part of an address, a ratio or a unit.
FOLDER_AND_MORE = r"(?<![\w./:{}<>*\\-])(?:(?:\.\./)+[\w.*+-]+|\.?[\w*-]+(?=/))(?:/[\w.*+-]+)*/?"
NAME = r"(?<![\w./:{}<>*-])[\w-]+\.(?:py|md)\b(?![(/{])"
WORD = re.compile(f"{FOLDER_AND_MORE}|{NAME}")
TO_FILL_IN = re.compile(r"\b[A-Z]{3,}\b|(?:^|/)my_")  # golden/NAME, my_study.toml
WRITTEN = "runs/"  # by commands
# What is meant as an example, or lies in somebody else's repository.
PAGES = ROOT / "docs"
NOT_OURS = {
    *("cautious.py", "convert.py", "deadlines.py", "halving.py", "topics.py", "walks.py"),
    *("custom_mods/mods.py", "fedrep/client_app.py", "pytorch_example/task.py"),
    "to_json.py",
    "pandas.py",
    "tables/first/golden.toml",
    "tables/alone/golden.toml",
    "check.md",
    "test_numbers.py",
    ".github/workflows/edgesim.yml",
    "reference/table_3.csv",
    "web/data/results.yml",
    "*/manifest.json",
}


def texts() -> list[Path]:
    """Return the files that are searched."""
    found = [path for path in ROOT.iterdir() if path.suffix in READ or path.name == "Makefile"]
    found.remove(ROOT / "mkdocs.yml")  # its paths are those of pages, followed when the site is built
    for folder in FOLDERS:
        found += [path for path in (ROOT / folder).rglob("*") if path.suffix in READ]
    return sorted([*found, ROOT / ".ci" / "run"])


def prose(path: Path) -> Iterator[str]:
    """Yield what a person reads in a file: comments and docstrings of code, cells of a notebook, all of other texts."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        yield from ("".join(cell["source"]) for cell in json.loads(text)["cells"])
    elif path.suffix == ".py":
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        yield from (token.string for token in tokens if token.type == tokenize.COMMENT)
        documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        nodes = (node for node in ast.walk(ast.parse(text)) if isinstance(node, documented))
        yield from filter(None, map(ast.get_docstring, nodes))
    else:
        yield text


def named(text: str) -> set[str]:
    """Return the paths of this project that a text names; what has neither folder nor ending is one in its folders."""
    words = {match[0].rstrip(".,:;") for match in WORD.finditer(text)}
    return {word for word in words if _is_path(word) and not TO_FILL_IN.search(word)} - NOT_OURS


def _is_path(word: str) -> bool:
    return not word.removeprefix("../").startswith(WRITTEN) and (
        word.startswith("../") or word.endswith(FILES) or word.partition("/")[0] in FOLDERS
    )


NAMES = {path.name for folder in FOLDERS for path in (ROOT / folder).rglob("*")} | {
    path.name for path in ROOT.iterdir()
}


def missing(text: str, folder: Path) -> list[str]:
    """Return the paths that a text of a file in a folder names and that lead nowhere.

    They are meant from the root, from the package or from the folder; a bare name is that of any file.
    """

    def is_there(word: str) -> bool:
        return word in NAMES or any(_leads(base, word) for base in (ROOT, PACKAGE, folder))

    return sorted(word for word in named(text) if not is_there(word))


def _leads(base: Path, word: str) -> bool:
    """Return whether a path, which may have stars, leads somewhere from a folder."""
    while word.startswith("../"):
        base, word = base.parent, word.removeprefix("../")
    return next(base.glob(word.rstrip("/")), None) is not None


@full
def test_every_path_that_is_named_is_there() -> None:
    """Links among pages of the site, of which some are generated, are followed when it is built."""
    found = {path: missing("\n".join(prose(path)), path.parent) for path in texts()}
    lost = {path: [word for word in words if not (PAGES in path.parents and word.startswith("../"))]
            for path, words in found.items()}  # fmt: skip
    assert {str(path.relative_to(ROOT)): words for path, words in lost.items() if words} == {}
    assert len(found) > 500


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("With a server: scenarios/server.toml.", ["scenarios/server.toml"]),
        ("`docs/none.md`, and [here](../scenarios/quick.toml)", ["../scenarios/quick.toml", "docs/none.md"]),
        ("see engine/none.py::test_it, tests/none and none.py", ["engine/none.py", "none.py", "tests/none"]),
        ('base = "../none.toml"', ["../none.toml"]),
        ("golden/none*, scenarios/studies/*.tom", ["golden/none*", "scenarios/studies/*.tom"]),
        (
            "docs/howto/method.md, rng.py, tests/conventions/, config/load.py, scenarios/studies/*.toml, ../README.md",
            [],
        ),
        ("3 MB/s, 1/2, q/k/v, http://host/docs/none.md, runs/mine.csv, golden/NAME/x.csv, my_study.toml", []),
    ],
)
def test_what_is_taken_for_a_path(text: str, words: list[str]) -> None:
    assert missing(text, ROOT / "docs") == words
