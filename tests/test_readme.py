"""The README tells the truth: its scenario loads, its method trains, its commands exist."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

import edgesim
from edgesim.__main__ import command_line
from edgesim.catalogue import parts_of
from tests.conftest import digits_scenario

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def block(language: str) -> str:
    """Return the first code block of a language."""
    found = re.search(rf"```{language}\n(.*?)```", README, re.DOTALL)
    assert found is not None
    return found[1]


def test_the_scenario_is_the_quickstart():
    """The lines explained are those of the quickstart, with one of its fleet blocks."""
    shown, shipped = tomllib.loads(block("toml")), tomllib.loads((ROOT / "scenarios/quickstart.toml").read_text())
    edgesim.load(shown)
    assert shown.pop("fleet") == shipped.pop("fleet")[:1]
    shipped.pop("name")
    assert shown == shipped


@pytest.mark.parametrize("place", [1, 2, 3, 4, 5])
def test_the_other_scenario_lines_work(place):
    """Laid over the quickstart, the further examples run, without training."""
    blocks = re.findall(r"```toml\n(.*?)```", README, re.DOTALL)
    shipped = tomllib.loads((ROOT / "scenarios/quickstart.toml").read_text())
    timed = {"backend": {"name": "null"}, "stop": {"rounds": 2}}
    assert edgesim.run({**shipped, **tomllib.loads(blocks[place]), **timed}).manifest["status"] == "finished"


@pytest.fixture
def readme_method(tmp_path, monkeypatch):
    """Make the README's method importable."""
    (tmp_path / "readme_method.py").write_text(block("python"))
    monkeypatch.syspath_prepend(tmp_path)
    yield "readme_method:FedProx"
    sys.modules.pop("readme_method", None)


def test_the_method_trains(readme_method):
    """The README's FedProx with mu = 0 is FedAvg; with mu > 0 it is not; its extra work has its price."""
    runs = {
        name: edgesim.run(digits_scenario(method=method, stop={"rounds": 2}))
        for name, method in {
            "fedavg": "fedavg",
            "zero": {"name": readme_method, "mu": 0.0},
            "one": {"name": readme_method, "mu": 1.0},
        }.items()
    }
    weights = {name: run.weights()["conv1.weight"] for name, run in runs.items()}
    assert np.array_equal(weights["zero"], weights["fedavg"])
    assert not np.array_equal(weights["one"], weights["fedavg"])
    extra = runs["zero"].jobs["flops"].to_numpy() - runs["fedavg"].jobs["flops"].to_numpy()
    steps = extra / (4 * 6090)  # cnn_digits has 6,090 parameters
    assert (steps == np.round(steps)).all()
    assert (steps > 0).all()


def test_every_command_is_in_the_table():
    """The table of commands and the commands are the same."""
    named = set(re.findall(r"^\| `edgesim (\w+)", README, re.MULTILINE))
    cli = command_line()
    known = {c.name or c.callback.__name__ for c in cli.registered_commands} | {g.name for g in cli.registered_groups}
    assert named == known


def test_every_method_is_in_the_table():
    """The table of methods and the methods are the same, and each names its file."""
    rows = dict(re.findall(r"^\| `(\w+)` \|.*\| `(edgesim/methods/\w+\.py)` \|$", README, re.MULTILINE))
    assert set(rows) == set(parts_of("method"))
    assert all((ROOT / path).is_file() for path in rows.values())
