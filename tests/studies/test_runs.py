"""Studies of one name: none replaces the runs of another without a word."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

import edgesim
from edgesim.core.errors import ConfigError
from edgesim.reports.load import Run
from tests.calling import TINY, call
from tests.sizes import full

A, B = (Path(folder, "study.toml") for folder in "ab")
STUDY = """
name = "tiny"
base = "base.toml"
without = ["data"]
overrides = ["partition=sizes", "backend=null"]
columns = ["sim_time_s"]

[axes]
seed = [1, 2]
"""


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write two studies of one name, whose cells have the same names and other links, and go above them."""
    monkeypatch.chdir(tmp_path)
    for name, speed in {"a": "1 Mbit/s", "b": "2 Mbit/s"}.items():
        Path(name).mkdir()
        Path(name, "base.toml").write_text(TINY.replace("1 Mbit/s", speed))
        Path(name, "study.toml").write_text(STUDY)
    return tmp_path


def files(folder: str) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}


@full
def test_the_runs_of_another_study_of_that_name_are_kept(two: Path) -> None:
    assert call("study", "run", A).code == 0
    before = files("runs")
    for command in ("run", "plan"):
        code, out, err = call("study", command, B)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert err.startswith(f"error: runs/studies/study/quick: has the runs of {A}, which those of {B}")
    assert files("runs") == before
    assert call("study", "run", B, "--runs", "other").code == 0
    assert call("study", "run", A).err == "2 of 2 cells are done\n"
    shown = [call("study", "table", *words).out for words in ((A,), (B, "--runs", "other"))]
    assert shown[0] != shown[1]


@full
def test_a_study_that_changes_replaces_its_own_runs(two: Path) -> None:
    assert call("study", "run", A).code == 0
    Path("a/base.toml").write_text(TINY.replace("1 Mbit/s", "3 Mbit/s"))
    assert call("study", "run", two / "a" / "study.toml").err.startswith("0 of 2 cells are done")


def test_a_project_may_move(two: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert call("study", "run", A).code == 0
    shutil.copytree(two, two / "elsewhere", ignore=shutil.ignore_patterns("elsewhere"))
    monkeypatch.chdir(two / "elsewhere")
    assert call("study", "run", A).err == "2 of 2 cells are done\n"
    Path("a").rename("c")
    code, _, err = call("study", "run", Path("c", A.name))
    assert code == 2 and err.endswith("If the study has moved, remove runs/studies/study/quick/.study\n")
    Path("runs/studies/study/quick/.study").unlink()
    assert call("study", "run", Path("c", A.name)).err == "2 of 2 cells are done\n"


def test_runs_that_have_no_mark_yet_go_on(two: Path) -> None:
    assert call("study", "run", A).code == 0
    Path("runs/studies/study/quick/.study").unlink()
    assert call("study", "run", A).err == "2 of 2 cells are done\n"


def test_studies_in_python_are_told_apart_too(two: Path) -> None:
    assert call("study", "run", A, "--runs", "mine").code == 0
    before = files("mine")
    said: list[Run] = []
    for study in (
        edgesim.study(B, out="mine"),
        edgesim.study("b/base.toml", {"seed": [1, 2]}, out="mine"),
    ):
        with pytest.raises(ConfigError, match=f"^mine: has the runs of {A}"):
            study.run(on_cell=lambda cell, run: said.append(run))
    assert said == [] and files("mine") == before


def test_a_search_keeps_the_trials_of_another(two: Path) -> None:
    pytest.importorskip("optuna")
    search = '\n[search]\nminimise = ["sim_time_s"]\nspace = { "network.up" = { low = 1e6, high = 2e6 } }\n'
    for name in "ab":
        Path(name, "study.toml").write_text(STUDY.replace("[1, 2]", "[1]") + search)
    words = ("study", "optimise", A, "--trials", "2")
    assert call(*words).code == 0
    before = files("runs")
    code, _, err = call("study", "optimise", B, "--trials", "2")
    assert (code, err.count("\n")) == (2, 1) and f"has the runs of {A}" in err
    assert files("runs") == before


@full
def test_one_option_names_the_folder_of_runs_in_all_commands(two: Path) -> None:
    """What `study run` writes into `--runs`, every other command reads from `--runs`; `--out` is a result alone."""
    where, chosen = ("--runs", "mine"), ("--column", "sim_time_s")
    sides = ("--between", "selection.count=1", "--and", "selection.count=2", "--per", "energy_j")
    A.write_text(STUDY.replace("seed =", '"selection.count" = [1, 2]\nseed ='))
    for words in (
        ("run", A, *where),
        ("plan", A, *where),
        ("table", A, *where),
        ("compare", A, *where, "--baseline", "selection.count=1"),
        ("front", A, *where, *chosen, "--column", "energy_j"),
        ("cheapest", A, *where, "--by", "energy_j", "--reach", "0.8", "--within", "1 h"),
        ("theta", A, *where),
        ("sensitivity", A, *where, *chosen),
        ("break-even", A, *where, *chosen, *sides),
        ("plot", A, *where, "--kind", "energy", "--out", "energy.svg"),
    ):
        done = call("study", *words)
        assert done.code == 0, (words, done.err)
        if words[0] != "plot":  # whose --out is the picture
            refused = call("study", *words, "--out", "mine")
            assert refused.code == 2 and re.match(r"error: No such option:? '?--out\b", refused.err), refused.err
    assert call("report", A, *where, "--out", "report.html").code == 0
    assert call("export", A, *where, "--to", "csv", "--out", "tables").code == 0
    assert f"edgesim study run {A} --size quick --runs mine" in Path("report.html").read_text()
