"""Searches: known optima and fronts, runs that never get there, pruning, and trials that are cells like any others."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgesim
from edgesim.studies.optimise import Optimisation, Trial
from edgesim.studies.study import load_study
from tests.calling import TINY, call, names
from tests.sizes import full, sized

IDLE_W, CAPACITANCE = 0.5, 1e-28
# Joules of a computation of W FLOPs on one core at f Hz: W/k (IDLE / f + CAPACITANCE f^2). The derivative is 0 here:
BEST_HZ = (IDLE_W / (2 * CAPACITANCE)) ** (1 / 3)
TIMING = f"""
partition = {{ name = "sizes", samples_per_device = 100 }}
model = "cnn_digits"
training = {{ batch = 10, lr = 0.1 }}
network = {{ name = "fixed", up = "1 Mbit/s", down = "8 Mbit/s" }}
energy = {{ name = "cpu", capacitance = {CAPACITANCE}, idle = {IDLE_W} }}
method = "fedavg"
backend = "null"
stop = {{ rounds = 2 }}
fleet = [{{ cpu = {{ frequency = "1 GHz", flops_per_cycle = 1 }} }}]
"""
ENERGY = """
name = "joules over frequency"
base = "timing.toml"
columns = ["energy_j", "sim_time_s"]
[search]
minimise = ["energy_j"]
[search.space]
"fleet.0.cpu.frequency" = { low = 2e8, high = 4e9, log = true }
"network.up" = ["0.5 Mbit/s", "1 Mbit/s", "2 Mbit/s"]
"""
LEARNING = """
name = "who learns"
base = "learning.toml"
columns = ["sim_time_s@0.3", "best_accuracy", "sim_time_s"]
[axes]
seed = [1, 2]
[search]
minimise = ["sim_time_s@0.3"]
batch = 2
startup = 4
[search.space]
"stop.rounds" = [1, 14]
"training.lr" = { low = 0.02, high = 0.2, log = true }
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Go to a folder with two scenarios and two studies that search."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "timing.toml").write_text(TIMING)
    (tmp_path / "energy.toml").write_text(ENERGY)
    (tmp_path / "learning.toml").write_text(TINY.replace("rounds = 1", "rounds = 14"))
    (tmp_path / "learns.toml").write_text(LEARNING)
    return tmp_path


def searched(file: str, trials: int, out: str = "runs") -> Optimisation:
    search = Optimisation(load_study(Path(file)), Path(file), "quick", Path(out))
    for _ in search.run(trials):
        pass
    return search


# --- what is found ----------------------------------------------------------------------------------------------


@full
def test_the_known_optimum_of_a_null_problem_is_found(here: Path) -> None:
    """Less than a millionth of a joule a second would be lucky; a hundredth of the optimum is not."""
    search = searched("energy.toml", 24)
    [best] = search.best
    assert best.point["network.up"] == "2_Mbit_s"  # idle joules of a shorter upload are fewer
    assert best.point["fleet.0.cpu.frequency"] == pytest.approx(BEST_HZ, rel=0.1)
    at_best = edgesim.run("timing.toml", [*best.overrides, f"fleet.0.cpu.frequency={BEST_HZ!r}"])
    optimum_j = at_best.rounds["total_energy_j"].iloc[-1]
    assert optimum_j <= best.values[0] <= 1.01 * optimum_j
    assert all(trial.values[0] >= optimum_j for trial in search.trials)


@full
def test_joules_are_those_of_the_closed_form(here: Path) -> None:
    """Energy and time of all trials are A + B (idle / f + C f^2) and A' + B / f: two unknowns from two of them."""
    trials = [each for each in searched("energy.toml", 12).trials if each.point["network.up"] == "1_Mbit_s"]
    frequency = np.array([each.point["fleet.0.cpu.frequency"] for each in trials])
    energy_j = np.array([each.values[0] for each in trials])
    form = IDLE_W / frequency + CAPACITANCE * frequency**2
    slope = (energy_j[1] - energy_j[0]) / (form[1] - form[0])
    assert len(trials) > 2
    assert energy_j == pytest.approx(energy_j[0] + slope * (form - form[0]), rel=1e-9)


@full
def test_the_front_of_two_objectives_is_found(here: Path) -> None:
    """Faster than the thriftiest frequency is a trade; slower than it loses both ways."""
    text = ENERGY.replace('minimise = ["energy_j"]', 'minimise = ["energy_j", "sim_time_s"]')
    (here / "both.toml").write_text(text.replace('"network.up" = ["0.5 Mbit/s", "1 Mbit/s", "2 Mbit/s"]\n', ""))
    search = searched("both.toml", 30)
    values = {trial.number: trial.values for trial in search.trials}

    def is_beaten(mine: tuple[float, float]) -> bool:
        return any(all(a <= b for a, b in zip(other, mine, strict=True)) and other != mine for other in values.values())

    front = [trial.number for trial in search.best]
    assert sorted(front) == [number for number, each in values.items() if not is_beaten(each)]
    assert [values[number][0] for number in front] == sorted(values[number][0] for number in front)
    hz = {trial.number: trial.point["fleet.0.cpu.frequency"] for trial in search.trials}
    assert {number for number in hz if hz[number] >= BEST_HZ} <= set(front)
    assert len(front) >= 10 and len(front) < len(hz)
    assert sum(hz[number] < BEST_HZ for number in front) <= 1  # none faster has found fewer joules yet


@full
def test_what_is_made_large(here: Path) -> None:
    (here / "slow.toml").write_text(ENERGY.replace('minimise = ["energy_j"]', 'maximise = ["sim_time_s"]'))
    [best] = searched("slow.toml", 24).best
    assert best.point["fleet.0.cpu.frequency"] < 4e8 and best.point["network.up"] == "0.5_Mbit_s"


@full
def test_whole_numbers_steps_units_and_labels(here: Path) -> None:
    space = """
[search.space]
"training.batch" = { low = 5, high = 25, step = 5 }
"network.latency" = { low = 1.5, high = 2.5, step = 0.5, unit = "ms" }
method = { fedavg = [], fedprox = ["method={ name = 'fedprox', mu = 0.5 }"] }
"""
    (here / "kinds.toml").write_text(ENERGY.partition("[search.space]")[0] + space)
    trials = searched("kinds.toml", 12).trials
    assert {each.point["training.batch"] for each in trials} <= {5, 10, 15, 20, 25}
    assert {each.point["network.latency"] for each in trials} == {1.5, 2.0, 2.5}
    texts = {text for each in trials for text in each.overrides}
    assert {'network.latency="1.5 ms"', "method={ name = 'fedprox', mu = 0.5 }"} < texts
    latencies = {
        edgesim.open(f"runs/trial={each.number}").manifest["scenario"]["network"]["latency"] for each in trials
    }
    assert latencies == {0.0015, 0.002, 0.0025}


# --- who never gets there -----------------------------------------------------------------------------------------


@full
def test_a_run_that_never_gets_there_is_no_small_number(here: Path) -> None:
    """One round takes less time than fourteen, and reaches nothing."""
    search = searched("learns.toml", sized(6, 8, 8))
    short = [trial for trial in search.trials if trial.point["stop.rounds"] == "1"]
    assert short and all(trial.values == (None,) and trial.behind > 0 for trial in short)
    [best] = search.best
    assert best.point["stop.rounds"] == "14" and best.values[0] is not None
    spent = {
        cell: edgesim.open(f"runs/{cell}").rounds["now_s"].iloc[-1] for cell in names(here / "runs") if "=" in cell
    }
    assert min(spent.values()) < best.values[0]
    assert best.values[0] == pytest.approx(np.mean([_time_to(f"runs/trial={best.number},seed={s}") for s in (1, 2)]))


def _time_to(folder: str, accuracy: float = 0.3) -> float:
    evals = edgesim.open(folder).evals
    return float(evals["now_s"][(evals["split"] == "test") & (evals["accuracy"] >= accuracy)].min())


def test_nobody_gets_there(here: Path) -> None:
    (here / "learns.toml").write_text(LEARNING.replace("[1, 14]", "[1]").replace("@0.3", "@0.99"))
    code, out, _ = call("study", "optimise", "learns.toml", "--trials", 2, "--runs", "runs")
    assert code == 0
    assert out.startswith("none of 2 trials reached all targets: 2 fell short of a target, 0 were pruned\n")


@full
def test_a_trial_that_is_behind_is_pruned_by_simulated_time(here: Path) -> None:
    """Tiny rates learn nothing: they are stopped where the first trials were further, and cannot be the best."""
    space = '"training.lr" = [0.1, 0.15, 1e-6]\n'
    prune = 'maximise = ["best_accuracy"]\nprune = { at = ["3 s", "6 s"], after = 3 }\n'
    text = LEARNING.partition('"stop.rounds"')[0].replace('minimise = ["sim_time_s@0.3"]\n', prune)
    (here / "learns.toml").write_text(text.replace("seed = [1, 2]", "seed = [1]") + space)
    search = searched("learns.toml", 12)
    pruned = [trial for trial in search.trials if trial.pruned]
    late = {trial.number for trial in search.trials[4:] if trial.point["training.lr"] == "1e-06"}
    assert late and late <= {trial.number for trial in pruned}
    assert all(trial.values == (None,) and 0 < trial.behind < 1 for trial in pruned)
    before = [trial for trial in search.trials[:4] if not trial.pruned]
    median = np.median([trial.accuracies[0] for trial in before])  # the third batch knows two
    first = next(trial for trial in search.trials if trial.overrides[1:])
    assert first.number == 4
    assert first.overrides[1].startswith(f"stop.milestones=[{{ sim_time = 3.0, accuracy = {float(median)!r} }}")
    for trial in pruned:
        run = edgesim.open(f"runs/trial={trial.number},seed=1")
        assert run.manifest["totals"]["sim_time_s"] in (3.0, 6.0)
        assert "a milestone asks for" in run.manifest["stop_reason"]
    assert search.best[0].point["training.lr"] != "1e-06"


# --- trials are cells ---------------------------------------------------------------------------------------------


def trials_in(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "trials.json").read_text())["trials"]


@full
def test_trials_are_cells_of_the_study(here: Path) -> None:
    (here / "learns.toml").write_text(LEARNING.replace("[1, 14]", "[14]"))
    code, out, err = call("study", "optimise", "learns.toml", "--trials", 3, "--runs", "runs")
    assert code == 0 and "who learns (quick): the best trial" in out
    assert err.splitlines()[-1].startswith("trial 2, 3 of 3: ")
    cells = [f"trial={trial},seed={seed}" for trial in range(3) for seed in (1, 2)]
    assert [name for name in names(here / "runs") if "=" in name] == cells
    code, out, err = call("study", "table", "learns.toml", "--runs", "runs", "--json")
    rows = json.loads(out)["rows"]
    assert (code, err) == (0, "") and {row["trial"] for row in rows} == {"0", "1", "2"}
    assert {row["runs"] for row in rows} == {2}
    assert call("study", "run", "learns.toml", "--runs", "runs").err == "6 of 6 cells are done\n"
    plan = json.loads(call("study", "plan", "learns.toml", "--runs", "runs", "--only", "trial=1", "--json").out)
    assert [(row["cell"], row["state"]) for row in plan["cells"]] == [(cell, "done") for cell in cells[2:4]]


@full
def test_warnings_of_trials_stand_once(here: Path) -> None:
    """The network of a scenario whose only block has its own, in each of 3 trials; also where all of them are done."""
    (here / "timing.toml").write_text(TIMING.replace("fleet = [{", "fleet = [{ network = 'wifi',"))
    words = ("study", "optimise", "energy.toml", "--trials", 3, "--runs", "runs")
    for _ in range(2):
        code, _, err = call(*words)
        found = [line for line in err.splitlines() if "warning" in line]
        assert (code, found) == (0, ["warning: network: has no effect, as every fleet block has its own"])


@full
def test_warnings_that_differ_in_numbers_alone_stand_once(here: Path) -> None:
    """A deadline that no device can miss: how long the longest job takes depends on the frequency of the trial."""
    (here / "timing.toml").write_text(TIMING + "protocol = { name = 'deadline', deadline = '900 s' }\n")
    err = call("study", "optimise", "energy.toml", "--trials", 4, "--runs", "runs").err
    assert err.count("warning") == err.count("warning: protocol.deadline: no device can miss 900 s") == 1, err


def test_a_study_without_trials_says_what_comes_first(here: Path) -> None:
    says = "error: runs/trials.json: no trial was drawn; first: edgesim study optimise, of this study and size\n"
    assert call("study", "table", "energy.toml", "--runs", "runs") == (2, "", says)
    call("study", "optimise", "energy.toml", "--trials", 1, "--runs", "runs")
    (here / "energy.toml").write_text(ENERGY.replace("4e9", "3e9"))
    assert "has trials of another search" in call("study", "table", "energy.toml", "--runs", "runs").err


@full
def test_more_trials_go_on_with_those_that_are_there(here: Path) -> None:
    """Ten, or six and then ten: the same trials; and none is run twice."""
    searched("energy.toml", 10, "alone")
    searched("energy.toml", 6)
    made = {path: path.stat().st_mtime_ns for path in (here / "runs").rglob("*.parquet")}
    searched("energy.toml", 10)
    assert trials_in(here / "runs") == trials_in(here / "alone")
    assert {path: path.stat().st_mtime_ns for path in made} == made
    searched("energy.toml", 3)
    assert list(trials_in(here / "runs")) == ["0", "1", "2"]


@full
@pytest.mark.workers
def test_processes_change_no_trial(here: Path) -> None:
    for workers in (1, 2):
        words = ("--trials", sized(6, 14, 30), "--workers", workers, "--runs", f"runs{workers}", "--json")
        code, out, _ = call("study", "optimise", "energy.toml", *words)
        assert code == 0
        (here / f"said{workers}").write_text(out)
    assert trials_in(here / "runs1") == trials_in(here / "runs2")
    assert (here / "said1").read_text() == (here / "said2").read_text()


@full
def test_other_code_makes_the_runs_anew(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    searched("energy.toml", 4)
    before = trials_in(here / "runs")
    monkeypatch.setattr("edgesim.files.code_identity.source_digest", lambda *folders: "changed")
    made = {path: path.stat().st_mtime_ns for path in (here / "runs").rglob("jobs.parquet")}
    searched("energy.toml", 4)
    assert all(path.stat().st_mtime_ns > made[path] for path in made)
    assert trials_in(here / "runs") == before


@full
def test_seed_and_batch_decide_which_trials_there_are(here: Path) -> None:
    searched("energy.toml", 4)
    for change in ("seed = 2", "startup = 1\nbatch = 1"):
        (here / "other.toml").write_text(ENERGY.replace("[search]\n", f"[search]\n{change}\n"))
        searched("other.toml", 4, change[:4])
        assert trials_in(here / change[:4]) != trials_in(here / "runs")


def test_numbers_of_a_trial(here: Path) -> None:
    (here / "energy.toml").write_text(ENERGY + "\n[axes]\nseed = [1, 2, 3]\n")
    [trial] = searched("energy.toml", 1).trials
    assert isinstance(trial, Trial) and trial.got_there and trial.behind == 0 and not trial.accuracies
    runs = [edgesim.open(f"runs/trial=0,seed={seed}") for seed in (1, 2, 3)]
    assert trial.values[0] == pytest.approx(np.mean([run.rounds["total_energy_j"].iloc[-1] for run in runs]))
    assert math.isfinite(trial.values[0])


# --- what is refused ----------------------------------------------------------------------------------------------

SPACE = '"fleet.0.cpu.frequency" = { low = 2e8, high = 4e9, log = true }'
BAD = {
    "no objective": ('minimise = ["energy_j"]\n', "", "search: needs minimise or maximise, lists of columns"),
    "an objective twice": (
        '["energy_j"]',
        '["energy_j", "energy_j"]',
        "search: minimise and maximise name a column tw",
    ),
    "no column": (
        'minimise = ["energy_j"]',
        'minimise = ["energy"]',
        "search: 'energy' is no column of the study; did",
    ),
    "no space": ("[search.space]", "[search.spaces]", "search.spaces: unknown key; did you mean"),
    "an unknown key": ("low = 2e8", "lowest = 2e8", "search.space.fleet.0.cpu.frequency.lowest: unknown key"),
    "no range": ("low = 2e8, ", "", "search.space.fleet.0.cpu.frequency: needs low and high, a list of values, or"),
    "turned round": ("low = 2e8", "low = 5e9", "search.space.fleet.0.cpu.frequency: low must be below high, got 5000"),
    "log of zero": ("low = 2e8", "low = 0.0", "search.space.fleet.0.cpu.frequency: log needs low above 0, and no step"),
    "no number": ("low = 2e8", 'low = "2 GHz"', "search.space.fleet.0.cpu.frequency.low: must be a finite number, got"),
    "a step of half": (
        SPACE,
        '"training.batch" = { low = 1, high = 9, step = 0.5 }',
        "search.space.training.batch: ste",
    ),
    "both": (
        "low = 2e8",
        "choices = { a = [] }, low = 2e8",
        "search.space.fleet.0.cpu.frequency: has choices or a ran",
    ),
    "an axis": (
        "[search]\n",
        "[axes]\nmethod = ['fedavg']\n[search]\n",
        "axes.method: beside a search there is the ax",
    ),
    "what no scenario takes": (
        "high = 4e9",
        'high = 4e9, unit = "m"',
        "size quick, cell fleet.0.cpu.frequency=200000000.0: ",
    ),
    "a key of no scenario": ('"network.up"', '"network.ups"', "size quick, cell network.ups=0.5_Mbit_s: network.ups: "),
    "no override": (
        '["0.5 Mbit/s", "1 Mbit/s", "2 Mbit/s"]',
        "{ slow = ['1 Mbit/s'] }",
        "search.space.network.up.slow",
    ),
    "pruning without training": (
        "[search]\n",
        "[search]\nprune = { at = [1] }\n",
        "search.prune: goes by accuracy, and",
    ),
    "pruning and two": (
        'minimise = ["energy_j"]',
        'minimise = ["energy_j", "sim_time_s"]\nprune = { at = [1] }',
        "search: prune goes with one objective",
    ),
}


@pytest.mark.parametrize(("old", "new", "says"), BAD.values(), ids=BAD)
def test_bad_searches_are_one_line(here: Path, old: str, new: str, says: str) -> None:
    assert old in ENERGY
    (here / "energy.toml").write_text(ENERGY.replace(old, new))
    code, out, err = call("study", "optimise", "energy.toml", "--trials", 1, "--runs", "runs")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"error: energy.toml: {says}"), err


def test_a_study_without_a_search(here: Path) -> None:
    (here / "plain.toml").write_text(ENERGY.partition("[search]")[0] + "[axes]\nseed = [1]\n")
    says = "error: plain.toml: has no section [search]\n"
    assert call("study", "optimise", "plain.toml", "--trials", 1) == (2, "", says)
    (here / "plain.toml").write_text(ENERGY.partition("[search]")[0])
    assert "needs axes, or a search" in call("study", "run", "plain.toml").err


def test_without_optuna(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgesim.studies.optimise.find_spec", lambda name: None)
    says = 'error: study optimise: optuna is not installed; pip install "edgesim[optimise]"\n'
    assert call("study", "optimise", "energy.toml", "--trials", 1) == (2, "", says)


@pytest.mark.parametrize("content", ["", "{}", '{"trials": 5}', '{"trials": {"0": 5}}', "[1]", "\x00", '{"trials": {'])
def test_a_damaged_file_of_trials_is_one_line(here: Path, content: str) -> None:
    (here / "runs").mkdir()
    (here / "runs" / "trials.json").write_text(content)
    for words in (("table",), ("optimise", "--trials", 1)):
        code, _, err = call("study", words[0], "energy.toml", *words[1:], "--runs", "runs")
        assert code == 2 and err.startswith("error: runs/trials.json: is damaged; remove it, the runs stay: ")
        assert err.count("\n") == 1


def test_a_trial_that_cannot_be_run_is_named(here: Path) -> None:
    """Each key alone is possible; more devices than there are cannot be asked."""
    space = '"selection.count" = { low = 2, high = 4 }\n"fleet.0.count" = { low = 1, high = 4 }\n'
    text = TIMING.replace('method = "fedavg"', 'method = "fedavg"\nselection = { name = "uniform", count = 1 }')
    (here / "timing.toml").write_text(text)
    (here / "energy.toml").write_text(ENERGY.partition('"fleet.0')[0] + space)
    code, _, err = call("study", "optimise", "energy.toml", "--trials", 12, "--runs", "runs")
    assert code == 2 and "cells cannot be run, so none was; trial=" in err
