"""A run that diverges says so, once: as it goes, in its manifest, and where runs are compared."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

import edgesim
from edgesim.engine.divergence import Divergence, middle
from tests.calling import TINY, call
from tests.conftest import digits_scenario


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Go to a folder with a scenario."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "scenario.toml").write_text(TINY)
    return tmp_path


@pytest.mark.parametrize(
    ("lr", "how"),
    {
        "1e20": "2 of 2 updates were not finite and left out",  # the model stays as it was
        "1e6": "the test loss was 4",  # ... e+05: updates are finite, and useless
    }.items(),
)
def test_it_is_said_once(here: Path, lr: str, how: str) -> None:
    words = ("run", "scenario.toml", "--out", "run", "--set", f"training.lr={lr}", "--set", "stop.rounds=10")
    code, out, err = call(*words)
    says = f"diverged in round 1: {how}"
    assert code == 0
    warned, *rest = err.splitlines()
    assert warned.startswith(f"warning: training.lr: training will diverge at {float(lr):g}")
    assert rest[0].startswith(says) and err.count("diverged") == 1
    assert f"\nrun: {says}" in out
    found = edgesim.open("run").manifest["diverged"]
    assert (found["round"], found["of"]) == (0, 2)
    assert call("table", "run").out.count(says) == 1


def test_a_run_that_learns_says_nothing(here: Path) -> None:
    code, out, err = call("run", "scenario.toml", "--out", "run")
    assert code == 0 and "diverged" not in out + err
    assert edgesim.open("run").manifest["diverged"] is None
    assert json.loads(call("run", "scenario.toml", "--out", "again", "--json").out)["diverged"] is None


@pytest.mark.parametrize(("lr", "by_loss"), [(1e20, False), (1e6, True)])
def test_peers_diverge_too(lr: float, by_loss: bool, tmp_path: Path) -> None:
    scenario = digits_scenario(
        method="dfedavg", peers="ring", selection="all", training={"batch": 16, "lr": lr}, stop={"rounds": 2}
    )
    found = edgesim.run(scenario, out=tmp_path / "run").manifest["diverged"]
    assert (found["round"], found["of"], found["loss"] is not None) == (0, 10, by_loss)
    assert (found["left_out"] > 5) == (not by_loss)


def test_of_devices_own_models_the_middle_loss_counts() -> None:
    """A few may be lost without harm."""
    assert middle([1.0, math.nan, math.nan]) == pytest.approx([math.nan], nan_ok=True)
    assert middle([3.0, math.inf, 1.0, 2.0]) == [3.0]
    assert middle([]) == []


def test_a_few_updates_that_are_left_out_are_no_divergence() -> None:
    """Half of four are not most of them; losses up to 100 are those of models that are sure and wrong."""
    watch = Divergence()
    assert watch.notice(0, {"left_out": 2.0}, 4, [2.3]) is None
    assert watch.notice(1, {}, 4, [100.0, 2.0]) is None
    found = {"round": 2, "left_out": 3, "of": 4, "loss": None}
    assert watch.notice(2, {"left_out": {0: 1.0, 3: 2.0}}, 4, []) == found == watch.found
    assert watch.notice(3, {"left_out": 4.0}, 4, [math.nan]) is None
    assert watch.found == found


@pytest.mark.parametrize("loss", [math.nan, math.inf, 100.1])
def test_a_loss_that_is_none_is_divergence(loss: float) -> None:
    watch = Divergence()
    watch.notice(0, {}, 0, [1.0, loss])
    assert watch.found is not None and watch.found["loss"] == pytest.approx(loss, nan_ok=True)


def test_the_table_and_the_report_of_a_study_name_runs_that_are_lost(here: Path) -> None:
    """One diverged. Another one gave up, as no device has the memory."""
    (here / "study.toml").write_text("""
name = "lost"
base = "scenario.toml"
columns = ["accuracy", "rounds@0.99"]
overrides = ["stop.rounds=2"]
[axes.case]
good = []
fast = ["training.lr=1e6"]
small = ["fleet.0.memory='1 B'", "fleet.1.memory='1 B'"]
""")
    assert call("study", "run", "study.toml", "--runs", "runs").code == 0
    diverged, gave_up = "1 of 3 runs diverged: case=fast", "1 of 3 runs gave up: case=small"
    table = call("study", "table", "study.toml", "--runs", "runs")
    assert table.err == f"{diverged}\n{gave_up}\n"
    [of_small] = [line for line in table.out.splitlines() if line.startswith("small")]
    assert "never, 0 of 1 runs" in of_small
    assert call("report", "study.toml", "--runs", "runs", "--out", "report.html").code == 0
    page = (here / "report.html").read_text()
    assert f"{diverged}." in page and f"{gave_up}." in page
