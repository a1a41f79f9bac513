"""Who may import whom. The table below is the architecture; a new arrow is drawn here or not at all."""

from __future__ import annotations

import ast
import os
import subprocess
import sys

import pytest

from tests.conventions.source_tree import ROOT, Source, imported, loaded_at_import, sources

# Part -> the parts that it may import. Everything may import itself.
ARROWS: dict[str, set[str]] = {
    # words and numbers that everybody shares
    "errors": set(),
    "limits": {"errors"},
    "short_forms": set(),
    "reading": {"errors", "limits"},
    "parquet_file": {"errors", "reading"},
    "interrupts": set(),
    "processes": {"errors", "interrupts"},
    "rng": set(),
    "numbers": set(),
    "local_sgd": {"numbers"},
    "encoding": set(),
    "orders": {"encoding", "local_sgd"},
    "contracts": {"encoding", "rng", "local_sgd", "orders"},
    "units": {"errors", "numbers", "reading", "short_forms"},
    "card": {"contracts", "encoding", "errors"},
    "workload": {"card", "contracts"},
    "peering": {"contracts", "errors", "limits", "rng"},
    "catalogue": {"errors", "reading"},
    "devices": set(),  # data files
    "config": {"catalogue", "contracts", "encoding", "errors", "numbers", "reading", "units"},
    # when and how much: no torch
    "world": {
        *("card", "config", "contracts", "errors", "limits", "numbers", "parquet_file", "peering", "reading", "rng"),
        "units",
    },
    "engine": {
        *("card", "config", "contracts", "errors", "limits", "numbers", "peering", "records", "rng", "world"),
        "workload",
    },
    "coordinators": {"contracts", "engine", "errors", "limits", "numbers", "units"},
    "store": {"contracts"},
    "pending": {"contracts"},
    "learner": {"contracts", "errors", "pending", "rng", "store"},
    "checkpoint": {"contracts", "errors", "learner", "records", "rng", "tree_file"},
    "tree_file": {"learning"},
    # what values: no SimPy
    "learning": {
        *("card", "config", "contracts", "encoding", "errors", "limits", "numbers", "parquet_file", "peering"),
        *("reading", "rng"),
        "workload",
    },
    "methods": {"contracts", "errors", "learning", "numbers", "peering", "rng", "workload"},
    "backends": {"contracts", "errors", "learning", "limits", "numbers", "processes"},
    # tables, and all that is read from them
    "records": {"errors", "parquet_file", "reading"},
    "analysis": {"errors", "reading", "records"},
    "progress": {"analysis"},
}
# Where everything is put together. Nothing above may know them.
ROOTS = {
    "edgesim",
    "__main__",
    "assembly",
    "simulation",
    "recording",
    "provenance",
    "estimate",
    "job_sample",
    "advice",
    "calibrate",
    "study",
    "commands",
}

# Big libraries -> the parts that may import them.
LIBRARIES: dict[str, set[str]] = {
    "torch": {"learning", "methods", "backends", "assembly", "checkpoint", "tree_file", "estimate", "calibrate"},
    "torchvision": {"learning"},
    "simpy": {"engine", "coordinators"},
    "matplotlib": {"analysis"},
    "seaborn": {"analysis"},
    "typer": {"__main__", "commands"},
}

TORCH_FREE = {"world", "engine", "coordinators", "records", "analysis", "config", "card"}
TORCH_FREE |= {"contracts", "orders", "local_sgd", "learner", "pending", "store", "progress", "devices"}
TORCH_FREE |= {"catalogue", "encoding", "numbers", "units", "rng", "errors", "reading", "parquet_file", "limits"}
TORCH_FREE |= {"interrupts", "processes", "short_forms", "edgesim"}
SIMPY_FREE = {"learning", "methods", "backends"}


def needs_no_torch(source: Source) -> bool:
    """Return whether a module has to load where torch is missing."""
    return source.unit in TORCH_FREE or source.module == "edgesim.backends.null"


def unit_of(name: str) -> str | None:
    """Return the part of the package that a dotted name lies in; None if it lies outside."""
    parts = name.split(".")
    return None if parts[0] != "edgesim" else [*parts, "edgesim"][1]


def test_no_arrow_against_the_table():
    """Every import inside the package, wherever it stands, follows an arrow of the table."""
    units = {source.unit for source in sources()}
    wrong = []
    for source in sources():
        if source.unit in ROOTS:
            continue
        allowed = {source.unit, *ARROWS.get(source.unit, set())}
        for node in ast.walk(source.tree):
            reached = {unit_of(name) for name in imported(node)} & units - {"edgesim"}
            wrong += [f"{source.at(node)} imports {unit}" for unit in reached - allowed]
    assert wrong == []


def test_the_table_knows_every_part():
    """A new part of the package is drawn in the table, and all arrows lead to parts that are in it."""
    assert {source.unit for source in sources()} <= ROOTS | ARROWS.keys()
    assert set().union(*ARROWS.values()) <= ARROWS.keys()


@pytest.mark.parametrize("library", LIBRARIES)
def test_libraries_stay_where_they_belong(library):
    """torch is for learning, SimPy for the clock, plotting for the analysis."""
    wrong = [
        source.at(node)
        for source in sources()
        if source.unit not in LIBRARIES[library]
        for node in ast.walk(source.tree)
        if any(name.split(".")[0] == library for name in imported(node))
    ]
    assert wrong == []


def reached_from(start: str) -> set[str]:
    """Return every dotted name that is loaded when a module is, its packages included, outside names as they are."""
    trees = {source.module: source.tree for source in sources()}
    seen: set[str] = set()
    waiting = [start]
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        waiting += [name.rpartition(".")[0]] if "." in name else []
        waiting += [found for node in loaded_at_import(trees.get(name, ast.Module([], []))) for found in imported(node)]
    return seen


def test_the_clock_reaches_no_torch():
    """Loading world, engine, coordinators, analysis, the learner or the null backend loads no torch, by any path."""
    starts = [source.module for source in sources() if needs_no_torch(source)]
    assert {"edgesim.engine.engine", "edgesim.backends.null", "edgesim.learner"} <= set(starts)
    wrong = {start for start in starts if {"torch", "torchvision"} & reached_from(start)}
    assert wrong == set()
    assert "torch" in reached_from("edgesim.backends.serial")  # the walk does find it where it is


def test_learning_reaches_no_simpy():
    """Loading learning, methods or backends loads no SimPy, by any path."""
    starts = [source.module for source in sources() if source.unit in SIMPY_FREE]
    assert {start for start in starts if "simpy" in reached_from(start)} == set()
    assert "simpy" in reached_from("edgesim.engine.engine")


def test_parts_load_where_a_library_is_missing():
    """The same, tried: modules are imported in processes where torch, or SimPy, cannot be imported."""
    tried = {
        ("torch", "torchvision"): [source.module for source in sources() if needs_no_torch(source)],
        ("simpy",): [source.module for source in sources() if source.unit in SIMPY_FREE],
    }
    processes = [subprocess.Popen(_command(*trial), cwd=ROOT, stderr=subprocess.PIPE, text=True, env=os.environ)
                 for trial in tried.items()]  # fmt: skip
    for process in processes:
        error = process.communicate()[1]
        assert process.returncode == 0, error


_TRY = """
import importlib, sys

class Missing:
    def find_spec(self, name, *_):
        if name.split(".")[0] in {missing!r}:
            raise ImportError(name + " is missing")

sys.meta_path.insert(0, Missing())
for module in {modules!r}:
    importlib.import_module(module)
"""


def _command(missing: tuple[str, ...], modules: list[str]) -> list[str]:
    return [sys.executable, "-c", _TRY.format(missing=missing, modules=modules)]
