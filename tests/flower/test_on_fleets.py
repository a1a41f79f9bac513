"""Flower apps on fleets where things go wrong: what their strategies see, and that all joules are accounted for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from edgesim.config.load import load_scenario
from edgesim.core.errors import ConfigError, EdgesimError
from edgesim.reports.load import Run
from edgesim.runs.simulate import simulate
from tests.sizes import full

APPS = Path(__file__).parent / "apps"
LINK = {"name": "fixed", "up": "1 Mbit/s", "down": "1 Mbit/s", "latency": "100 ms"}
BOARD = {"cpu": {"flops_per_s": "1 GFLOP/s"}}


def run_of(app: str, config: dict[str, Any] | None = None, **world: Any) -> Run:
    """Run an app of tests on four boards, or on another fleet."""
    table = {"name": "flower", "path": str(APPS / app), "config": config or {}}
    power = {"name": "power", "idle": "1 W", "busy": "3 W", "transmit": "2 W"}
    fleet = {"fleet": [{**BOARD, "count": 4}], "network": LINK, "energy": power}
    return simulate(load_scenario({"app": table, **fleet, **world}))


def test_devices_that_crash_are_left_out_by_the_strategy():
    run = run_of("torch_fedavg", {"rounds": 4}, failures={"name": "crash", "probability": 0.3})
    assert {"ok", "crashed"} == set(run.jobs.outcome)
    assert run.manifest["status"] == "finished"
    assert len(run.rounds) == 4


@full
def test_a_battery_that_empties_ends_its_device_and_not_the_app():
    battery = {"name": "rechargeable", "capacity": "0.9 J", "charge": "0 W"}
    run = run_of("torch_fedavg", {"rounds": 3}, fleet=[{**BOARD, "count": 3}, {**BOARD, "battery": battery}])
    of_battery = run.jobs[run.jobs.device == 3]
    assert of_battery.outcome.tolist()[-1] == "battery"
    assert len(run.rounds) == 3
    assert run.rounds.used.iloc[-1] < run.rounds.used.iloc[0]


@full
def test_devices_that_are_away_are_asked_when_they_are_back():
    away = {"name": "bernoulli", "p": 0.6}
    run = run_of("torch_fedavg", {"rounds": 3}, availability=away, fleet=[{**BOARD, "count": 8}])
    assert run.manifest["status"] == "finished"
    assert 3 <= run.rounds.asked.iloc[0] < 16  # of eight devices, each to train and to test


@full
def test_shared_links_slow_an_app_down_and_change_no_answer():
    alone = run_of("torch_fedavg")
    shared = run_of("torch_fedavg", topology={"name": "star", "server_up": "1 Mbit/s", "server_down": "1 Mbit/s"})
    assert shared.rounds.now_s.iloc[-1] > alone.rounds.now_s.iloc[-1]
    assert shared.evals.accuracy.tolist() == alone.evals.accuracy.tolist()


def test_partial_work_is_refused():
    with pytest.raises(ConfigError, match=r"failures.*name: partial_work cannot reach into an app"):
        run_of("torch_fedavg", failures={"name": "partial_work", "probability": 0.5})


@full
def test_workers_give_the_same_tables_and_weights(tmp_path: Path):
    serial = run_of("torch_fedavg", {"rounds": 2})
    workers = run_of("torch_fedavg", {"rounds": 2}, backend={"name": "workers", "workers": 2})
    for table in ("jobs", "rounds", "evals", "metrics"):
        assert getattr(serial, table).equals(getattr(workers, table)), table


def test_an_app_that_cannot_be_loaded_is_one_line(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"^app.path: .* has no pyproject.toml, so it is no Flower app$"):
        run_of("nowhere")
    (tmp_path / "pyproject.toml").write_text(
        '[tool.flwr.app.components]\nserverapp = "gone.server:app"\nclientapp = "gone.client:app"\n'
    )
    with pytest.raises((ConfigError, EdgesimError), match=r"gone.*cannot be loaded"):
        run_of(str(tmp_path))


def test_the_folder_of_an_app_is_named_from_its_file(tmp_path: Path):
    (tmp_path / "app").symlink_to(APPS / "torch_fedavg")
    (tmp_path / "scenario.toml").write_text(
        'app = { name = "flower", path = "app", config = { rounds = 1 } }\n[[fleet]]\ncount = 3\nprofile = "laptop"\n'
    )
    scenario = load_scenario(tmp_path / "scenario.toml")
    assert len(simulate(scenario).rounds) == 1
    assert load_scenario(scenario.canonical()) == scenario
