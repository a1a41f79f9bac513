"""Runs and studies that were cut off, on the command line, and checkpoint files that do not fit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import edgesim
from edgesim.checkpoint import Checkpoint, Saved
from edgesim.errors import ConfigError, DataError
from edgesim.learning.trainer import Trainer
from edgesim.simulation import simulate
from tests.calling import call

FILE = ".run.checkpoint"
RUN = ("run", "scenario.toml", "--set", "stop.rounds=6", "--quiet")
ALWAYS = ("--checkpoint", "1 ns")
STUDY = """
name = "two methods"
base = "scenario.toml"
columns = ["best_accuracy"]
[axes.method]
fedavg = []
fedprox = ["method=fedprox"]
[sizes.quick]
overrides = ["stop.rounds=5"]
"""


@pytest.fixture
def training(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return how many jobs were trained and, if a number is set, after how many Ctrl-C is pressed."""
    count = [0, 0]
    really_run = Trainer.run

    def counted(self: Trainer, given: Any) -> Any:
        if count[1] and count[0] == count[1]:
            count[1] = 0
            signal.raise_signal(signal.SIGINT)
        count[0] += 1
        return really_run(self, given)

    monkeypatch.setattr(Trainer, "run", counted)
    return count


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_killed_run_goes_on(here: Path) -> None:
    """After SIGKILL the same command ends with the tables and weights of a run that was left alone."""
    words = ["run", "scenario.toml", "--set", "stop.rounds=60", "--out", "run"]
    process = subprocess.Popen([sys.executable, "-m", "edgesim", *words, *ALWAYS], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert process.stderr.readline().startswith("round ")
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=60)
    assert FILE in names(here) and "run" not in names(here)
    code, _, err = call(*words, "--quiet", "--checkpoint", "10 min")
    assert (code, err) == (0, f"goes on from {FILE}\n")
    assert names(here) == ["run", "scenario.toml"]
    call(*words[:-1], "alone", "--quiet")
    assert call("diff", "run", "alone").out == "identical\n"


def test_nothing_is_trained_twice(here: Path, training: list[int]) -> None:
    """Two devices of the scenario train in a round; Ctrl-C in round 4 leaves three rounds for a checkpoint."""
    training[1] = 7
    code, _, err = call(*RUN, *ALWAYS, "--out", "run")
    assert (code, err) == (130, "interrupted after 3 rounds; the tables end there\n")
    before_s = edgesim.open("run").manifest["host_s"]
    code, _, err = call(*RUN, *ALWAYS, "--out", "run")
    assert (code, err) == (2, "error: run: already exists; remove it or choose another run folder\n")
    Path("run").rename("cut_off")
    training[0] = 0
    assert call(*RUN, *ALWAYS, "--out", "run").code == 0
    assert training[0] == 6
    assert edgesim.open("run").manifest["host_s"] > before_s
    assert names(here) == ["cut_off", "run", "scenario.toml"]


def test_it_is_saved_when_the_time_has_come(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An hour does not pass in six rounds; without a place to write to the run ends in one line."""
    saved = []
    monkeypatch.setattr(Checkpoint, "save", lambda self, what: saved.append(len(what.told)))
    call(*RUN, "--checkpoint", "1 h", "--out", "hour")
    assert saved == []
    call(*RUN, *ALWAYS, "--out", "moment")
    assert saved == [2, 5, 8, 11, 14, 17]  # plan and merge, then a score, plan and merge, ...
    monkeypatch.undo()
    monkeypatch.chdir(here)
    Path(f"{FILE}.partial").mkdir()
    code, _, err = call(*RUN, *ALWAYS, "--out", "run")
    assert code == 2
    assert err.startswith(f"error: {FILE}: cannot be written: ")


def test_without_training_nothing_is_saved(here: Path) -> None:
    """A timing-only run takes no notice of the option."""
    assert call(*RUN, *ALWAYS, "--out", "run", "--set", "backend='null'").code == 0
    assert names(here) == ["run", "scenario.toml"]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("soon", "'soon' is not a time; give a number in s or a string such as '26.5 s'"),
        ("5", "'5' has no unit; give a number in s or a string such as '26.5 s'"),
        ("0 s", "must be above 0 s, got '0 s'"),
        ("3 J", "'3 J' is not a time; give a number in s or a string such as '26.5 s'"),
    ],
)
@pytest.mark.parametrize("command", [("run", "scenario.toml"), ("study", "run", "study.toml")], ids=["run", "study"])
def test_times_that_are_none(here: Path, command: tuple[str, ...], given: str, says: str) -> None:
    Path("study.toml").write_text(STUDY)
    assert call(*command, "--checkpoint", given) == (2, "", f"error: --checkpoint: {says}\n")


def test_another_scenario_does_not_go_on(here: Path, training: list[int]) -> None:
    """The file stays as it is, and is named with what to do."""
    training[1] = 5
    call(*RUN, *ALWAYS, "--out", "run")
    Path("run").rename("cut_off")
    kept = Path(FILE).read_bytes()
    code, _, err = call(*RUN, *ALWAYS, "--out", "run", "--set", "seed=2")
    assert code == 2
    assert err.splitlines()[-1] == f"error: {FILE}: was saved with another scenario; remove it to begin anew"
    assert Path(FILE).read_bytes() == kept
    assert "run" not in names(here)


@pytest.mark.parametrize("content", [b"", b"no pickle", b"PK\x03\x04 a torn archive"])
def test_a_damaged_file_is_named(here: Path, content: bytes) -> None:
    Path(FILE).write_bytes(content)
    code, _, err = call(*RUN, *ALWAYS, "--out", "run")
    assert code == 2
    assert err.splitlines()[-1].startswith(f"error: {FILE}: cannot be read; remove it to begin anew: ")
    assert Path(FILE).read_bytes() == content


def test_stamps_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By what the run was stamped with, and by torch's version; more in the file does not matter."""
    saved = Checkpoint(tmp_path / "file", 1.0, {"scenario": "a", "data": "d"})
    assert saved.load() is None and not saved.fits()
    saved.save(Saved([], {}, 2.5))
    assert names(tmp_path) == ["file"]
    assert saved.fits() and saved.load() == ([], {}, 2.5)
    assert Checkpoint(saved.file, 9.0, {"scenario": "a"}).fits()
    other = Checkpoint(saved.file, 1.0, {"scenario": "b", "data": "d", "source": "s"})
    assert not other.fits()
    with pytest.raises(ConfigError, match="was saved with another scenario, source; remove it"):
        other.load()
    monkeypatch.setattr(torch, "__version__", "9.9")
    assert not saved.fits()
    saved.remove()
    saved.remove()
    assert names(tmp_path) == []


def test_a_run_that_goes_another_way_is_noticed(here: Path, training: list[int]) -> None:
    """A stamp that says too little lets another scenario come; its first round ends at another time."""
    words = ["stop.rounds=6"]
    checkpoint = Checkpoint(here / "file", 1e-9, {})
    training[1] = 5
    simulate(edgesim.load("scenario.toml", words), here / "run", checkpoint=checkpoint)
    slower = edgesim.load("scenario.toml", [*words, "fleet.0.cpu.flops_per_s=1e6", "fleet.1.cpu.flops_per_s=1e6"])
    with pytest.raises(DataError, match=r"file: does not fit the run, which asks for merge at .* remove it to begin"):
        simulate(slower, here / "other", checkpoint=checkpoint)


def test_a_study_goes_on_in_the_middle_of_a_cell(here: Path, training: list[int]) -> None:
    """A cell takes 10 jobs; cut off in the eighth round, the second cell goes on from its third."""
    Path("study.toml").write_text(STUDY)
    training[1] = 15
    words = ("study", "run", "study.toml", "--out", "runs")
    assert call(*words, *ALWAYS).code == 130
    assert names(here / "runs") == [".method=fedprox.checkpoint", "method=fedavg"]
    training[0] = 0
    assert call(*words, *ALWAYS).code == 0
    assert training[0] == 6
    assert names(here / "runs") == ["method=fedavg", "method=fedprox"]
    call(*words[:-1], "alone")
    for cell in names(here / "runs"):
        assert call("diff", f"runs/{cell}", f"alone/{cell}").out == "identical\n"


def test_a_cell_that_has_changed_begins_anew(here: Path, training: list[int]) -> None:
    """So does one whose file is damaged: a study makes what is missing without asking."""
    Path("study.toml").write_text(STUDY)
    training[1] = 5
    words = ("study", "run", "study.toml", "--out", "runs", "--only", "method=fedavg")
    assert call(*words, *ALWAYS).code == 130
    Path("study.toml").write_text(STUDY.replace("stop.rounds=5", "stop.rounds=4"))
    training[0] = 0
    assert call(*words, *ALWAYS).code == 0
    assert training[0] == 8
    (here / "runs" / ".method=fedprox.checkpoint").write_bytes(b"torn")
    assert call(*words[:-1], "method=fedprox", *ALWAYS).code == 0
    assert training[0] == 16
    assert names(here / "runs") == ["method=fedavg", "method=fedprox"]
