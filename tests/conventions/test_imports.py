"""Who may import whom. The table below is the architecture; a new arrow is drawn here or not at all."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from graphlib import TopologicalSorter
from importlib.metadata import packages_distributions

from packaging.requirements import Requirement

from tests.conventions.source_tree import ROOT, Source, imported, loaded_at_import, nodes, package_of, sources, walk
from tests.package.test_metadata import NAMED, PROJECT
from tests.sizes import full

# Package -> the packages that it may import, from the words that all share to the command line: no arrow leads back.
# Everything may import itself. A sub-package of its own in the table is named with its package.
ARROWS: dict[str, set[str]] = {
    "core": set(),
    "files": {"core"},
    "config": {"core", "files"},
    # when, and how much of everything: no torch
    "world": {"config", "core", "files"},
    "records": {"core", "files"},
    "engine": {"config", "core", "records", "world"},
    # what values: no SimPy
    "learning": {"config", "core", "files"},
    "methods": {"config", "core", "learning"},
    "execution": {"core", "files", "learning"},
    "execution.backends": {"core", "execution", "files", "learning"},
    # what is made of all that
    "reports": {"core", "files", "records"},
    "foreign": {"config", "core", "files", "learning", "methods"},
    "flower": {"config", "core", "files", "foreign"},
    "runs": {
        *("config", "core", "engine", "execution", "execution.backends", "files", "foreign", "learning", "methods"),
        *("records", "reports", "world"),
    },
    "studies": {"config", "core", "execution", "files", "learning", "records", "reports", "runs"},
    "pytest_plugin": {"core", "reports", "studies"},
    "cost": {"config", "core", "learning"},
    "cli": {"config", "core", "cost", "execution", "files", "records", "reports", "runs", "studies"},
}
ROOTS = {"edgesim", "__main__"}  # edgesim.run, edgesim.load, edgesim.open; and what python -m edgesim starts

# Big libraries -> the parts that may import them.
LIBRARIES: dict[str, set[str]] = {
    "torch": {"cost", "foreign", "learning", "methods", "execution", "execution.backends", "runs"},
    "torchvision": {"learning"},
    "simpy": {"engine"},
    "matplotlib": {"reports"},
    "seaborn": {"reports"},
    "plotly": {"reports"},
    "typer": {"cli"},
    "ray": {"execution", "execution.backends", "studies"},
    "tensorboard": {"reports"},
    "mlflow": {"reports"},
    "pytest": {"pytest_plugin"},
    "optuna": {"studies"},
    "huggingface_hub": {"learning"},
    "transformers": {"learning"},
    "peft": {"learning"},
    "timm": {"learning"},
    "flwr": {"flower"},
}

TORCH_FREE = {*("core", "files", "config", "world", "engine", "records", "reports"), "pytest_plugin", "edgesim"}
# What a scenario names that most start from, and what looks at it, or times it, without training.
ALSO_TORCH_FREE = {
    *(
        f"edgesim.cli.{name}"
        for name in ("app", "run", "scenarios", "look", "parts", "study", "keep", "watch", "watch_page")
    ),
    *(f"edgesim.learning.models.{name}" for name in ("chains", "deep_chains", "resnets", "torchvision_family")),
    *("edgesim.foreign.loops", "edgesim.learning.server_rows", "edgesim.learning.train.torch_settings"),
    *(f"edgesim.methods.{name}" for name in ("fedavg", "fedpmt", "fedprox", "fedsgd", "fedasync", "feddrop")),
    *(f"edgesim.execution.{name}" for name in ("learner", "pending", "model_store", "processes", "interrupts")),
    *("edgesim.foreign", "edgesim.foreign.counted", "edgesim.flower", "edgesim.flower.app"),
    *("edgesim.execution.backends.null", "edgesim.execution.backends.serial"),
    *(f"edgesim.runs.{name}" for name in ("progress", "simulate", "warnings", "network", "fingerprint")),
}
SIMPY_FREE = {"learning", "methods", "execution", "execution.backends"}


def needs_no_torch(source: Source) -> bool:
    """Return whether a module has to load where torch is missing."""
    apart = source.module.startswith(("edgesim.learning.data.", "edgesim.learning.cost_models."))
    return source.unit in TORCH_FREE or source.module in ALSO_TORCH_FREE or apart


def unit_of(name: str) -> str | None:
    """Return the package of the table that a dotted name lies in; None if it lies outside edgesim."""
    return package_of(name) if name.split(".")[0] == "edgesim" else None


def test_no_arrow_against_the_table():
    """Every import inside the package, wherever it stands, follows an arrow of the table."""
    units = {source.unit for source in sources()}
    wrong = []
    for source in sources():
        if source.unit in ROOTS:
            continue
        allowed = {source.unit, *ARROWS.get(source.unit, set())}
        for node in nodes(source):
            reached = {unit_of(name) for name in imported(node)} & units - {"edgesim"}
            wrong += [f"{source.at(node)} imports {unit}" for unit in reached - allowed]
    assert wrong == []


def test_the_table_knows_every_part():
    """A new package is drawn in the table, and all arrows lead to packages that are in it."""
    assert {source.unit for source in sources()} == ROOTS | ARROWS.keys()
    assert set().union(*ARROWS.values()) <= ARROWS.keys()


def test_arrows_go_one_way():
    """The packages can be read in an order in which each needs only those before it."""
    assert len(tuple(TopologicalSorter(ARROWS).static_order())) == len(ARROWS)  # which raises CycleError


def test_every_arrow_is_used():
    """The table draws what is there: an arrow that nobody needs any more is taken out."""
    used = {(source.unit, unit_of(name)) for source, node in walk() for name in imported(node)}
    assert [(unit, other) for unit, others in ARROWS.items() for other in others if (unit, other) not in used] == []


def test_libraries_stay_where_they_belong():
    """torch is for learning, SimPy for the clock, plotting for the reports."""
    wrong = [
        f"{source.at(node)} imports {name}"
        for source, node in walk()
        for name in imported(node)
        if source.unit not in LIBRARIES.get(name.split(".")[0], {source.unit})
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
    """Loading what checks or times a scenario loads no torch, by any path."""
    starts = [source.module for source in sources() if needs_no_torch(source)]
    assert {"edgesim.engine.world", "edgesim.execution.backends.null", "edgesim.execution.learner"} <= set(starts)
    wrong = {start for start in starts if {"torch", "torchvision"} & reached_from(start)}
    assert wrong == set()
    assert "torch" in reached_from("edgesim.learning.train.trainer")  # the walk does find it where it is


def test_learning_reaches_no_simpy():
    """Loading learning, methods or backends loads no SimPy, by any path."""
    starts = [source.module for source in sources() if source.unit in SIMPY_FREE]
    assert {start for start in starts if "simpy" in reached_from(start)} == set()
    assert "simpy" in reached_from("edgesim.engine.world")


def test_training_waits_for_the_flop_counter():
    """Neither workers nor the server of a run load torch's counter, and Triton with it, before something is counted."""
    for start in ("edgesim.learning.train.trainer", "edgesim.learning.train.cohort", "edgesim.learning.server"):
        assert "torch.utils.flop_counter" not in reached_from(start)
    assert "torch.utils.flop_counter" in reached_from("edgesim.learning.measure.step")


@full
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


# --- dependencies -----------------------------------------------------------------------------------------------------

# None is imported: the data set of digits is a file of scikit-learn, MLflow keeps a database with the next two, and
# the last is for typer.
NOT_IMPORTED = {"scikit-learn", "sqlalchemy", "alembic", "click"}
EXTRAS = (
    "flower",
    "hf",
    "ray",
    "optimise",
    "tensorboard",
    "mlflow",
    "privacy",
    "llm",
    "timm",
)  # of those who run edgesim


def test_what_is_imported_is_a_dependency_and_nothing_else() -> None:
    names = {name.partition(".")[0] for _, node in walk() for name in imported(node)}
    known = packages_distributions()
    others = names - set(sys.stdlib_module_names) - {"edgesim"}
    used = {known.get(name, [name])[0].lower().replace("_", "-") for name in others}
    extras = {Requirement(each).name for name in EXTRAS for each in PROJECT["optional-dependencies"][name]}
    assert used == (set(NAMED) - NOT_IMPORTED) | (extras - NOT_IMPORTED) | {"pytest"}  # which loads a plug-in of ours
