"""Runs and studies that were cut off, on the command line, and checkpoint files that do not fit."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import edgesim
from edgesim.core.errors import ConfigError
from edgesim.execution.checkpoint import Checkpoint, Saved
from edgesim.files.atomic import growing_file
from edgesim.learning.train.trainer import Trainer
from edgesim.runs.simulate import simulate
from tests.calling import call, names
from tests.sizes import full

FILE = ".run.checkpoint"
RUN = ("run", "scenario.toml", "--out", "run", "--set", "stop.rounds=6", "--quiet")
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


@pytest.mark.kills
@pytest.mark.process
@full
def test_a_killed_run_goes_on(here: Path) -> None:
    """After SIGKILL the same command ends with the tables and weights of a run that was left alone."""
    words = ["run", "scenario.toml", "--set", "stop.rounds=30", "--out", "run"]
    process = subprocess.Popen([sys.executable, "-m", "edgesim", *words, *ALWAYS], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert process.stderr.readline().startswith("round ")
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=60)
    assert FILE in names(here)
    assert edgesim.open("run").manifest["status"] == "cut off"
    says = "error: run: already exists, a run that is cut off; --overwrite replaces it"
    assert call(*words) == (2, "", f"{says}, --checkpoint goes on from {FILE}\n")
    code, _, err = call(*words, "--quiet", "--checkpoint", "10 min")
    assert (code, err) == (0, "")
    assert names(here) == ["run", "scenario.toml"]
    call(*words[:-1], "alone", "--quiet", "--fresh")
    assert call("diff", "run", "alone").out == "identical\n"


def test_nothing_is_trained_twice(here: Path, training: list[int]) -> None:
    """Two devices of the scenario train in a round; Ctrl-C in round 4 leaves three, in a folder and in a checkpoint."""
    training[1] = 7
    code, _, err = call(*RUN, *ALWAYS)
    assert (code, err) == (130, "interrupted after 3 rounds; the tables end there; the same command goes on\n")
    saved = Checkpoint(Path(FILE), 1.0, {}).load()
    assert saved is not None
    before_s = saved.host_s
    assert names(here) == [FILE, "run", "scenario.toml"]
    training[0] = 0
    code, _, err = call(*RUN[:-1], *ALWAYS)
    assert code == 0
    assert err.splitlines()[0] == "goes on after round 3"  # its score is known, though it came after what was saved
    assert [line.split()[1] for line in err.splitlines()[1:]] == ["4/6", "5/6", "6/6"]
    assert training[0] == 6
    assert edgesim.open("run").manifest["host_s"] > before_s > 0
    assert names(here) == ["run", "scenario.toml"]
    assert call(*RUN, *ALWAYS).err == ("error: run: already exists, a run that is finished; --overwrite replaces it\n")


def test_the_base_is_charged_once_although_the_run_was_cut_off(here: Path, training: list[int]) -> None:
    """1,450 numbers train and 40 are frozen. A device downloads both first, and later the 1,450 alone."""
    words = [*RUN, "--set", "model=tests.plugins.own_networks:HeadOnly", "--set", "encoding.base=once"]
    call(*words, "--out", "alone")
    training[:] = [0, 7]
    assert call(*words, *ALWAYS, "--fresh").code == 130
    assert call(*words, *ALWAYS).code == 0
    assert call("diff", "run", "alone").out == "identical\n"
    for _, own in edgesim.open("run").jobs.sort_values("sent_s").groupby("device"):
        assert own["down_bytes"].tolist() == [4 * 1490] + [4 * 1450] * (len(own) - 1)


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_a_run_that_stops_before_it_goes_on_changes_nothing(
    here: Path, training: list[int], monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    """Cut off while it repeats what it was told, it leaves folder and checkpoint as they were."""
    training[1] = 7
    call(*RUN, *ALWAYS)
    files = {path: path.read_bytes() for path in here.rglob("*") if path.is_file()}
    with monkeypatch.context() as patch:
        patch.setattr("edgesim.execution.memo.NewRounds.round_closed", raising(error))
        if error is KeyboardInterrupt:
            assert call(*RUN, *ALWAYS) == (130, "", "")
        else:
            with pytest.raises(error):
                call(*RUN, *ALWAYS)
    assert {path: path.read_bytes() for path in here.rglob("*") if path.is_file()} == files
    assert call(*RUN, *ALWAYS).code == 0


def raising(error: type[BaseException]) -> Any:
    def raise_it(*_: Any) -> None:
        raise error

    return raise_it


def test_it_is_saved_when_the_time_has_come(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An hour does not pass in six rounds; without a place to write to the run ends in one line."""
    saved = []
    monkeypatch.setattr(Checkpoint, "save", lambda self, what, method: saved.append(len(what.answers)))
    for hour in "1 h", "3600":
        assert call(*RUN, "--checkpoint", hour, "--out", f"hour {hour}").code == 0
    assert saved == []
    call(*RUN, *ALWAYS, "--out", "moment", "--fresh")
    assert saved == [1, 3, 5, 7, 9, 11]  # a merge, then a score and a merge, ...
    monkeypatch.undo()
    monkeypatch.chdir(here)
    growing_file(Path(FILE)).mkdir()
    code, _, err = call(*RUN, *ALWAYS, "--fresh")
    assert code == 2
    assert err.startswith(f"error: {FILE}: cannot be written: ")


def test_without_training_nothing_is_saved(here: Path) -> None:
    """A timing-only run takes no notice of the option, nor of what a run that trains has saved."""
    Path(FILE).write_bytes(b"of hours")
    assert call(*RUN, *ALWAYS, "--set", "backend='null'").code == 0
    assert Path(FILE).read_bytes() == b"of hours"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("soon", "'soon' is not a time; give a number in s or a string such as '26.5 s'"),
        ("-5", "must be above 0 s, got -5.0"),
        ("inf", "must be finite, got inf"),
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
    call(*RUN, *ALWAYS)
    kept = Path(FILE).read_bytes()
    for other, what in ("seed=2", "scenario"), ("data.test_limit=40", "scenario, data"):
        wrong = f"error: {FILE}: was saved with another {what}; remove it to begin anew\n"
        assert call(*RUN, *ALWAYS, "--set", other) == (2, "", wrong)
    assert Path(FILE).read_bytes() == kept
    assert edgesim.open("run").manifest["status"] == "interrupted"


@pytest.mark.parametrize("content", [b"", b"no pickle", b"PK\x03\x04 a torn archive", pickle.dumps([1])])
def test_a_damaged_file_is_named(here: Path, content: bytes) -> None:
    Path(FILE).write_bytes(content)
    code, _, err = call(*RUN, *ALWAYS)
    assert code == 2
    assert err.startswith(f"error: {FILE}: cannot be read; remove it to begin anew: ")
    assert Path(FILE).read_bytes() == content


def test_stamps_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By what the run was stamped with, and by torch's version; more in the file does not matter."""
    saved = Checkpoint(tmp_path / "file", 1.0, {"scenario": "a", "data": "d"})
    assert saved.load() is None and not saved.is_outdated()
    saved.save(Saved({}, {}, 2.5))
    assert names(tmp_path) == ["file"]
    assert not saved.is_outdated() and saved.load() == ({}, {}, 2.5)
    assert not Checkpoint(saved.file, 9.0, {"scenario": "a"}).is_outdated()
    other = Checkpoint(saved.file, 1.0, {"scenario": "b", "data": "d", "source": "s"})
    assert other.is_outdated()
    with pytest.raises(ConfigError, match="was saved with another scenario, source; remove it"):
        other.load()
    monkeypatch.setattr(torch, "__version__", "9.9")
    assert saved.is_outdated()
    saved.remove()
    saved.remove()
    assert names(tmp_path) == []


@pytest.mark.parametrize(("change", "trained"), [("network.latency=1", 4), ("training.lr=0.2", 12)])
def test_what_another_scenario_saved_is_used_where_it_fits(
    here: Path, training: list[int], change: str, trained: int
) -> None:
    """A stamp that says too little lets another scenario come: what is the same in both is not trained again."""
    checkpoint, words = Checkpoint(here / "file", 1e-9, {}), ["stop.rounds=6"]
    training[1] = 9
    simulate(edgesim.load("scenario.toml", words), here / "run", checkpoint=checkpoint)
    training[0] = 0
    other = edgesim.load("scenario.toml", [*words, change])
    simulate(other, here / "other", checkpoint=checkpoint)
    assert training[0] == trained
    simulate(other, here / "alone")
    assert call("diff", "other", "alone").out == "identical\n"


def test_a_study_goes_on_in_the_middle_of_a_cell(here: Path, training: list[int]) -> None:
    """A cell takes 10 jobs; cut off in the eighth round, the second cell goes on from its third."""
    Path("study.toml").write_text(STUDY)
    training[1] = 15
    words = ("study", "run", "study.toml", "--runs", "runs")
    assert call(*words, *ALWAYS).code == 130
    assert names(here / "runs") == [".method=fedprox.checkpoint", "method=fedavg"]
    training[0] = 0
    assert call(*words, *ALWAYS).code == 0
    assert training[0] == 6
    assert names(here / "runs") == ["method=fedavg", "method=fedprox"]
    call(*words[:-1], "alone", "--fresh")
    for cell in names(here / "runs"):
        assert call("diff", f"runs/{cell}", f"alone/{cell}").out == "identical\n"


def test_a_cell_that_has_changed_begins_anew(here: Path, training: list[int]) -> None:
    """A study makes what is outdated without asking, and trains the third round on; what cannot be read is named."""
    Path("study.toml").write_text(STUDY)
    training[1] = 5
    words = ("study", "run", "study.toml", "--runs", "runs", "--only", "method=fedavg")
    assert call(*words, *ALWAYS).code == 130
    Path("study.toml").write_text(STUDY.replace("stop.rounds=5", "stop.rounds=4"))
    training[0] = 0
    assert call(*words, *ALWAYS).code == 0
    assert training[0] == 4
    torn = here / "runs" / ".method=fedprox.checkpoint"
    torn.write_bytes(b"torn")
    code, _, err = call(*words[:-1], "method=fedprox", *ALWAYS)
    assert code == 2
    assert "runs/.method=fedprox.checkpoint: cannot be read; remove it to begin anew: " in err.splitlines()[-1]
    assert torn.read_bytes() == b"torn"
