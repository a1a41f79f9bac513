"""The live view: what it says of a run, in its own process and from another one, which does not disturb it."""

from __future__ import annotations

import io
import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

import edgesim
from edgesim.records.lock import hold
from edgesim.records.manifest import RUNNING
from edgesim.reports.load import open_run
from edgesim.runs.progress import Display, Glance, Limits, LiveView, curve_of, glance_of, line_of, panel_of
from edgesim.runs.simulate import simulate
from edgesim.studies.runs import growing_folder
from tests.calling import Done, call
from tests.cli.waiting import begun, waiting_run
from tests.conftest import simulate_null
from tests.sizes import full

FLEET = {"now_s": 60.0, "devices": 20, "busy": 3, "away": 2, "running": 3}
DONE = {"round": 10, "now_s": 60.0, "energy_j": 2500.0, "active_j": 400.0}
GLANCE = Glance("mine", "fedavg", RUNNING, Limits(rounds=40), DONE, FLEET, [0.1, 0.5, 0.4], host_s=30.0)


def drawn(glance: Glance, **options: Any) -> str:
    """Return the panel of a glance as a terminal shows it."""
    console = Console(file=io.StringIO(), force_terminal=True, width=100, color_system=None)
    console.print(panel_of(glance, **options))
    return str(console.file.getvalue())  # type: ignore[attr-defined]


# --- what it says -----------------------------------------------------------------------------------------------


def test_a_glance_on_one_line() -> None:
    """30 of 40 rounds are left: three times the 30 s of the host, and three times the 60 s simulated."""
    said = "round 10/40  accuracy 0.4000  1 min  2.5 kJ (400 J above idle)  3 busy, 15 idle, 2 away  "
    assert line_of(GLANCE) == said + "host time left 90 s, simulated 3 min"


def test_a_panel_says_fleet_jobs_accuracy_energy_and_what_is_left() -> None:
    lines = [" ".join(line.strip("│ ").split()) for line in drawn(GLANCE).splitlines()]
    assert "mine: fedavg" in lines[0] and "round 10/40 running 25%" in lines
    assert "accuracy 0.4000, best 0.5000 ▁▅▄" in lines
    assert "energy 2.5 kJ (400 J above idle)" in lines and "simulated 1 min" in lines
    assert "fleet 20 devices: 3 busy, 15 idle, 2 away" in lines
    assert "jobs 3 jobs at work 1 min into the run" in lines
    assert "left host time left 90 s, simulated 3 min" in lines


def test_a_run_that_says_little_is_shown_nevertheless() -> None:
    assert "round 0" in drawn(Glance("mine", "fedavg", RUNNING, Limits()))
    assert "▁" not in drawn(GLANCE, ascii_only=True) and "0.4000, best 0.5000" in drawn(GLANCE, ascii_only=True)
    assert line_of(Glance("mine", "fedavg", RUNNING, Limits(accuracy=0.9), DONE)).endswith("  until accuracy 0.9")


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        (Limits(sim_time=240.0), "host time left 90 s, simulated 3 min"),
        (Limits(energy=5000.0), "host time left 30 s, simulated 1 min"),
        (Limits(rounds=40, energy=5000.0), "host time left 30 s, by stop.energy, simulated 1 min"),
        (
            Limits(rounds=40, accuracy=0.9),
            "host time left at most 90 s, by stop.rounds, less if accuracy 0.9 comes first",
        ),
        (Limits(rounds=10), ""),
    ],
)
def test_what_is_left_is_by_the_nearest_limit(limits: Limits, said: str) -> None:
    line = line_of(Glance("mine", "fedavg", RUNNING, limits, DONE, {}, [], host_s=30.0))
    assert line.partition("idle)")[2].strip().startswith(said) and bool(said) == ("left" in line)


def test_a_curve_has_a_bar_for_each_value_or_forty_of_many() -> None:
    assert curve_of([0.0, 0.5, 1.0, float("nan")]) == "▁▅█?"
    assert len(curve_of([0.3] * 1000)) == 40 and curve_of([0.0] * 999 + [1.0])[-1] == "█"


# --- in the process of the run ----------------------------------------------------------------------------------


def viewed(terminal: bool, *rounds: dict[str, Any]) -> str:
    log, clock = io.StringIO(), SimpleNamespace(now_s=0.0)
    console = Console(file=log, force_terminal=terminal, width=100, color_system=None)
    view = LiveView(
        Glance("mine", "fedavg", RUNNING, Limits(rounds=4)), Display(console, lambda: clock.now_s), ["beware"]
    )
    for info in rounds:
        view.round_closed(info)
    view.close()
    view.close()
    return log.getvalue()


def closed(done: int, **more: Any) -> dict[str, Any]:
    return {**DONE, "round": done, "accuracy": None, "now": lambda: FLEET, **more}


def test_a_view_tells_warnings_once_and_what_happened() -> None:
    diverged = {"round": 0, "left_out": 2, "of": 2, "loss": None}
    text = viewed(
        True, closed(1, diverged=diverged), closed(2, accuracy=0.5, warnings=["slow"]), closed(3, warnings=["slow"])
    )
    assert text.count("warning: beware") == text.count("warning: slow") == 1
    assert "diverged in round 1: 2 of 2 updates were not finite" in text
    assert "round 3/4" in text and "0.5000" in text


def test_a_run_that_goes_on_counts_from_there() -> None:
    text = viewed(True, closed(3, before=2))
    assert "goes on after round 2" in text


def test_the_fleet_is_asked_without_changing_the_run(timing: Any) -> None:
    """A run whose observer looks at the fleet after every round has the tables of one that nobody looks at."""
    changes = {
        "stop": {"rounds": 30},
        "availability": {"name": "sessions", "on": "60 s", "off": "60 s"},
        "method": "fedasync",
        "protocol": {"name": "buffered", "concurrency": 2, "buffer": 2},
    }
    scenario = timing(**changes)
    seen: list[dict[str, Any]] = []
    looking = SimpleNamespace(round_closed=lambda info: seen.append(info["now"]()), close=lambda: None)
    run = simulate(scenario, observer=looking)
    alone = simulate_null(scenario)
    assert run.jobs["end_s"].tolist() == alone.tables["jobs"].frame()["end_s"].tolist()
    assert all(each["devices"] == 5 and 0 <= each["busy"] + each["away"] <= 5 for each in seen)
    assert any(each["away"] for each in seen) and any(each["running"] for each in seen)
    assert len(seen) == 30


def test_live_and_quiet_are_refused(here: Path) -> None:
    assert call("run", "scenario.toml", "--live", "--quiet") == Done(
        2, "", "error: --live, --quiet: give one of them\n"
    )


def test_live_without_a_terminal_is_the_usual_progress(here: Path) -> None:
    _, out, err = call("run", "scenario.toml", "--live", "--out", "run", "--set", "backend=null")
    assert err.startswith("round 1/1 ") and "run folder: run" in out


@full
@pytest.mark.process
def test_live_on_a_terminal(here: Path) -> None:
    """stderr is a terminal and shows the panel; stdout is a pipe and has the result alone."""
    ours, theirs = pty.openpty()
    words = ["run", "scenario.toml", "--live", "--json", "--out", "run", "--set", "stop.rounds=30"]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "40"}
    process = subprocess.Popen(
        [sys.executable, "-m", "edgesim", *words], stdout=subprocess.PIPE, stderr=theirs, text=True, env=environment
    )
    os.close(theirs)
    shown = b""
    while piece := _read(ours):
        shown += piece
    out, _ = process.communicate(timeout=60)
    os.close(ours)
    assert process.returncode == 0 and out.startswith("{") and '"rounds": 30' in out
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown.decode())
    assert "run: fedavg" in text and "4 devices: " in text and "above idle)" in text


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # what Linux says when nobody has the other end any more
        return b""


# --- from another process ---------------------------------------------------------------------------------------


def watching(here: Path) -> subprocess.Popen[str]:
    """Start to watch the run in the folder "run" once it is there, and return when it has come to its fifth round."""
    begun(here / "run")
    words = [sys.executable, "-m", "edgesim", "watch", "run", "--every", "0.1"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    while not (line := process.stdout.readline()).startswith("round 5/"):
        assert line.startswith("round "), (line, process.stderr and process.stderr.read())
    assert re.search("above idle\\)  0 busy, 4 idle, 0 away  host time left .*, simulated ", line)
    return process


@full
@pytest.mark.process
def test_a_run_is_watched_to_its_end_and_not_disturbed(here: Path) -> None:
    words = ("scenario.toml", "--set", "stop.rounds=40")
    run = waiting_run(*words, "--out", "run")
    watch = watching(here)
    (here / "go").touch()
    out, err = watch.communicate(timeout=120)
    run.communicate(timeout=60)
    assert (run.returncode, watch.returncode, err) == (0, 0, "")
    *lines, last = out.splitlines()
    assert last == "run: finished after 40 rounds: 40 rounds done"
    rounds = [int(found[1]) for line in lines if (found := re.match(r"round (\d+)/40  accuracy 0\.\d{4}  ", line))]
    assert len(rounds) == len(lines) and rounds == sorted(set(rounds)) and rounds[-1] == 40
    assert call("run", *words, "--out", "alone", "--quiet", "--fresh").code == 0
    assert call("diff", "run", "alone").out == "identical\n"


@full
@pytest.mark.process
@pytest.mark.kills
@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGKILL, "cut off"), pytest.param(signal.SIGINT, "interrupted", marks=full)]
)
def test_a_run_that_does_not_finish_ends_the_watch(here: Path, number: int, status: str) -> None:
    run = waiting_run("scenario.toml", "--set", "stop.rounds=40", "--out", "run")
    watch = watching(here)
    run.send_signal(number)
    out, err = watch.communicate(timeout=60)
    run.communicate(timeout=60)
    assert (watch.returncode, err) == (1, "")
    assert out.splitlines()[-1].startswith(f"run: {status} after 5 rounds")


@full
@pytest.mark.process
def test_ctrl_c_ends_the_watch_and_not_the_run(here: Path) -> None:
    run = waiting_run("scenario.toml", "--set", "stop.rounds=40", "--out", "run")
    watch = watching(here)
    watch.send_signal(signal.SIGINT)
    assert watch.communicate(timeout=60)[1] == "" and watch.returncode == 130
    (here / "go").touch()
    run.communicate(timeout=60)
    assert run.returncode == 0 and edgesim.open("run").finished


def test_a_finished_run_is_shown_as_it_is(here: Path) -> None:
    call("run", "scenario.toml", "--out", "run", "--quiet", "--set", "backend=null")
    code, out, err = call("watch", "run")
    assert (code, err) == (0, "")
    assert re.match(r"round 1/1  .*above idle\)\nrun: finished after 1 round: 1 rounds done\n$", out)
    assert glance_of(open_run("run")).fleet == {}


def test_the_run_of_a_cell_is_shown_while_it_is_written_beside_its_place(here: Path) -> None:
    """Also where an older run of the cell lies in the place; once nobody writes a new one, that is shown."""
    cell = Path("cell")
    call("run", "scenario.toml", "--out", "cell", "--quiet", "--set", "backend=null")
    call("run", "scenario.toml", "--out", str(growing_folder(cell)), "--quiet", "--set", "backend=null",
         "--set", "stop.rounds=3")  # fmt: skip
    with hold(cell), hold(growing_folder(cell)):
        code, out, err = call("watch", "cell")
    assert (code, err) == (0, "") and out.endswith("\ncell: finished after 3 rounds: 3 rounds done\n")
    assert call("watch", "cell").out.endswith("\ncell: finished after 1 round: 1 rounds done\n")


@full
@pytest.mark.process
@pytest.mark.kills
def test_the_run_of_a_cell_whose_study_was_killed_is_shown_as_cut_off(here: Path) -> None:
    growing = growing_folder(here / "cell")
    run = waiting_run("scenario.toml", "--set", "stop.rounds=40", "--out", growing.name)
    for _ in range(6000):
        if (growing / "manifest.json").exists() and len(open_run(growing).rounds) == 5:
            break
        time.sleep(0.01)
    run.kill()
    run.communicate(timeout=60)
    code, out, err = call("watch", "cell")
    assert (code, err) == (1, "") and out.splitlines()[-1].startswith("cell: cut off after 5 rounds")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("nowhere",), "error: nowhere: not a run folder: no manifest.json, "),
        (("scenario.toml",), "error: scenario.toml: a study is watched with --web; "),
        (("nowhere", "--every", "0"), "error: Invalid value for '--every'"),
    ],
)
def test_bad_input_is_one_line(here: Path, words: tuple[str, ...], says: str) -> None:
    code, out, err = call("watch", *words)
    assert (code, out) == (2, "") and err.startswith(says) and err.count("\n") == 1


def test_a_damaged_run_is_one_line(here: Path) -> None:
    call("run", "scenario.toml", "--out", "run", "--quiet", "--set", "backend=null")
    (here / "run/rounds.parquet").write_bytes(b"PAR1")
    code, out, err = call("watch", "run")
    assert (code, out) == (2, "") and err.startswith("error: run/rounds.parquet: damaged: ") and err.count("\n") == 1
