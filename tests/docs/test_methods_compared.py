"""The page that compares all methods: none is missing, and its numbers are those that follow by hand."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

import edgesim
from edgesim.config.plugins import plugins_of
from edgesim.studies.study import load_study
from tests.calling import TINY
from tests.sizes import full

ROOT = Path(__file__).parents[2]
STUDY = ROOT / "scenarios" / "studies" / "all_methods.toml"
SCRIPT = runpy.run_path(str(ROOT / "docs" / "gen" / "methods_compared.py"))
PARAMS, HEAD = 6090, 1290  # of cnn_digits, and of its last layer
SMALL = """
name = "small"
base = "base.toml"
overrides = ["server.flops_per_s=1e12", "evaluation.personal=true", "stop.rounds=2"]
columns = ["accuracy", "personal_accuracy", "rounds", "active_j"]

[axes.method]
fedavg = ["method=fedavg"]
fedprox = ["method=fedprox"]
lg_fedavg = ["method=lg_fedavg"]
fedbuff = ["method=fedbuff", "protocol={ name = 'buffered', concurrency = 2, buffer = 2 }"]
dfedavg = ["method=dfedavg", "peers=ring", "selection=all"]

[axes]
seed = [1, 2]

[sizes]
full = { only = ["method=fedavg", "method=fedprox", "method=lg_fedavg", "method=fedbuff"] }
quick = {}
"""


def test_every_line_is_the_method_of_its_name() -> None:
    """Every cell is named after a method that edgesim ships; a method may join the comparison later."""
    study = load_study(STUDY)
    assert set(study.axes["method"]) <= set(plugins_of("method"))
    for cell in study.cells("full", ["seed=1"]):
        assert study.scenario(STUDY.parent, cell, "full").method.name == cell.labels["method"]


def test_every_note_is_on_a_method() -> None:
    assert set(SCRIPT["notes"]()) <= set(plugins_of("method"))


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a study of five methods, four of which have been run."""
    folder = tmp_path_factory.mktemp("small")
    (folder / "base.toml").write_text(TINY)
    (folder / "study.toml").write_text(SMALL)
    edgesim.study(folder / "study.toml", out=folder / "runs").run(size="full")
    return folder / "study.toml"


@full
def test_costs_by_hand(small: Path) -> None:
    """50 samples in batches of 16 are 4 steps: the proximal term takes 4 x 4 FLOPs a parameter; bytes are numbers."""
    planned = SCRIPT["costs"](load_study(small), small, "full")
    found = SCRIPT["found_of"](small, "full", small.parent / "runs").turns
    for turns in planned, found:
        assert turns["fedavg"].down_bytes == turns["fedavg"].up_bytes == 4 * PARAMS
        assert turns["lg_fedavg"].over(turns["fedavg"])[:3] == pytest.approx((1.0, HEAD / PARAMS, HEAD / PARAMS))
        assert turns["fedprox"].flops - turns["fedavg"].flops == pytest.approx(16 * PARAMS)
        assert turns["fedbuff"][:3] == pytest.approx(turns["fedavg"][:3])
    assert found["fedavg"].server_flops == pytest.approx(2 * PARAMS)
    assert found["lg_fedavg"].server_flops == pytest.approx(2 * HEAD)


@full
def test_the_page(small: Path, tmp_path: Path) -> None:
    """A line for each method in both tables, with a mean and deviation over seeds; - for one that was not run."""
    SCRIPT["main"](small, "quick", small.parent / "runs", tmp_path / "page.md")
    page = (tmp_path / "page.md").read_text()
    result = edgesim.study(small, out=small.parent / "runs").open("full")
    one, two = result.values().query("method == 'fedprox' and column == 'accuracy'")["value"]
    mean, deviation = (one + two) / 2, abs(one - two) / 2**0.5
    lines = {line.split("`")[1]: line for line in page.partition("## After")[0].splitlines() if line.startswith("| `")}
    results = {line.split("`")[1]: line for line in page.partition("## After")[2].splitlines() if line[:3] == "| `"}
    assert set(lines) == set(results) == {"fedavg", "fedprox", "lg_fedavg", "fedbuff", "dfedavg"}
    assert lines["lg_fedavg"].endswith("| 1 | 0.212 | 0.212 | 1 | 0.212 | 0.212 | 0.212 |")
    assert lines["dfedavg"].endswith("| - | - | - | - |")
    assert f"| {mean:.3f} ± {deviation:.3f} |" in results["fedprox"]
    assert results["dfedavg"].endswith("| - | - | - | - |")
    assert "- (2) `lg_fedavg`: The first layers stay" in page or "- (1) `lg_fedavg`: The first layers stay" in page


@full
def test_costs_alone_need_no_runs(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    SCRIPT["main"](small, "full", Path("none"), costs_only=True)
    rows = [line.split(",") for line in capsys.readouterr().out.splitlines()]
    assert rows[0] == ["method", "flops", "down_bytes", "up_bytes"]
    assert rows[1] == ["fedavg", "1", "1", "1"]
    assert rows[3] == ["lg_fedavg", "1", "0.2118", "0.2118"]


@full
def test_without_runs_of_fedavg_one_line(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--study", str(small), "--size", "full", "--runs", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["methods_compared.py", *given])
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(ROOT / "docs" / "gen" / "methods_compared.py"), run_name="__main__")
    assert end.value.code == 2
    assert capsys.readouterr().err == f"error: {tmp_path}: no cell has been run\n"
