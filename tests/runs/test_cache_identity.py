"""Cached results are never stale: after any change a run with shared answers equals one that can know nothing.

Every case is a first run, a change, and a second run that may use all that the first one has kept. It must be, bit for
bit, the run of a folder and a user's cache where nothing was ever kept.
"""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import edgesim
from edgesim.files import user_cache
from edgesim.files.loaded_code import Unidentified
from edgesim.runs.simulate import simulate
from tests.calling import call
from tests.execution.test_result_cache import weights_of
from tests.sizes import full, spread, thinned

NET = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self{arguments}):
        super().__init__()
        self.flat, self.fc1, self.fc2 = nn.Flatten(), nn.Linear(64, {width}), nn.Linear({width}, 10)

    def forward(self, x):
        return self.fc2(self.fc1(self.flat(x)))
"""
SCENARIO = """
seed = 3
data = { name = "digits", train_limit = 120, test_limit = 40 }
partition = "iid"
model = "mlr"
training = { batch = 20, lr = 0.1 }
network = { name = "fixed", up = "1 Mbit/s", down = "8 Mbit/s" }
energy = { name = "power", idle = "1 W", busy = "4 W" }
method = "fedavg"
server = { flops_per_s = "1 MFLOP/s", busy = "9 W" }
stop = { rounds = 3 }
[[fleet]]
count = 3
cpu = { flops_per_s = "1 MFLOP/s" }
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, with a scenario; modules that lie there can be imported and are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(user_cache.VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("scenario.toml").write_text(SCENARIO)
    yield tmp_path
    forget(tmp_path)


def forget(folder: Path) -> None:
    """Forget the modules of a folder, as a new process does."""
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(str(folder)):
            del sys.modules[name]
    importlib.invalidate_caches()


def net(width: int, arguments: str = "") -> str:
    """Return a module with a network of one hidden layer."""
    return textwrap.dedent(NET).format(width=width, arguments=arguments)


def check_not_stale(*words: str, change: Callable[[], Any], after: tuple[str, ...] | None = None) -> None:
    """Run, change, run again in the same folder, and compare with a run that can know nothing.

    `words`: overrides; `after`: those of the second run, if they are others. Raises AssertionError if a number differs.
    """
    here = Path.cwd()

    def run(out: str, given: tuple[str, ...]) -> None:
        forget(here)
        done = call("run", "scenario.toml", "--out", out, "--quiet", *(w for o in given for w in ("--set", o)))
        assert (done.code, done.err) == (0, "")

    run("first", words)
    change()
    second = words if after is None else after
    run("second", second)
    for cached in ".answers", "cache":
        shutil.rmtree(cached)
    run("alone", second)
    assert call("diff", "second", "alone").out == "identical\n"
    assert weights_of("second") == weights_of("alone")
    assert call("diff", "first", "second").out != "identical\n"  # or the change was none


# --- the network ----------------------------------------------------------------------------------------------------


@full
def test_a_network_of_a_block_of_the_fleet(folder: Path) -> None:
    Path("zoo.py").write_text(net(8))
    check_not_stale("fleet.0.model=zoo:Net", change=lambda: Path("zoo.py").write_text(net(9)))


@full
def test_other_networks_in_blocks(folder: Path) -> None:
    check_not_stale(change=lambda: None, after=("fleet.0.model={ name = 'mlp', hidden = [8] }",))


@pytest.mark.parametrize("key", spread(["model", "fleet.0.model"], 1))
def test_weights_to_start_from(folder: Path, key: str) -> None:
    simulate(edgesim.load("scenario.toml", ["stop.rounds=1"]), folder / "one")
    simulate(edgesim.load("scenario.toml", ["stop.rounds=2"]), folder / "two")

    def copy(name: str) -> None:
        shutil.copy(folder / name / "final.safetensors", "start.safetensors")

    copy("one")
    check_not_stale(f"{key}={{ name = 'mlr', init_from = 'start.safetensors' }}", change=lambda: copy("two"))


def test_a_helper_that_the_module_imports(folder: Path) -> None:
    """Inside a function, from a package that exports the class again."""
    Path("zoo").mkdir()
    Path("zoo/__init__.py").write_text("from zoo.net import Net\n")
    text = net(8).replace("def forward(self, x):", "def forward(self, x):\n        from sizes import SCALE")
    Path("zoo/net.py").write_text(text.replace("self.flat(x)", "SCALE * self.flat(x)"))
    Path("sizes.py").write_text("SCALE = 1.0\n")
    check_not_stale("model=zoo:Net", change=lambda: Path("sizes.py").write_text("SCALE = 2.0\n"))


@full
def test_a_class_that_a_package_exports_again(folder: Path) -> None:
    Path("zoo").mkdir()
    Path("zoo/__init__.py").write_text("from zoo.net import Net\n")
    Path("zoo/net.py").write_text(net(8))
    check_not_stale("model=zoo:Net", change=lambda: Path("zoo/net.py").write_text(net(9)))


@full
def test_an_installed_package_that_is_upgraded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = folder / "site-packages"
    monkeypatch.syspath_prepend(str(site))

    def install(version: str, width: int) -> None:
        from edgesim.files import code_walk

        shutil.rmtree(site, ignore_errors=True)
        (site / "widths").mkdir(parents=True)
        (site / "widths/__init__.py").write_text(f"WIDTH = {width}\n")
        info = site / f"widths-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: widths\nVersion: {version}\n")
        (info / "top_level.txt").write_text("widths\n")
        (info / "RECORD").write_text("widths/__init__.py,,\n")
        code_walk._distributions.cache_clear()  # of this process, which lives on as no user's does

    install("1.0", 8)
    Path("zoo.py").write_text(
        "from widths import WIDTH\n" + net(8).replace("64, 8", "64, WIDTH").replace("8, 10", "WIDTH, 10")
    )
    check_not_stale("model=zoo:Net", change=lambda: install("2.0", 9))


@pytest.mark.parametrize("kind", spread(["file", "folder"], 1))
def test_what_an_argument_names(folder: Path, kind: str) -> None:
    """A file or a folder beside the run, by a relative path: a class of a user's own opens what it likes."""
    read = "__import__('pathlib').Path(path) / 'widths.txt'" if kind == "folder" else "__import__('pathlib').Path(path)"
    text = net(8, ", path: str").replace(
        "nn.Linear(64, 8), nn.Linear(8, 10)", "nn.Linear(64, width), nn.Linear(width, 10)"
    )
    text = text.replace("super().__init__()", f"super().__init__()\n        width = int(({read}).read_text())")
    text = "import pathlib\n" + text.replace("__import__('pathlib')", "pathlib")
    Path("zoo.py").write_text(text)
    file = Path("sizes/widths.txt" if kind == "folder" else "widths.txt")
    file.parent.mkdir(exist_ok=True)
    file.write_text("8")
    named = "sizes" if kind == "folder" else "widths.txt"
    check_not_stale(f"model={{ name = 'zoo:Net', path = '{named}' }}", change=lambda: file.write_text("9"))


# --- what plans and prices follow from --------------------------------------------------------------------------------


CHOICE = """
from dataclasses import dataclass

import numpy as np

from edgesim.engine.selection.rules import Uniform

@dataclass(frozen=True)
class Few(Uniform):
    def choose(self, *given, **more):
        return super().choose(*given, **more)[:{count}]
"""


@pytest.mark.parametrize("method", thinned(["afd", "feddip"], ["feddip"]))
def test_plans_of_methods_that_look_at_results(folder: Path, method: str) -> None:
    """They follow from who takes part, and so from the code of the selection, and the content of what it reads."""
    trace = Path("speeds.csv")
    trace.write_text("time_s,speed\n0,1\n")
    model = "model={ name = 'mlp', hidden = [16] }"
    words = (model, f"method={method}", "fleet.0.slowdown={ name = 'replay', file = 'speeds.csv', repeat = false }")
    check_not_stale(*words, change=lambda: trace.write_text("time_s,speed\n0,0.5\n"))


@full
def test_the_plan_of_a_selection_of_ones_own(folder: Path) -> None:
    Path("choice.py").write_text(CHOICE.format(count=2))
    words = ("model={ name = 'mlp', hidden = [16] }", "method=afd", "selection={ name = 'choice:Few', count = 3 }")
    check_not_stale(*words, change=lambda: Path("choice.py").write_text(CHOICE.format(count=1)))


@pytest.mark.parametrize("method", spread(["krum", "fedmedian", "fedadam", "onebit_adam", "signsgd"], 1))
def test_the_server_s_flops_of_another_cost_model(folder: Path, method: str) -> None:
    as_large = "cost={ name = 'as', model = 'cnn_digits' }"
    words = (f"method={method}", "selection=all")
    check_not_stale(*words, change=lambda: None, after=(*words, as_large))


# --- code that changes while a process lives --------------------------------------------------------------------------


@full
def test_a_class_that_is_defined_again_in_a_notebook(folder: Path) -> None:
    """`edgesim.study` in a folder of its own: finished cells are run anew, and the table is that of the new class."""
    from types import ModuleType

    typed = ModuleType("typed_in")
    sys.modules["typed_in"] = typed

    def bests(width: int) -> list[float]:
        exec(net(width), vars(typed))
        base = edgesim.load("scenario.toml", ["model=typed_in:Net"])
        study = edgesim.study(base, axes={"seed": [1, 2]}, columns=["accuracy", "sim_time_s"], out="cells")
        return [float(value) for value in study.run().frame()[["accuracy", "sim_time_s"]].to_numpy().ravel()]

    try:
        first, second = bests(4), bests(40)
        shutil.rmtree("cells")
        shutil.rmtree("cache")
        assert bests(40) == second != first
        assert bests(40) == second
    finally:
        del sys.modules["typed_in"]


def test_a_file_that_changed_after_it_was_loaded(folder: Path) -> None:
    """The loaded code runs; nothing is read, nothing is kept, and a line says so. A new process finds nothing stale."""
    Path("zoo.py").write_text(net(8))
    forget(folder)
    importlib.import_module("zoo")
    Path("zoo.py").write_text(net(40))
    words = ("run", "scenario.toml", "--set", "model=zoo:Net", "--quiet", "--out")
    done = call(*words, "old")
    assert done.code == 0
    assert done.err == (
        f"warning: {folder}/zoo.py has changed since it was loaded: nothing is taken from earlier runs or kept for "
        "later ones\n"
    )
    assert done.err[len("warning: ") : -1] in edgesim.open("old").manifest["warnings"]
    assert not Path(".answers").exists() and not list(Path("cache").rglob("*.json"))
    forget(folder)
    assert call(*words, "new").err == ""
    assert edgesim.open("new").rounds["now_s"].iloc[-1] > (edgesim.open("old").rounds["now_s"].iloc[-1])


def test_a_module_without_a_file_is_told_by_all_that_its_class_reaches(folder: Path) -> None:
    base = """\
    SCALE = {scale}
    LOCK = __import__("threading").Lock()
    class Base:
        half = {half}
        def f(self, x=({default},)): return x
    def helper(x):
        return [y * SCALE for y in x]
    class Part(Base):
        names = {{"a", "b"}}
        def g(self):
            LOCK
            return helper(self.f())
    """
    plain = {"scale": "2", "half": "0.5", "default": "1"}
    texts = [base.format(**plain)]
    texts += [base.format(**{**plain, key: "3"}) for key in plain]
    texts.append(base.format(**plain).replace("y * SCALE", "y + SCALE"))
    digests = [typed_in(text) for text in texts]
    assert len(set(digests)) == len(texts)
    assert digests == [typed_in("# a comment\n" + textwrap.dedent(text)) for text in texts]


def typed_in(text: str) -> str:
    """Return the digest of a class `Part` that stands in no file."""
    from types import ModuleType

    from edgesim.files.code_walk import code_digest

    module = ModuleType("typed_in")
    exec(textwrap.dedent(text), vars(module))
    return code_digest([("typed_in", module.Part)])


def test_a_function_of_a_notebook_that_imports_when_it_runs(folder: Path) -> None:
    text = "class Part:\n  def f(self):\n    from sizes_of_late import SCALE\n    return SCALE"
    found = []
    for scale in 1, 2, 2:
        Path("sizes_of_late.py").write_text(f"SCALE = {scale}\n")
        forget(folder)
        found.append(typed_in(text))
    assert found[0] != found[1] == found[2]


def test_a_function_of_a_notebook_that_imports_by_a_name_it_works_out(folder: Path) -> None:
    with pytest.raises(Unidentified, match="imports modules by names that it works out"):
        typed_in("import importlib\nclass Part:\n  def f(self): return importlib.import_module('js' + 'on')")


def test_objects_count_by_their_state(folder: Path) -> None:
    """Also those of a user's class that is called as a lock is, arrays of objects, and numbers that NumPy lacks."""
    texts = [
        "class Event:\n  def __init__(self, x): self.x = x\nE = Event({})\nclass Part:\n  def f(self): return E",
        "import numpy as np\nA = np.array([{}, 'a'], dtype=object)\nclass Part:\n  def f(self): return A",
        "import torch\nT = torch.tensor([{}.0], dtype=torch.bfloat16)\nclass Part:\n  def f(self): return T",
        "def g(x): return x + {}\nclass Part:\n  f = property(g)",
        "class Part:\n  layers = [lambda x: x + {}]",
    ]
    for text in texts:
        assert typed_in(text.format(1)) == typed_in(text.format(1)) != typed_in(text.format(2)), text


def test_the_state_of_a_generator_cannot_be_told(folder: Path) -> None:
    with pytest.raises(Unidentified, match=r"the state of builtins\.generator cannot be told"):
        typed_in("NEXT = (n for n in range(3))\nclass Part:\n  def f(self): return next(NEXT)")


def test_a_file_that_changes_while_a_run_begins(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It was read, or not: nothing of the run is kept."""
    from edgesim.execution.result_cache import Answers
    from edgesim.runs.assembly import load_data

    trace = Path("speeds.csv")
    trace.write_text("time_s,speed\n0,1\n")
    slow = "fleet.0.slowdown={ name = 'replay', file = 'speeds.csv', repeat = false }"

    def load(scenario: Any) -> Any:
        trace.write_text("time_s,speed\n0,0.5\n")
        return load_data(scenario)

    simulate(edgesim.load("scenario.toml", [slow]), folder / "run", answers=Answers(folder), load=load)
    assert "a file that the scenario names changed while the run began" in capsys.readouterr().err
    assert not Path(".answers").exists()


SCRIPT = """
import edgesim, pathlib, sys
if __name__ == "__main__":
    base = edgesim.load("scenario.toml", ["model=zoo:Net"])
    study = edgesim.study(base, axes={"seed": [1, 2, 3, 4]}, columns=["sim_time_s"], out="cells")
    pathlib.Path("zoo.py").write_text(pathlib.Path("wide.py").read_text())
    print(*study.run(workers=int(sys.argv[1])).frame()["sim_time_s"])
"""


WORKERS = """
import edgesim, pathlib
if __name__ == "__main__":
    scenario = edgesim.load("scenario.toml", ["model=zoo:Net", "backend={ name = 'workers', workers = 2 }"])
    pathlib.Path("zoo.py").write_text(pathlib.Path("wide.py").read_text())
    edgesim.run(scenario)
"""


@full
@pytest.mark.process
@pytest.mark.parametrize("workers", thinned(["1", "2"], ["2"], ()))
def test_a_plug_in_that_is_edited_while_a_study_runs(folder: Path, workers: str) -> None:
    """Cells of the old code are not taken for those of the new one, nor is their cost profile."""
    Path("zoo.py").write_text(net(8))
    Path("wide.py").write_text(net(40))
    Path("edits.py").write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *sys.path])}
    for _ in range(2):
        done = subprocess.run([sys.executable, "edits.py", workers], env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    again = done.stdout
    for cached in "cells", "cache":
        shutil.rmtree(cached, ignore_errors=True)
    done = subprocess.run([sys.executable, "edits.py", workers], env=environment, capture_output=True, text=True)
    assert done.stdout == again


@full
@pytest.mark.workers
@pytest.mark.process
def test_workers_that_would_train_with_other_code(folder: Path) -> None:
    """The processes load a module from its file, which has changed since the run read it."""
    Path("zoo.py").write_text(net(8))
    Path("edits.py").write_text(WORKERS)
    Path("wide.py").write_text(net(8).replace("self.fc2(", "2 * self.fc2("))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *sys.path])}
    done = subprocess.run([sys.executable, "edits.py"], env=environment, capture_output=True, text=True)
    says = f"edgesim.core.errors.EdgesimError: {folder}/zoo.py: has changed since the run began; start the run again\n"
    assert done.returncode == 1 and says in done.stderr


# --- the machine ------------------------------------------------------------------------------------------------------


@full
@pytest.mark.process
def test_other_kernels(folder: Path) -> None:
    """A capability of the processor is chosen when torch is loaded, so each run is a process."""

    def jobs(out: str, capability: str) -> int:
        environment = {**os.environ, "ATEN_CPU_CAPABILITY": capability, "PYTHONPATH": os.pathsep.join(sys.path)}
        words = [sys.executable, "-m", "edgesim", "run", "scenario.toml", "--quiet", "--out", out]
        subprocess.run(words, env=environment, check=True, capture_output=True)
        return int(edgesim.open(out).manifest["known"]["jobs"])

    assert [jobs("first", "default"), jobs("second", "default"), jobs("third", "avx2")] == [9, 0, 9]


@pytest.mark.parametrize("name", ["MKL_CBWR", "ONEDNN_MAX_CPU_ISA", "OPENBLAS_CORETYPE"])
def test_settings_of_kernels(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    call("run", "scenario.toml", "--quiet", "--out", "first")
    monkeypatch.setenv(name, "another")
    call("run", "scenario.toml", "--quiet", "--out", "second")
    assert edgesim.open("second").manifest["known"]["jobs"] == 9


def test_fresh_runs_measure_their_networks_anew(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from edgesim.runs import network

    measured = []
    really = network.measured
    monkeypatch.setattr(network, "measured", lambda *given: measured.append(given[1]) or really(*given))
    for out, more in {"first": (), "second": (), "third": ("--fresh",)}.items():
        assert call("run", "scenario.toml", "--quiet", "--out", out, *more).code == 0
    assert measured == ["mlr", "mlr"]


def test_python_hears_that_nothing_is_kept(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from edgesim.execution.result_cache import Answers

    Path("zoo.py").write_text(net(8))
    scenario = edgesim.load("scenario.toml", ["model=zoo:Net"])
    Path("zoo.py").write_text(net(9))
    simulate(scenario, folder / "run", answers=Answers(folder))
    assert capsys.readouterr().err.startswith(f"warning: {folder}/zoo.py has changed since it was loaded: nothing is")
