"""The scenarios that come with edgesim: each is valid and runs, and running one again gives the same tables."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

import edgesim
from edgesim.core.errors import ConfigError
from tests.calling import call
from tests.sizes import thinned

FOLDER = Path(__file__).parents[2] / "scenarios"
FILES = sorted(FOLDER.glob("*.toml"))
TRAINED = [path for path in FILES if "data" in tomllib.loads(path.read_text(encoding="utf-8"))]  # others only time
BY_FEW_NAMES = pytest.mark.parametrize(
    "path",
    thinned(
        FILES,
        {path for path in FILES[::3] if path.stem not in ("lora_text", "markov_next_letter", "phones_and_boards")},
    ),
    ids=lambda path: path.stem,
)


def skip_without_data(err: str) -> None:
    """Skip a test whose data set is nowhere on this machine, saying where it would come from."""
    if err.startswith("error: data.name: ") and " not found as " in err:
        pytest.skip(err.removeprefix("error: ").strip())


def small(path: Path) -> list[str]:
    """Return the options that make a scenario train only briefly: two rounds, 20 samples a device, some to spare."""
    scenario = edgesim.load(path)
    devices = sum(block.count for block in scenario.fleet)
    changes = ["stop={rounds=2}", "backend=serial"]
    if "samples_per_device" in scenario.partition.args:
        changes.append("partition.samples_per_device=20")
        if "train_limit" in scenario.data.args:  # small tables have none
            changes += [f"data.train_limit={25 * devices}", "data.test_limit=100"]
    if hasattr(scenario.method.value, "public_samples"):
        changes.append("method.public_samples=20")
    return [word for change in changes for word in ("--set", change)]


def test_there_are_scenarios() -> None:
    assert {"quickstart", "fedavg_fashion", "fedpmt_cifar10"} <= {path.stem for path in FILES}


@BY_FEW_NAMES
def test_a_scenario_is_valid(path: Path) -> None:
    code, out, err = call("validate", path)
    skip_without_data(err)
    assert (code, out, err) == (0, f"{path}: ok\n", "")


@pytest.mark.parametrize(
    "path", thinned(TRAINED, [FOLDER / "quickstart.toml", FOLDER / "dadpfl_waiting.toml"]), ids=lambda path: path.stem
)
def test_a_scenario_trains(path: Path, tmp_path: Path) -> None:
    code, _, err = call("run", path, "--quiet", "--out", tmp_path / "run", *small(path))
    skip_without_data(err)
    assert (code, err) == (0, "")
    run, objective = edgesim.open(tmp_path / "run"), edgesim.load(path).objective.value
    assert run.manifest["status"] == "finished"
    for each in run.views:
        assert len(each.rounds) == 2
        accuracy = each.evals["accuracy"]
        known = accuracy.between(0, 1).all() if "accuracy" in objective.metrics else accuracy.isna().all()
        assert known and each.saved_weights == ["best", "final"]


@BY_FEW_NAMES
def test_a_scenario_runs_without_its_data(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Times and energies need no training, unless the method plans from its results; so this holds on every machine."""
    monkeypatch.chdir(FOLDER)
    table: dict[str, Any] = tomllib.loads(path.read_text())
    table.pop("data", None)
    untrained = {
        "partition": {"name": "sizes", "samples_per_device": 50},
        "backend": "null",
        "stop": {"rounds": 2},
    }
    if edgesim.load(path).method.value.needs_training:
        with pytest.raises(
            ConfigError, match=r"^backend\.name: \w+ plans from training results, which null does not have"
        ):
            edgesim.run({**table, **untrained}, out=tmp_path / "run")
        return
    run = edgesim.run({**table, **untrained}, out=tmp_path / "run")
    assert (run.manifest["status"], run.saved_weights) == ("finished", [])
    for each in run.views:
        assert len(each.rounds) == 2
        assert (each.jobs["flops"] > 0).all() and (each.rounds["energy_j"] > 0).all()


def test_fashion_mnist_says_which_package_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EDGESIM_DATA", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("edgesim.learning.data.source.SYSTEM", tmp_path)
    with pytest.raises(pytest.skip.Exception, match=r"install the Debian package dataset-fashion-mnist$"):
        test_a_scenario_is_valid(FOLDER / "fedavg_fashion.toml")


def test_the_quickstart_again_is_identical_and_another_seed_is_not(tmp_path: Path) -> None:
    folders = {"first": 1, "again": 1, "other": 2}
    for folder, seed in folders.items():
        out = tmp_path / folder
        words = ["--quiet", "--fresh", "--out", out, "--set", "stop.rounds=3", "--set", f"seed={seed}"]
        assert call("run", FOLDER / "quickstart.toml", *words) == (0, f"{out}\n", "")
    assert call("diff", tmp_path / "first", tmp_path / "again") == (0, "identical\n", "")
    code, out, err = call("diff", tmp_path / "first", tmp_path / "other")
    assert (code, err) == (1, "")
    assert all(word in out for word in ("jobs", "rounds", "evals", "devices", "weights final", "conv1.weight"))
