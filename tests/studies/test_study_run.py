"""Running a study: bad cells are named before anything runs, several commands share the cells, time left is told."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgesim
from edgesim.core.errors import DataError
from edgesim.learning.data.sources.digits import Digits
from edgesim.records.lock import hold
from edgesim.runs.host_time import HostSpeed
from edgesim.studies.eta import HostTimes, StudyProgress
from edgesim.studies.plan import outlook
from edgesim.studies.runs import Planned, Step, plan, run_all
from edgesim.studies.study import StudyCell, load_study
from tests.calling import TINY, call, names
from tests.records.written import seal_again
from tests.sizes import full

STUDY = """
name = "tiny"
base = "base.toml"
columns = ["round_s"]

[axes.data]
digits = []
own = ["data={ name = 'npz', file = 'own.npz', normalise = 'none' }"]

[axes]
seed = [1, 2]
"""
OWN = ["data=own,seed=1", "data=own,seed=2"]
DIGITS = ["data=digits,seed=1", "data=digits,seed=2"]
MEMORY = r"(, memory [\d.]+ [MG]B)?"  # only Linux tells it


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Go to a folder with a study on two data sets, of which one is not there."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "base.toml").write_text(TINY)
    (tmp_path / "study.toml").write_text(STUDY)
    return tmp_path


def write_npz(path: Path, shade: float) -> None:
    """Write a data set of two classes and grey images."""
    labels = np.arange(40) % 2
    x = np.full((40, 8, 8, 1), shade, dtype=np.float32)
    np.savez(path, x_train=x, y_train=labels, x_test=x, y_test=labels)


def made(folder: str = "runs") -> list[str]:
    """Return the names of all that lies in the folder of runs."""
    return names(Path(folder)) if Path(folder).exists() else []


def planned(only: str = "data=digits") -> list[Planned]:
    """Return cells of the study in the current folder."""
    return plan(load_study(Path("study.toml")), Path("study.toml"), "quick", [only], Path("runs"))


# --- before anything is run -------------------------------------------------------------------------------------


def test_cells_without_data_are_named_before_any_is_run(here: Path) -> None:
    code, out, err = call("study", "run", "study.toml", "--runs", "runs")
    first, *lines, last = err.splitlines()
    assert (code, out, first, made()) == (2, "", "0 of 4 cells are done", [])
    assert [line.partition(": ")[0] for line in lines] == OWN
    assert all("own.npz" in line for line in lines)
    says = "error: 2 of 4 cells cannot be run, so none was; --keep-going runs the others; data=own,seed=1: "
    assert last.startswith(says)


@full
def test_the_others_are_run_if_that_is_wanted(here: Path) -> None:
    code, out, err = call("study", "run", "study.toml", "--runs", "runs", "--keep-going")
    assert (code, out, made()) == (1, "", DIGITS)
    *_, one, two, last = err.splitlines()
    assert [line.partition(": ")[0] for line in (one, two)] == OWN
    assert last == "2 of 4 cells cannot be run, 0 failed"
    write_npz(here / "own.npz", shade=0.5)
    code, _, err = call("study", "run", "study.toml", "--runs", "runs", "--keep-going")
    assert (code, err.splitlines()[0], made()) == (0, "2 of 4 cells are done", DIGITS + OWN)


@full
def test_what_was_run_stays_done_without_its_data(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of other data it is run again."""
    write_npz(here / "own.npz", shade=0.5)
    assert call("study", "run", "study.toml", "--runs", "runs").code == 0
    write_npz(here / "own.npz", shade=0.75)

    def missing(self: Digits) -> None:
        raise DataError("digits: not here any more")

    monkeypatch.setattr(Digits, "load", missing)
    assert [each.state for each in outlook(planned("seed=1"))] == ["done", "to run"]
    shutil.rmtree("runs/data=digits,seed=1")
    found = outlook(planned("seed=1"))
    assert [(each.state, each.fault) for each in found] == [("bad", "digits: not here any more"), ("to run", "")]


@full
def test_each_data_set_is_loaded_once(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded, load = [], Digits.load
    monkeypatch.setattr(Digits, "load", lambda self: loaded.append(self) or load(self))
    write_npz(here / "own.npz", shade=0.5)
    (here / "study.toml").write_text(STUDY.replace("[axes]", "[axes]\nmethod = ['fedavg', 'fedprox']"))
    found = outlook(planned("seed=1") + planned("seed=2"), costs=True)
    assert [each.state for each in found] == ["to run"] * 8
    assert len(loaded) == 1


def test_what_does_not_fit_is_found_before_any_cell_is_run(here: Path) -> None:
    """A part that breaks while it is built is named as well, and its error shown whole."""
    others = "ring = ['peers=ring']\nodd = [\"method='tests.outside.methods:Unready'\"]\n"
    (here / "study.toml").write_text(STUDY.replace("own = [", f"{others}own = ["))
    code, _, err = call("study", "run", "study.toml", "--only", "seed=1", "--runs", "runs")
    lines = err.splitlines()
    assert (code, made()) == (2, [])
    assert "data=ring,seed=1: peers: fedavg has a server, its devices exchange nothing among themselves" in lines
    says = "tests.outside.methods:Unready.init() fails: Broken: the start broke in round 0"
    assert f"data=odd,seed=1: {says}" in lines and '    raise Broken("the start", 0)' in lines
    assert lines[-1].startswith("error: 3 of 4 cells cannot be run, so none was; ")


def test_the_plan_of_a_study(here: Path) -> None:
    """Its disk is about what the run takes; of cells that cannot be run it says why."""
    assert call("study", "run", "study.toml", "--only", "data=digits,seed=1", "--runs", "runs").code == 0
    code, out, err = call("study", "plan", "study.toml", "--runs", "runs", "--json")
    assert (code, err.count("\n")) == (2, 1)
    assert err.startswith("error: 2 of 4 cells cannot be run; data=own,seed=1: ")
    cells = {row["cell"]: row for row in json.loads(out)["cells"]}
    assert [row["state"] for row in cells.values()] == ["done", "to run", "bad", "bad"]
    missing = cells["data=digits,seed=2"]
    disk_bytes = sum(path.stat().st_size for path in Path("runs/data=digits,seed=1").iterdir())
    assert missing["disk_bytes"] == pytest.approx(disk_bytes, rel=0.3)
    assert json.loads(out)["totals"] == {"host_s": missing["host_s"], "disk_bytes": missing["disk_bytes"]}
    assert 0 < missing["host_s"] < 60 and "own.npz" in cells["data=own,seed=1"]["fault"]
    shown = call("study", "plan", "study.toml", "--runs", "runs", "--only", "data=digits").out
    assert re.search(r"data=digits,seed=2 +to run ", shown) and "\nto run: " in shown
    assert made() == DIGITS[:1]


def test_the_plan_counts_what_cells_train_together_once(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two networks the second takes the time of simulating it, on a host that hardly trains."""
    monkeypatch.setattr("edgesim.studies.shared.Common.host_speed", lambda *_: HostSpeed(flops_per_s=1.0))
    (here / "study.toml").write_text(STUDY.replace("[axes]", '[axes]\n"network.latency" = [0, 1]'))
    out = call("study", "plan", "study.toml", "--only", "data=digits", "--runs", "runs", "--json").out
    host_s = {row["cell"]: row["host_s"] for row in json.loads(out)["cells"]}
    for seed in 1, 2:
        first, second = (host_s[f"data=digits,network.latency={latency},seed={seed}"] for latency in (0, 1))
        assert 0 < second < 1000 < 1e6 < first


def test_a_cell_trains_on_the_device_of_its_scenario(here: Path) -> None:
    """Workers become one process; all else of a backend stays."""
    serial = {"name": "serial", "device": "cuda:1", "compile": False}
    for given, kept in (
        ("{ name = 'workers', workers = 3, device = 'cuda:1' }", serial),
        ("{ name = 'serial', device = 'cuda:1' }", serial),
        ("{ name = 'cohort', size = 7 }", {"name": "cohort", "device": "cpu", "size": 7, "workers": 1}),
        ("'null'", {"name": "null"}),
    ):
        (here / "study.toml").write_text(STUDY.replace("columns", f'overrides = ["backend={given}"]\ncolumns'))
        assert planned()[0].scenario["backend"] == kept


# --- in the middle ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("workers", "keep_going"), [(1, ["--keep-going"]), pytest.param(2, [], marks=[full, pytest.mark.workers])]
)
def test_an_error_of_a_part_stops_no_other_cell(here: Path, workers: int, keep_going: list[str]) -> None:
    broken = "[\"method={ name = 'tests.outside.methods:Breaks', at = 0 }\"]"
    (here / "study.toml").write_text(STUDY.replace("digits = []", f"broken = {broken}\ndigits = []"))
    words = ("--only", "data=digits,seed=1", "--only", "data=broken", "--workers", workers, "--runs", "runs")
    code, _, err = call("study", "run", "study.toml", *words, *keep_going)
    assert (code, made()) == (1 if keep_going else 2, DIGITS[:1])
    says = "tests.outside.methods:Breaks.aggregate() fails: Broken: the server broke in round 0"
    first, second = (f"data=broken,seed={seed}: {says}" for seed in (1, 2))
    if keep_going:
        assert err.splitlines()[-3:] == [first, second, "0 of 3 cells cannot be run, 2 failed"]
    else:
        assert err.splitlines()[-1] in {f"error: 2 of 3 cells failed; {fault}" for fault in (first, second)}


def test_time_left_is_told_as_cells_end(here: Path) -> None:
    err = call("study", "run", "study.toml", "--only", "data=digits", "--runs", "runs").err
    none, first, second, last = err.splitlines()
    assert none == "0 of 2 cells are done"
    assert re.fullmatch(rf"running: data=digits,seed=1; 2 left{MEMORY}", first)
    start = rf"1 of 2: data=digits,seed=1; running: data=digits,seed=2; 1 left, about [\d.]+ m?s{MEMORY}"
    assert re.fullmatch(start, second) and last == "2 of 2: data=digits,seed=2"
    shutil.rmtree("runs/data=digits,seed=2")
    again = call("study", "run", "study.toml", "--only", "data=digits", "--runs", "runs").err.splitlines()
    assert re.fullmatch(
        rf"running: data=digits,seed=2; 1 left, about [\d.]+ m?s{MEMORY}", again[1]
    )  # from the run before


def test_time_left_is_that_of_other_seeds_or_of_all(tmp_path: Path) -> None:
    """Fast cells took 2 and 4 s, a slow one 18 s; of the third kind nothing is known but the mean of all, 8 s."""

    def cell(kind: str, seed: int, host_s: float | None = None, learning: str = "", jobs: int = 0) -> Planned:
        folder = tmp_path / f"{kind}{seed}"
        if host_s is not None:
            shutil.copytree(done.folder, folder)
            manifest = json.loads((folder / "manifest.json").read_text())
            known = {**manifest["known"], "jobs": jobs}
            (folder / "manifest.json").write_text(json.dumps({**manifest, "host_s": host_s, "known": known}))
            seal_again(folder)
        return Planned(StudyCell({"kind": kind, "seed": str(seed)}, ()), folder, {}, {}, learning)

    done = edgesim.run({**edgesim.load(tmp_path / scenario(tmp_path)).canonical(), "backend": "null"})
    times = HostTimes([cell("fast", 1, 2.0), cell("fast", 2, 4.0), cell("slow", 1, 18.0)])
    fast, slow, new = cell("fast", 3), cell("slow", 3), cell("new", 3)
    assert HostTimes().left_s([fast], 1) is None
    assert [times.left_s([each], 1) for each in (fast, slow, new)] == [3.0, 18.0, 8.0]
    assert times.left_s([fast, slow, new], 1) == 29.0
    assert times.left_s([fast, fast, fast, fast], 2) == 6.0
    assert times.left_s([fast, slow], 2) == 18.0  # not less than the longest
    assert times.left_s([fast, slow], 1, {slow.folder: 5.0}) == 3.0 + 13.0
    assert times.left_s([fast, slow], 1, {fast.folder: 9.0}) == 18.0  # it may end at any moment
    newer = cell("newer", 1)
    assert times.left_s([new, newer], 1, {new.folder: 7.0}) == 1.0 + 8.0
    assert times.left_s([new, newer], 1, {new.folder: 16.0}) == 10.0  # the mean of 2, 4, 18 and 16
    trained = cell("one network", 1, 30.0, "a", jobs=9)
    assert HostTimes([trained]).left_s([cell("x", 1, learning="a"), cell("y", 1, learning="b")], 1) == 30.0
    answered = cell("other network", 1, 0.5, "a")
    more = [cell(f"{network}", 1, learning=learning) for learning in "ab" for network in range(3)]
    assert HostTimes([trained, answered]).left_s(more, 1) == 3 * 0.5 + 30.0 + 2 * 0.5


def test_a_step_says_time_and_memory_that_are_left(tmp_path: Path) -> None:
    """Runs of 20 s, two at a time: when one of them ends the other has run for as long."""
    done = edgesim.run({**edgesim.load(tmp_path / scenario(tmp_path)).canonical(), "backend": "null"})
    manifest = json.loads((done.folder / "manifest.json").read_text())
    (done.folder / "manifest.json").write_text(json.dumps({**manifest, "host_s": 20.0}))
    seal_again(done.folder)
    first, *others = (
        Planned(StudyCell({"seed": seed}, ()), folder, {}, {}, "")
        for seed, folder in (("1", done.folder), ("2", tmp_path / "2"), ("3", tmp_path / "3"), ("4", tmp_path / "4"))
    )
    clock = iter([0.0, 20.0])
    progress = StudyProgress([first, *others], [], 2, lambda: next(clock), lambda: 2_500_000_000)
    progress.take(Step(None, "", False, [first, others[0]]))
    said = progress.take(Step(first, "", False, others[:2]))
    assert said == "1 of 4: seed=1; running: seed=2, seed=3; 3 left, about 20 s, memory 2.5 GB"


def scenario(folder: Path) -> str:
    """Write a scenario and return its name."""
    (folder / "tiny.toml").write_text(TINY)
    return "tiny.toml"


# --- several at once --------------------------------------------------------------------------------------------


@pytest.mark.process
@full
def test_two_commands_share_the_cells(here: Path) -> None:
    """Each is run once, none fails, and both end when all are there. Both meet a cell that this process has."""
    (here / "study.toml").write_text(STUDY.replace("seed = [1, 2]", "seed = [1, 2, 3, 4]"))
    words = [sys.executable, "-m", "edgesim", "study", "run", "study.toml", "--only", "data=digits", "--runs", "runs"]
    with hold(planned()[0].folder):
        both = [subprocess.Popen(words, stderr=subprocess.PIPE, text=True) for _ in range(2)]
        for process in both:
            assert process.stderr
            assert any("seed=1: another process is at it" in line for line in process.stderr)
    told = [process.communicate(timeout=120)[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], told
    assert made() == [f"data=digits,seed={seed}" for seed in (1, 2, 3, 4)]


def holder(cell: Planned) -> subprocess.Popen[str]:
    """Return a process that is at a cell, until it is sent something: then it is gone without making it."""
    script = "import sys, pathlib; from edgesim.records.lock import hold\n"
    script += (
        "with hold(pathlib.Path(sys.argv[1])): print('held', flush=True); sys.stdin.read(1); import os; os._exit(1)"
    )
    words = [sys.executable, "-c", script, str(cell.folder)]
    other = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert other.stdin and other.stdout and other.stdout.readline() == "held\n"
    return other


@pytest.mark.process
def test_a_cell_that_another_process_is_at_is_run_last(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has gone without making it, when it is looked at again."""
    first, _ = planned()
    other = holder(first)
    assert [each.state for each in outlook(planned())] == ["running", "to run"]
    simulate = edgesim.runs.simulate.simulate  # type: ignore[attr-defined]

    def ends_the_other(*given: Any, **named: Any) -> Any:
        """Run the second cell, and end the process that has the first."""
        if other.poll() is None:
            other.communicate("x")
        return simulate(*given, **named)

    monkeypatch.setattr("edgesim.runs.simulate.simulate", ends_the_other)
    code, _, err = call("study", "run", "study.toml", "--only", "data=digits", "--runs", "runs")
    assert code == 0 and made() == DIGITS
    _, _, busy, second, again, last = err.splitlines()
    assert busy.startswith("data=digits,seed=1: another process is at it, looked at again at the end; running: data=di")
    assert second.startswith("1 of 2: data=digits,seed=2; 1 left, about ")
    assert again.startswith("running: data=digits,seed=1; 1 left, about ") and last == "2 of 2: data=digits,seed=1"


@full
@pytest.mark.process
def test_what_another_process_trains_is_not_trained_beside_it(here: Path) -> None:
    """Under two networks a seed is trained once; of the first seed the other process has the first network."""
    study = STUDY.replace("[axes]", '[axes]\n"network.latency" = [0, 1]')
    (here / "study.toml").write_text(study)
    other = holder(planned()[0])
    ended = []
    for step in run_all(planned()):
        if step.ended:
            labels = step.ended.cell.labels
            ended.append((labels["network.latency"], labels["seed"], step.elsewhere))
        if len(ended) == 3 and other.poll() is None:
            other.communicate("x")
    first, rest = ("0", "1", True), [("0", "2", False), ("1", "2", False), ("0", "1", False), ("1", "1", False)]
    assert ended == [first, *rest]


# --- what is the user's -----------------------------------------------------------------------------------------


@full
def test_files_that_no_run_wrote_stay_when_a_cell_is_run_again(here: Path) -> None:
    """Also those of a folder that a study was killed over as it was to be replaced."""
    study = ("study", "run", "study.toml", "--runs", "runs", "--only", "data=digits")
    assert call(*study).code == 0
    cell, killed = (here / "runs" / name for name in DIGITS)
    whole = sorted([*names(cell), "notes.txt"])
    for folder in cell, killed:
        (folder / "notes.txt").write_text("mine")
        (folder / "jobs.parquet").write_bytes(b"damaged")
    killed.rename(killed.with_name(f".{killed.name}.old"))
    assert call(*study).err.startswith("0 of 2 cells are done\n")
    assert call(*study).err == "2 of 2 cells are done\n"
    for folder in cell, killed:
        assert (folder / "notes.txt").read_text() == "mine" and names(folder) == whole
    assert made() == DIGITS
