"""Ctrl-C and errors in the middle of a run: what was finished is kept whole, what was not leaves no trace."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import edgesim
from edgesim.records import writer
from edgesim.records.schema import TABLES
from edgesim.reports.load import Run
from tests.calling import call, names
from tests.sizes import full

BREAKS = "method='tests.outside.methods:Breaks'"


def check_rounds(run: Run, rounds: int) -> None:
    """All tables must tell of the same rounds; two devices of the scenario take part in each."""
    assert run.manifest["rounds"] == rounds
    assert run.rounds["round"].tolist() == run.evals["round"].tolist() == list(range(rounds))
    assert np.bincount(run.jobs["round"]).tolist() == [2] * rounds
    assert run.jobs["end_s"].max() == run.rounds["now_s"].iloc[-1]
    assert all(len(run.table(table)) >= 0 for table in TABLES)


@full
@pytest.mark.parametrize("backend", [[], ["--workers", "2"]], ids=["serial", "workers"])
@pytest.mark.kills
@pytest.mark.workers
@pytest.mark.process
def test_an_interrupted_run_keeps_its_finished_rounds(here: Path, backend: list[str]) -> None:
    words = ["run", "scenario.toml", "--out", "run", "--set", "stop.rounds=200", *backend]
    # A session of its own, so that the signal reaches all of its processes as Ctrl-C in a terminal does.
    process = subprocess.Popen(
        [sys.executable, "-m", "edgesim", *words],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    assert process.stderr is not None
    assert process.stderr.readline().startswith("round 20/200 ")
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)  # returns when no process holds the pipes any more
    assert process.returncode == 130
    assert "run folder: run" in out
    *progress, last = err.splitlines()
    assert all(line.startswith("round ") for line in progress)
    run = edgesim.open("run")
    rounds = run.manifest["rounds"]
    assert last == f"interrupted after {rounds} rounds; the tables end there"
    assert 20 <= rounds < 200
    assert run.manifest["status"] == "interrupted"
    check_rounds(run, rounds)
    assert run.saved_weights == ["best", "final"]
    assert names(here) == ["run", "scenario.toml"]


@pytest.mark.parametrize("backend", [[], ["--workers", "2"]], ids=["serial", "workers"])
@full
@pytest.mark.kills
@pytest.mark.workers
@pytest.mark.process
def test_a_run_in_the_background_is_not_interrupted(here: Path, backend: list[str]) -> None:
    """Who starts it with Ctrl-C ignored, as a shell does after `&`, wants it to go on."""
    words = ["run", "scenario.toml", "--out", "run", "--set", "stop.rounds=20", *backend]
    process = subprocess.Popen(
        [sys.executable, "-m", "edgesim", *words],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    )  # fmt: skip
    assert process.stderr is not None
    assert process.stderr.readline().startswith("round 2/20 ")
    os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 0
    check_rounds(edgesim.open("run"), 20)


def ctrl_c(*_: object, **__: object) -> None:
    """Stand in for a moment at which the user presses Ctrl-C."""
    signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize(
    "moment",
    [
        "edgesim.config.load.load_scenario",
        "edgesim.runs.simulate.assemble_all",
        "edgesim.runs.simulate.Simulation",
    ],
)
def test_an_interrupt_before_training_leaves_nothing(here: Path, monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    monkeypatch.setattr(moment, ctrl_c)
    code, out, err = call("run", "scenario.toml", "--out", "run", "--quiet")
    assert (code, out, err) == (130, "", "")
    assert names(here) == ["scenario.toml"]


@pytest.mark.parametrize(("presses", "code", "left"), [(1, 0, ["run", "scenario.toml"]), (2, 130, ["scenario.toml"])])
def test_the_second_interrupt_breaks_off_what_is_written(
    here: Path, monkeypatch: pytest.MonkeyPatch, presses: int, code: int, left: list[str]
) -> None:
    """The first is content with it: a run that has come to its end is finished."""
    really, pressed = writer.save, list[int]()

    def save(arrays: dict[str, np.ndarray]) -> bytes:
        while len(pressed) < presses:
            pressed.append(1)
            ctrl_c()
        return really(arrays)

    monkeypatch.setattr(writer, "save", save)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert call("run", "scenario.toml", "--out", "run", "--quiet").code == code
    finally:
        signal.signal(signal.SIGINT, before)
    assert names(here) == left
    if left[0] == "run":
        assert edgesim.open("run").manifest["status"] == "finished"


def test_an_interrupt_in_the_first_round_leaves_empty_tables(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgesim.learning.train.trainer.run_local_sgd", ctrl_c)
    code, _, err = call("run", "scenario.toml", "--out", "run", "--quiet")
    assert (code, err) == (130, "interrupted after 0 rounds; the tables end there\n")
    run = edgesim.open("run")
    assert run.manifest["status"] == "interrupted"
    assert [len(run.table(table)) for table in ("jobs", "rounds", "evals", "metrics")] == [0, 0, 0, 0]


def test_an_error_in_the_middle_of_a_run_is_shown_as_it_is(here: Path) -> None:
    """One line, then the frames of the code that raised it."""
    done = call("run", "scenario.toml", "--out", "run", "--quiet", "--set", "stop.rounds=5", "--set", BREAKS)
    first, *frames = done.err.splitlines()
    assert (done.code, done.out) == (2, "")
    assert first.startswith("error: ") and first.endswith(".aggregate() fails: Broken: the server broke in round 2")
    assert frames[-2].endswith("in aggregate") and "raise Broken(" in frames[-1]
    run = edgesim.open("run")
    assert run.manifest["status"] == "failed"
    check_rounds(run, 2)


@full
@pytest.mark.process
def test_an_error_in_the_middle_of_a_run_is_no_success(here: Path) -> None:
    words = ["run", "scenario.toml", "--out", "run", "--set", "method.at=0", "--set", BREAKS]
    root = str(Path(__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-m", "edgesim", *words],
        env={**os.environ, "PYTHONPATH": root},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    says = "tests.outside.methods:Breaks.aggregate() fails: Broken: the server broke in round 0"
    assert done.stderr.splitlines()[0] == f"error: {says}"
    assert done.stderr.count("Broken:") == 1
