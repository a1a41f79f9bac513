"""Small scenarios that tests change to taste."""

from __future__ import annotations

import gc
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import edgesim
from edgesim.execution.backends.null import NullBackend
from edgesim.files.user_cache import VARIABLE
from edgesim.learning.train.torch_settings import plain_torch
from edgesim.runs.assembly import assemble
from edgesim.runs.simulation import Silent, Simulation
from tests import remembered, sizes
from tests.calling import TINY
from tests.records.fake_runs import fake_run as fake_run  # a fixture

sizes.load_profile()

# The five capability levels of the FedPMT study; psi trains the full CNN-CIFAR10 on 500 samples in 10 s.
PSI = 7.3806e8
SPEEDS = (PSI / 5, PSI / 4, PSI / 3, PSI / 2, PSI)


def timing_scenario(**changes: Any) -> edgesim.Scenario:
    """A timing-only FedPMT fleet, one device a level, measured costs, ideal links."""
    base: dict[str, Any] = {
        "seed": 1,
        "partition": {"name": "sizes", "samples_per_device": 500},
        "model": "cnn_cifar10",
        "training": {"batch": 20, "lr": 0.05},
        "method": "fedavg",
        "backend": "null",
        "stop": {"rounds": 1},
        "fleet": [{"count": 1, "level": i + 1, "cpu": {"flops_per_s": s}} for i, s in enumerate(SPEEDS)],
    }
    return edgesim.load({**base, **changes})


def digits_scenario(**changes: Any) -> edgesim.Scenario:
    """A few seconds of real training on the embedded digits."""
    base: dict[str, Any] = {
        "seed": 3,
        "data": "digits",
        "partition": {"name": "iid"},
        "model": "cnn_digits",
        "training": {"batch": 16, "lr": 0.1},
        "network": {"name": "fixed", "up": {"uniform": ["1 Mbit/s", "4 Mbit/s"]}, "down": "8 Mbit/s", "latency": 0.02},
        "energy": {"name": "power", "idle": "1 W", "busy": "4 W", "transmit": "1 W", "receive": "0.5 W"},
        "selection": {"name": "uniform", "count": 4},
        "method": "fedavg",
        "stop": {"rounds": 3},
        "fleet": [
            {"count": 5, "level": 1, "cpu": {"flops_per_s": {"uniform": ["20 MFLOP/s", "40 MFLOP/s"]}}},
            {"count": 5, "level": 2, "cpu": {"flops_per_s": "100 MFLOP/s"}},
        ],
    }
    return edgesim.load({**base, **changes})


def simulate_null(scenario: edgesim.Scenario) -> Simulation:
    """Run a timing-only scenario in memory."""
    simulation = Simulation(assemble(scenario), NullBackend(), Silent())
    simulation.run()
    return simulation


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Look for no garbage among modules and tests, which stay: it takes longer than to load them.

    In what tests make it is looked for less often than Python does by itself.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(10_000)
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests that a run of this size is not for."""
    chosen = sizes.chosen(items)
    left_out = set(items).difference(chosen)
    config.hook.pytest_deselected(items=[item for item in items if item in left_out])
    items[:] = chosen


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Skip the tests that are left when the time of the run is up."""
    if time.time() > sizes.UNTIL_S:
        pytest.skip("time is up (EDGESIM_TEST_UNTIL)")


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep nothing in the user's own cache folder: all tests of a session share one that goes with it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session", autouse=True)
def on_one_thread() -> Iterator[None]:
    """Compute as a run does, also where a test plays only a part of one."""
    with plain_torch():
        yield


@pytest.fixture(scope="session", autouse=True)
def measured_once() -> Iterator[None]:
    """Price every network once, and not for every run that trains it; the same for reading the digits."""
    with remembered.costs_and_digits():
        yield


@pytest.fixture(autouse=True)
def ctrl_c() -> Iterator[None]:
    """Let Ctrl-C through to a test and to the processes it starts, also where the tests run in the background.

    A shell or a CI service may start them with the signal ignored, which processes inherit.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def timing() -> Callable[..., edgesim.Scenario]:
    """Give `timing_scenario` to a test."""
    return timing_scenario


@pytest.fixture
def digits() -> Callable[..., edgesim.Scenario]:
    """Give `digits_scenario` to a test."""
    return digits_scenario


def frames(simulation: Simulation) -> Mapping[str, Any]:
    """Return the tables of a simulation in memory."""
    return {name: table.frame() for name, table in simulation.tables.items()}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a scenario."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "scenario.toml").write_text(TINY)
    return tmp_path
