"""The command line: what is printed where, and the exit codes. The simulator behind it is replaced by a stand-in."""

import io
import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from edgesim.cli.main import main
from edgesim.core.errors import ConfigError
from edgesim.core.price_list import Coverage, LayerCost, ModelSizes
from edgesim.runs.memory_fit import MemoryFit
from edgesim.runs.progress import Limits, ProgressLine
from tests.records.written import new_tables, write


def joules(energy_j):
    """Return the four columns of joules: half of them are idle power, a tenth of devices never asked."""
    return energy_j, 0.5 * energy_j, 0.5 * energy_j, 0.9 * energy_j


def write_fake(folder, status="finished", seed=3, accuracy=0.625, reason=None):
    """Write a run of one round: 7200 s, 2500 J, 2 MB up, 4 MB down."""
    tables = new_tables()
    spent = (1e9, 4, 2, *joules(5.0), 1e9, 4_000_000, 2_000_000, *joules(2500.0))
    tables["rounds"].append((0, 1, 0.0, 7200.0, 2, 2, 0, "all", np.inf, 0.0, 0.0, *spent))
    tables["evals"].append((0, 1, 7200.0, "test", 1.0, accuracy, 50))
    scenario = {"seed": seed, "method": {"name": "fedavg"}, "evaluation": {"targets": [0.5]}}
    facts = {"scenario": scenario, "status": status, "stop_reason": reason, "host_s": 2.0, "rounds": 1}
    return write(folder, tables, facts)


@pytest.fixture
def call(monkeypatch, capsys):
    """Return a caller of the command line: exit code, stdout, stderr."""

    def run_command(*words):
        monkeypatch.setattr(sys, "argv", ["edgesim", *map(str, words)])
        with pytest.raises(SystemExit) as stop:
            main()
        out, err = capsys.readouterr()
        return stop.value.code or 0, out, err

    return run_command


@pytest.fixture
def simulator(monkeypatch):
    """Put stand-ins for edgesim.run and edgesim.config in place; return what they were called with."""
    seen = SimpleNamespace(status="finished", reason=None, overrides=None, folder=None, observer=None)

    def load_scenario(source, overrides):
        seen.overrides = list(overrides)
        if not Path(source).exists():
            raise ConfigError(f"{source}: no such scenario")
        backend = SimpleNamespace(value=SimpleNamespace(device="cuda:1", trains=True))
        method, stop = SimpleNamespace(name="fedavg"), Limits(rounds=1)
        return SimpleNamespace(seed=3, method=method, stop=stop, backend=backend, session=())

    def simulate(scenario, out, observer=None, checkpoint=None, **_):
        seen.folder, seen.observer = out, observer
        return write_fake(out, seen.status, scenario.seed, reason=seen.reason)

    def check_all(scenario):
        seen.checked = scenario
        return (scenario,)

    def estimate(_, draws, backends, loaded):
        assert (draws, backends) == (0, False) and loaded.host_s > 0 and loaded.nbytes > 0
        levels = pd.DataFrame({"level": [1, 2], "devices": [3, 4], "flops": [2e9, 4e9], "seconds": [7200.0, 90.0]})
        levels["link_j"] = [0.0, 5000.0]
        totals = {"host_minutes": np.float64(12.5), "memory_bytes": 3_000_000}
        memory = [MemoryFit("sensor", 1_000_000, 2_500_000, 16, False, 4, (("a smaller training.batch", 4),))]
        return SimpleNamespace(
            blocks=levels, totals=totals, notes=(), memory=memory, spread_blocks=None, spread_totals={}, backends=()
        )

    def network_of(model, shape, classes, key, **_):
        seen.cost_profile = (model.value, model.name, shape, classes)
        conv = LayerCost("conv", "Conv2d", 10, 0, 100.0, 100.0, 0.0, frozenset())
        layers = (conv, LayerCost("fc", "Linear", 5, 0, 20.0, 20.0, 20.0, frozenset({"conv"})))
        # Both trained: forward 120, weight gradients 120, input gradient of fc 20; only fc: 120 + 20.
        cost_profile = SimpleNamespace(
            model=model.name,
            params=15,
            sizes=ModelSizes(15, 60, 0, 0),
            base=0,
            base_bytes=0,
            coverage=Coverage(260.0, 7.0, ()),
            groups=(),
            layers=layers,
            layer_names=("conv", "fc"),
            forward_flops=lambda: 120.0,
            step_flops=lambda: 0.0,
            before_last=lambda count: frozenset(("conv", "fc")[:-count]),
            train_flops=lambda frozen: 140.0 if "conv" in frozen else 260.0,
        )
        return SimpleNamespace(cost_profile=cost_profile)

    def model_named(name):
        if name != "toy":
            raise ConfigError(f"model: must be 'toy', got {name!r}")
        return SimpleNamespace(name=name, value=f"the model {name}")

    parts = {
        "edgesim.runs.warnings": {"of_text": lambda *_: [], "of_parts": lambda *_: ["network: is odd"]},
        "edgesim.runs.simulate": {"simulate": simulate},
        "edgesim.runs.simulation": {"check_all": check_all},
        "edgesim.runs.network": {"model_named": model_named, "network_of": network_of},
        "edgesim.runs.estimate": {"estimate": estimate},
        "edgesim.config.load": {"load_scenario": load_scenario},
        "edgesim.config.origin": {"Layers": SimpleNamespace(of=lambda *_: None), "effective": None},
        "edgesim.config.schema": {"json_schema": lambda: {"title": "Scenario"}},
    }
    for name, members in parts.items():
        module = ModuleType(name)
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, name, module)
    return seen


@pytest.fixture
def scenario(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "quick.toml"
    path.write_text("")
    return path


def test_run_prints_a_table_and_the_folder(call, simulator, scenario):
    code, out, _ = call("run", scenario, "--set", "seed=3", "--workers", "2")
    assert code == 0
    assert simulator.overrides == ["seed=3", 'backend={ name = "workers", workers = 2, device = "cuda:1" }']
    assert simulator.folder == Path("runs/quick-fedavg-3")
    for text in ("fedavg", "0.6250", "2 h", "2.5 kJ", "2 MB", "4 MB", "run folder: runs/quick-fedavg-3"):
        assert text in out


def test_json_is_the_only_thing_on_stdout(call, simulator, scenario):
    code, out, err = call("run", scenario, "--json", "--out", "mine")
    found = json.loads(out)
    assert (code, found["rounds"], found["energy_j"]) == (0, 1, 2500.0)
    assert found["targets"]["0.5"]["sim_time_s"] == 7200.0
    assert err.strip() == "run folder: mine"


def test_quiet_prints_the_folder_alone(call, simulator, scenario):
    assert call("run", scenario, "--quiet", "--out", "mine") == (0, "mine\n", "")
    assert simulator.observer is None


@pytest.mark.parametrize(
    ("status", "reason", "expected", "note"),
    [
        ("interrupted", None, 130, "interrupted after 1 rounds; the tables end there\n"),
        ("failed", "no power", 1, "failed after 1 rounds: no power; the tables end there\n"),
    ],
)
def test_an_unfinished_run_is_shown_with_its_exit_code(call, simulator, scenario, status, reason, expected, note):
    simulator.status, simulator.reason = status, reason
    code, out, err = call("run", scenario)
    assert (code, err) == (expected, note)
    assert "run folder: runs/quick-fedavg-3" in out


def test_a_mistake_is_one_line_and_code_2(call, simulator, scenario):
    assert call("run", "none.toml") == (2, "", "error: none.toml: no such scenario\n")
    assert call("table", scenario)[0] == 2


@pytest.mark.parametrize("words", [["run"], ["nonsense"], ["run", "x.toml", "--workers", "0"], ["model", "--what"]])
def test_wrong_usage_is_code_2(call, words):
    code, out, err = call(*words)
    assert (code, out) == (2, "") and "Traceback" not in err and err


def test_validate_and_schema(call, simulator, scenario):
    assert call("validate", scenario) == (0, f"{scenario}: ok\n", "warning: network: is odd\n")
    assert simulator.checked.seed == 3
    assert json.loads(call("schema")[1]) == {"title": "Scenario"}


def test_estimate(call, simulator, scenario):
    out = call("estimate", scenario)[1]
    assert all(text in out for text in ("2 GFLOP", "2 h", "90 s", "network energy", "5 kJ", "12.5", "3 MB"))
    found = json.loads(call("estimate", scenario, "--json")[1])
    assert found["blocks"][1] == {"level": 2, "devices": 4, "flops": 4e9, "seconds": 90.0, "link_j": 5000.0}
    assert found["totals"] == {"host_minutes": 12.5, "memory_bytes": 3_000_000}
    smaller = "fits with a smaller training.batch (batch 4 at most)"
    assert f"sensor (1 MB): does not fit, 2.5 MB at batch 16; {smaller}" in out
    assert found["memory"] == [
        {"kind": "sensor", "memory_bytes": 1_000_000, "need_bytes": 2_500_000, "batch": 16, "fits": False}
        | {"largest_batch": 4, "changes": [{"change": "a smaller training.batch", "largest_batch": 4}]}
    ]


def test_card_shows_every_suffix_cut(call, simulator):
    out = call("model", "toy", "--input", "3x32x32", "--classes", "10")[1]
    assert simulator.cost_profile == ("the model toy", "toy", (3, 32, 32), 10)
    assert "toy: 15 parameters, 120 FLOPs forward per sample" in out
    found = json.loads(call("model", "toy", "--json")[1])
    assert simulator.cost_profile == ("the model toy", "toy", None, None)
    assert found["suffixes"] == [
        {"trained_layers": 1, "first_trained": "fc", "train_flops": 140},
        {"trained_layers": 2, "first_trained": "conv", "train_flops": 260},
    ]
    assert all(str(number) in out for number in (140, 260))
    assert call("model", "toy", "--input", "3x0")[2].startswith("error: --input: '3x0' is not a shape")
    assert call("model", "nothing") == (2, "", "error: model: must be 'toy', got 'nothing'\n")


def test_list_names_parts_with_their_first_line(call, monkeypatch):
    place = SimpleNamespace(load=lambda: None, summary="Says one thing.")
    monkeypatch.setattr("edgesim.cli.parts.places_of", lambda kind: {f"{kind}_a": place, "family:": place})
    out = call("list", "method")[1]
    assert "method_a" in out and "family:" in out and "Says one thing." in out
    assert "backend_a" not in out and "backend_a" in call("list")[1]
    assert call("list", "colour")[2].startswith("error: unknown kind 'colour' (known: data, partition")


def test_table_plot_and_diff(call, tmp_path):
    write_fake(tmp_path / "a")
    write_fake(tmp_path / "b", seed=4)
    write_fake(tmp_path / "c", accuracy=0.25)
    out = call("table", tmp_path / "a", tmp_path / "c")[1]
    assert out.count("fedavg") == 4 and "0.2500" in out  # two runs, in both tables
    code, out, _ = call("plot", tmp_path / "a", "--out", tmp_path / "figure")
    assert (code, out.split()) == (0, [str(tmp_path / "figure.png"), str(tmp_path / "figure.svg")])
    assert call("diff", tmp_path / "a", tmp_path / "b") == (0, "identical\n", "")
    code, out, _ = call("diff", tmp_path / "a", tmp_path / "c")
    assert code == 1 and all(text in out for text in ("evals", "accuracy", "0.625", "0.375", "0.6"))


def test_version(call):
    code, out, err = call("--version")
    assert (code, err) == (0, "") and out == f"edgesim {version('edgesim')}\n"


@pytest.mark.parametrize(
    ("words", "offered"),
    [("edgesim esti", ["estimate"]), ("edgesim list meth", ["method"])]
    + [("edgesim list method fedp", ["fedper", "fedpmt", "fedpns", "fedprox"]), ("edgesim plot --ti", ["--title"])],
)
def test_a_shell_completes_commands_options_and_names(words, offered):
    asked = {"_EDGESIM_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
    command = [sys.executable, "-m", "edgesim"]
    done = subprocess.run(command, env=os.environ | asked, capture_output=True, text=True, check=True)
    assert (done.stdout.split(), done.stderr) == (offered, "")


def test_help_loads_neither_torch_nor_pandas():
    code = "import sys\nsys.argv = ['edgesim', '--help']\nfrom edgesim.cli.main import main\n"
    check = "try: main()\nfinally: print([m for m in ('torch', 'pandas', 'seaborn') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code + check], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
    commands = ("run", "validate", "estimate", "schema", "list", "model", "table", "plot", "diff", "energy")
    assert all(name in done.stdout for name in commands)


def closed(done, accuracy=None):
    return {"round": done, "accuracy": accuracy, "now_s": 7200.0, "energy_j": 2500.0, "active_j": 400.0}


def line_in(log, limits, clock, nbytes=None):
    """Return a progress line that writes to a log, by a clock, while so many bytes of memory are in use."""
    console = Console(file=log, force_terminal=False, width=200)
    return ProgressLine(limits, console, clock_s=lambda: clock.now_s, memory_bytes=lambda: nbytes)


def test_progress_writes_a_line_every_tenth_of_the_rounds():
    log, clock = io.StringIO(), SimpleNamespace(now_s=100.0)
    progress = line_in(log, Limits(rounds=20), clock)
    for done in range(1, 21):
        clock.now_s += 2.0
        progress.round_closed(closed(done, accuracy=0.5 if done == 3 else None))
    progress.close()
    progress.close()
    lines = log.getvalue().splitlines()
    assert len(lines) == 10
    # 2 s a round, 18 rounds to go; then the last known accuracy and 16 rounds to go.
    assert lines[0] == "round 2/20  2 h  2.5 kJ (400 J above idle)  host time left 36 s"
    assert lines[1] == "round 4/20  accuracy 0.5000  2 h  2.5 kJ (400 J above idle)  host time left 32 s"


def test_progress_of_a_run_that_goes_on():
    """The 14 rounds of an earlier run took no time now, so they say nothing about those to come."""
    log, clock = io.StringIO(), SimpleNamespace(now_s=100.0)
    progress = line_in(log, Limits(rounds=20), clock)
    for done in (15, 16):
        clock.now_s += 3.0
        progress.round_closed(closed(done, 0.5) | {"before": 14})
    assert log.getvalue().splitlines() == [
        "goes on after round 14",
        "round 16/20  accuracy 0.5000  2 h  2.5 kJ (400 J above idle)  host time left 12 s",
    ]


def test_progress_says_the_memory_in_use():
    log = io.StringIO()
    line_in(log, Limits(rounds=2), SimpleNamespace(now_s=1.0), nbytes=12_300_000_000).round_closed(closed(1))
    assert "(400 J above idle)  memory 12.3 GB  host time left" in log.getvalue()


def test_the_start_of_a_run_does_not_count_for_the_rounds_to_come():
    """Python, data and processes take 50 s, and each round 2 s: after the second round 8 are left, 16 s."""
    log, clock = io.StringIO(), SimpleNamespace(now_s=100.0)
    progress = line_in(log, Limits(rounds=10), clock)
    clock.now_s += 50.0
    for done in (1, 2):
        clock.now_s += 2.0
        progress.round_closed(closed(done))
    first, second = log.getvalue().splitlines()
    assert first.endswith("host time left 7.8 min") and second.endswith("host time left 16 s")


def test_progress_on_a_terminal_is_taken_away_at_the_end():
    log = io.StringIO()
    progress = ProgressLine(Limits(), Console(file=log, force_terminal=True, width=200))
    progress.round_closed(closed(1, 0.25))
    progress.close()
    assert "round 1  accuracy 0.2500  2 h  2.5 kJ" in log.getvalue()
    assert log.getvalue().rstrip().endswith("\x1b[2K")


def test_progress_without_a_limit_or_terminal_is_silent():
    log = io.StringIO()
    progress = ProgressLine(Limits(), Console(file=log, force_terminal=False))
    progress.round_closed(closed(1))
    assert log.getvalue() == ""


def left_after(limits, *rounds):
    """Return what is said of the time left after rounds of 2 s of the host each."""
    log, clock = io.StringIO(), SimpleNamespace(now_s=100.0)
    progress = line_in(log, limits, clock)
    for info in rounds:
        clock.now_s += 2.0
        progress.round_closed(info)
    return [line.partition("idle)  ")[2] for line in log.getvalue().splitlines()]


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        # A tenth of the simulated time in the first round, so nine times 2 s are left; a line each tenth.
        (Limits(sim_time=72_000.0), "host time left 18 s"),
        (Limits(energy=5000.0), "host time left 2 s"),
        # What comes first, and is named.
        (Limits(rounds=4, sim_time=72_000.0), "host time left 6 s, by stop.rounds"),
        (Limits(rounds=4, sim_time=72_000.0, energy=5000.0), "host time left 2 s, by stop.energy"),
        (
            Limits(rounds=4, accuracy=0.9),
            "host time left at most 6 s, by stop.rounds, less if accuracy 0.9 comes first",
        ),
    ],
)
def test_time_left_is_that_of_the_rule_that_ends_the_run(limits, said):
    assert left_after(limits, closed(1)) == [said]


def test_a_target_alone_has_no_end_to_foresee():
    log = io.StringIO()
    progress = ProgressLine(
        Limits(accuracy=0.9), Console(file=log, force_terminal=True, width=200), memory_bytes=lambda: None
    )
    progress.round_closed(closed(1, 0.25))
    progress.close()
    assert "round 1  accuracy 0.2500  2 h  2.5 kJ (400 J above idle)  until accuracy 0.9" in log.getvalue()
    assert "time left" not in log.getvalue()


def test_time_left_of_a_run_that_goes_on_counts_from_there():
    """Simulated time was 7200 s when this process began to see rounds: only what came after took it time."""
    later = closed(16) | {"now_s": 10_800.0, "before": 14}
    said = left_after(Limits(sim_time=14_400.0), closed(15) | {"before": 14}, later)
    assert said[-1] == "host time left 2 s"  # 3600 s in the 2 s of a round, and 3600 s to go
