"""Every command in a process of its own, which has loaded no more than the command itself does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from edgesim.cli.app import command_line
from tests.calling import TINY, call
from tests.sizes import full, thinned

DATA = Path(__file__).parents[1] / "world" / "data" / "traces"
GOLDEN = Path(__file__).parents[2] / "golden" / "quickstart"
FLOWER = Path(__file__).parents[2] / "scenarios" / "flower" / "digits"
STUDY = """
name = "s"
base = "tiny.toml"
columns = ["sim_time_s", "energy_j"]
axes = { method = ["fedavg", "fedprox"], seed = [1, 2] }
sizes = { quick = { overrides = ["stop.rounds=2"] } }
"""
SEARCH = """
name = "search"
base = "tiny.toml"
columns = ["sim_time_s"]
search = { minimise = ["sim_time_s"], space = { "training.batch" = [8, 16] } }
sizes = { quick = {} }
"""
CLAIMS = """
paper = "A paper"
source = "Nobody (2026)."
[[claims]]
id = "equal"
where = "Table 1"
says = "Both take 12.5 s."
study = "study.toml"
size = "quick"
number = { columns = ["sim_time_s"], within = 0.1 }
"""
RUN, OTHER = "runs/method=fedavg,seed=1", "runs/method=fedprox,seed=1"
MEAN = "study.toml --runs runs"
COMMANDS = {
    "new": "made",
    "run": "tiny.toml --out own --quiet",
    "replay": f"{RUN} --set network.latency=1 --out again --quiet",
    "cache": "runs",
    "validate": "tiny.toml",
    "show": "tiny.toml",
    "estimate": "tiny.toml",
    "schema": "",
    "list": "method",
    "model": "cnn_digits --input 1x8x8",
    "table": "runs",
    "plot": "runs --out picture",
    "trace": f"{RUN} --out trace.json",
    "gantt": f"{RUN} --round 1 --out round",
    "explain": f"{RUN} --round 1",
    "energy": RUN,
    "cost": "priced",
    "devices": RUN,
    "flops": "lenet5",
    "device": "raspberry_pi_4",
    "link": "lte",
    "calibrate": "--seconds 0 --models cnn_digits --models mlr --batch 2 --base x86_thread",
    "watch": RUN,
    "diff": f"{RUN} {RUN}",
    "check": f"{GOLDEN}",
    "export": f"{RUN} --to csv --out tables",
    "report": f"{RUN} {OTHER} --out report.html",
    "flower run": f"{FLOWER} --run-config num-server-rounds=1 --quiet --out flower",
    "study plan": "study.toml",
    "study run": "study.toml --runs runs",
    "study optimise": "search.toml --trials 1 --runs searched",
    "study table": MEAN,
    "study plot": "study.toml --runs runs --kind energy --out energy",
    "study compare": f"{MEAN} --baseline method=fedavg",
    "study front": f"{MEAN} --column sim_time_s --column energy_j",
    "study cheapest": f"{MEAN} --by energy_j --reach 0.01 --within 2h",
    "study budget": f"{MEAN} --target 0.01",
    "study theta": MEAN,
    "study sensitivity": f"{MEAN} --column energy_j",
    "study break-even": f"{MEAN} --between method=fedavg --and method=fedprox --column sim_time_s --per energy_j",
    "study claims": "claims.toml --runs claimed",
    "import-trace fedscale-capacity": f"{DATA}/client_device_capacity.json --forward 1GFLOP --out capacity.csv",
    "import-trace fedscale-behaviour": f"{DATA}/client_behave_trace.json --out behaviour.csv",
    "import-trace flash": f"{DATA}/state_traces.json --out states.csv",
    "import-trace google-cluster": f"{DATA}/task_usage.csv --out usage.csv",
}
_SHORT = ("study table",)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a study, its runs and what they have kept, and a run with prices."""
    place = tmp_path_factory.mktemp("place")
    for name, text in {"tiny": TINY, "study": STUDY, "search": SEARCH, "claims": CLAIMS}.items():
        (place / f"{name}.toml").write_text(text)
    assert call("study", "run", place / "study.toml", "--runs", place / "runs").code == 0
    prices = ("--set", "prices.electricity='0.1 EUR/kWh'", "--quiet", "--out", place / "priced")
    assert call("run", place / "tiny.toml", *prices).code == 0
    return place


def test_every_command_is_tried() -> None:
    found = []
    for name, command in command_line().commands.items():
        of_group = getattr(command, "commands", None)
        found += [f"{name} {each}" for each in of_group] if of_group else [name]
    assert sorted(found) == sorted(COMMANDS)


@full
@pytest.mark.process
@pytest.mark.parametrize("command", thinned(COMMANDS, _SHORT, list(COMMANDS)[::5]))
def test_a_command_loads_all_that_it_needs(place: Path, command: str) -> None:
    words = [sys.executable, "-m", "edgesim", *command.split(), *COMMANDS[command].split()]
    done = subprocess.run(words, cwd=place, capture_output=True, text=True, check=False)
    # a busy host may time two networks so that no profile fits them
    refused = command == "calibrate" and "\nerror: calibrate: " in done.stderr
    assert (done.returncode, "Traceback" in done.stderr) == (2 if refused else 0, False), done.stderr
    assert command != "cache" or " 16 " in done.stdout  # 4 cells of 2 rounds, each with a merge and a score
