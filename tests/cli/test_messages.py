"""What errors advise, what warnings foresee, and the silence of a reader who has gone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import edgesim
from edgesim.config.origin import Layers
from edgesim.config.plugins import meant, places_of
from edgesim.runs.warnings import of_text
from tests.calling import TINY, call
from tests.sizes import full, thinned

STUDY = "name = 's'\nbase = 'scenario.toml'\ncolumns = ['sim_time_s']\n[axes]\nseed = [1]\n"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a scenario and a study."""
    (tmp_path / "scenario.toml").write_text(TINY)
    (tmp_path / "study.toml").write_text(STUDY)
    monkeypatch.chdir(tmp_path)
    return tmp_path


# --- advice -----------------------------------------------------------------------------------------------------


@full
def test_a_model_without_a_shape_is_told_of_the_options_of_its_command(here: Path) -> None:
    (here / "my_net.py").write_text(
        "from torch import nn\n\ndef Net() -> nn.Module:\n    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))\n"
    )
    advice = "--input 3x32x32 --classes 10"
    says = f"my_net:Net has no input shape or classes of its own; give --input and --classes, such as {advice}"
    assert call("model", "my_net:Net") == (2, "", f"error: model.name: {says}\n")
    done = call("model", "my_net:Net", *advice.replace("3x32x32", "1x8x8").split())
    assert (done.code, done.err) == (0, "")


@pytest.mark.parametrize("command", ["run", "plan", "table", "compare"])
def test_a_scenario_where_a_study_is_meant(here: Path, command: str) -> None:
    more = ["--baseline", "seed=1", "--column", "sim_time_s"] if command == "compare" else []
    says = "error: scenario.toml: is a scenario, not a study; run it with: edgesim run scenario.toml\n"
    assert call("study", command, "scenario.toml", *more)[::2] == (2, says)
    (here / "more.toml").write_text("extends = 'scenario.toml'\n")
    assert "more.toml: is a scenario, not a study" in call("study", "plan", "more.toml").err


@pytest.mark.parametrize("command", ["run", "validate", "show", "estimate"])
def test_a_study_where_a_scenario_is_meant(here: Path, command: str) -> None:
    says = "error: study.toml: is a study, not a scenario; run it with: edgesim study run study.toml\n"
    assert call(command, "study.toml") == (2, "", says)
    (here / "study.toml").write_text(STUDY.replace("columns = ['sim_time_s']\n", ""))  # also one with a mistake
    assert call(command, "study.toml").err == says


@pytest.mark.parametrize(
    ("key", "given", "says"),
    [
        ("electricity", "0.3", "0.3 has no unit; give a string such as '0.30 EUR/kWh'"),
        ("electricity", "{ low = 1, typical = 2, high = 3 }", "1 has no unit; give a string such as '0.30 EUR/kWh'"),
        ("carbon", "380", "380 has no unit; give a string such as '0.30 EUR/kWh'"),
        ("data", "2", "2 has no unit; give a string such as '2 EUR/GB'"),
        ("data", "'2'", "'2' has no unit; give a string such as '2 EUR/GB'"),
        ("device_hours", "0.05", "0.05 has no unit; give a string such as '0.05 EUR/h'"),
        ("payments", "1e-2", "0.01 has no unit; give a string such as '0.01 EUR'"),
        ("server_hours", "1", "1 has no unit; give a string such as '0.05 EUR/h'"),
        ("data", "true", "True is no price; give a string such as '2 EUR/GB'"),
        ("data", "'cheap'", "'cheap' is no price; give a string such as '2 EUR/GB'"),
    ],
)
def test_a_price_without_a_unit(here: Path, key: str, given: str, says: str) -> None:
    code, _, err = call("validate", "scenario.toml", "--set", f"prices.{key}={given}")
    assert code == 2 and says in err
    assert err.startswith(f"error: prices.{key}") and "*" not in err


# --- names ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "offers", "command"),
    [
        ("method=fedavgg", "; did you mean 'fedavg'?", "method"),
        ("method=zzz", "", "method"),
        ("model=resnet50", "", "model"),  # nothing that edgesim names itself is near
        ("model=resnet18", "; did you mean 'resnet18_", "model"),
        ("fleet.0.profile=raspbery_pi_4", "; did you mean 'raspberry_pi_4'?", "devices"),
    ],
)
def test_of_many_names_the_nearest_and_the_command_that_lists_them(
    here: Path, setting: str, offers: str, command: str
) -> None:
    code, _, err = call("validate", "scenario.toml", "--set", setting)
    assert code == 2 and len(err) < 160
    assert (offers in err) if offers else "did you mean" not in err
    assert f"(`edgesim list {command}` lists all " in err
    done = call("list", command)
    assert done.code == 0
    if command != "devices":
        assert err.endswith(f"lists all {len(places_of(command))})\n")


def test_few_names_are_listed(here: Path) -> None:
    _, _, err = call("validate", "scenario.toml", "--set", "backend=zzz")
    assert err == "error: backend.name: unknown backend 'zzz' (known: cohort, null, ray, serial, workers)\n"


@pytest.mark.parametrize(
    ("given", "known", "offers"),
    [
        ("resnet50", ["lenet5", "mlp"], ""),
        ("set", ["base", "name"], ""),
        ("seed", ["base", "name"], ""),
        ("rpi", ["orange_pi_5"], ""),
        ("learning", ["training"], ""),
        ("fedagv", ["fedavg", "fedbn"], "; did you mean 'fedavg'?"),
        ("raspberry_pi_3", ["raspberry_pi_3b_plus"], "; did you mean 'raspberry_pi_3b_plus'?"),
        ("rond", ["rounds", "round"], "; did you mean 'round'?"),
        ("targts", ["targets", "metric_targets"], "; did you mean 'targets'?"),
    ],
)
def test_a_far_name_is_no_suggestion(given: str, known: list[str], offers: str) -> None:
    assert meant(given, known) == offers


# --- values beyond real use -------------------------------------------------------------------------------------

FAST = "will take almost no time at"


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (["training.lr=100"], ["training.lr: training will diverge at 100, as rates above 10 are not in use"]),
        (["training.lr=10"], []),
        (
            ["fleet.0.cpu={flops_per_s=1e30}"],
            [f"fleet.0.cpu.flops_per_s: computing {FAST} 1e+30 FLOP/s; real ones have 1000 to 1e+18"],
        ),
        (["fleet.0.cpu={flops_per_s=1e18}", "fleet.1.cpu={flops_per_s=1e3}"], []),
        (
            ["fleet.0.cpu={flops_per_s={uniform=[50, 90]}}", "fleet.1.cpu={flops_per_s=50}"],  # one line for all blocks
            ["fleet.0.cpu.flops_per_s: computing will take very long at 50 FLOP/s; real ones have 1000 to 1e+18"],
        ),
        (
            ["server.flops_per_s=1e19"],
            [f"server.flops_per_s: computing {FAST} 1e+19 FLOP/s; real ones have 1000 to 1e+18"],
        ),
        (
            ["network.up={log_normal=[1, 1000]}", "network.down=8"],
            [
                "network.up: a transfer will take very long at 1 bit/s; real ones have 10 to 1e+13",
                "network.down: a transfer will take very long at 8 bit/s; real ones have 10 to 1e+13",
            ],
        ),
        (
            ["training.precision=bfloat16", "fleet.1.cpu.bfloat16_speedup=2"],
            [
                "training.precision: cpu.bfloat16_speedup of block0 is unknown, so that training there takes the "
                "seconds and joules of float32"
            ],
        ),
        (
            ["fleet.1.cpu.bfloat16_speedup=2"],
            ["fleet.1.cpu.bfloat16_speedup: has no effect with training.precision = 'float32'"],
        ),
        (["session=[{training={lr=11}}]"], ["session.0.training.lr: training will diverge at 11, as rates above 10 are "
                                            "not in use"]),
    ],
)  # fmt: skip
def test_a_value_beyond_real_use_is_warned_of(here: Path, settings: list[str], says: list[str]) -> None:
    scenario = edgesim.load("scenario.toml", settings)
    assert of_text(scenario, Layers.of(here / "scenario.toml", settings)) == says


def test_validate_says_so(here: Path) -> None:
    code, out, err = call("validate", "scenario.toml", "--set", "training.lr=100")
    assert (code, out) == (0, "scenario.toml: ok\n")
    assert err == "warning: training.lr: training will diverge at 100, as rates above 10 are not in use\n"


# --- a reader who has gone --------------------------------------------------------------------------------------

COMMANDS = [
    "--help", "run --help", "list", "list method", "list method fedavg", "schema", "model cnn_digits",
    "device raspberry_pi_4", "show scenario.toml", "show scenario.toml --json", "validate scenario.toml",
    "estimate scenario.toml", "new --list", "table done", "table done --csv", "energy done", "energy done --json",
    "explain done --round 1", "study plan study.toml", "run scenario.toml --set backend=null --out again",
]  # fmt: skip


@pytest.mark.process
@pytest.mark.parametrize("words", thinned(COMMANDS, ["energy done"], COMMANDS[::4]))
@pytest.mark.parametrize("reader", thinned(["head -n 1", "true"], ["true"]))
def test_head_ends_a_command_quietly(here: Path, words: str, reader: str) -> None:
    """Also where rich draws, and where the reader is gone before the first word."""
    edgesim.run("scenario.toml", {"backend": "null"}, here / "done")
    command = f"{sys.executable} -m edgesim {words}"
    wait = "" if reader != "true" else "sleep 0.1; "  # the reader is gone by then
    script = f"({wait}exec {command}) | {reader} >read; echo ${{PIPESTATUS[0]}}"
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"} if reader == "true" else os.environ
    done = subprocess.run(["bash", "-c", script], cwd=here, capture_output=True, text=True, env=environment)
    assert "error" not in done.stderr and "Traceback" not in done.stderr
    assert int(done.stdout) in (0, 141)  # as a shell shows a program that SIGPIPE has ended
    if reader == "true":
        assert int(done.stdout) == 141
