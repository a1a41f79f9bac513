"""A run that was cut off and goes on from its checkpoint is the one that was not, bit for bit, for every method."""

from __future__ import annotations

from typing import Any

import pytest

from edgesim.execution.checkpoint import Checkpoint
from edgesim.learning.train.trainer import Trainer
from edgesim.runs.assembly import assemble
from edgesim.runs.simulation import Silent, Simulation
from tests.contracts.support import (
    COORDINATORS,
    METHODS,
    PLUGINS,
    UNDISTURBED,
    hardest,
    mixed_scenario,
    results_of,
    run,
    tried,
)

ALWAYS_S = 1e-9  # every merge comes later than that after the one before
TROUBLE = [{"name": "crash", "probability": 0.2}, {"name": "partial_work", "probability": 0.3}]


def resumed(scenario: Any, where: Checkpoint) -> Simulation:
    """Return a simulation that has run with a checkpoint, whose file stays as no run folder is written."""
    parts = assemble(scenario)
    simulation = Simulation(parts, scenario.backend.value.open(parts.make_trainer), Silent(), where)
    simulation.run()
    return simulation


@pytest.fixture
def trained(monkeypatch):
    """Return the ids of the jobs that were trained, in order."""
    jobs: list[int] = []
    really_run = Trainer.run
    monkeypatch.setattr(Trainer, "run", lambda self, given: [jobs.append(given.job), really_run(self, given)][1])
    return jobs


CASES = [
    (name, hardest(name)) for name in (*METHODS, f"{PLUGINS}:Greedy", f"{PLUGINS}:Asking") if name not in UNDISTURBED
]
CASES += [(f"{PLUGINS}:{name}", COORDINATORS["buffered"]) for name in ("Proximal", "Delivered")]


@pytest.mark.parametrize(
    ("name", "protocol"), tried(CASES), ids=lambda each: each if isinstance(each, str) else each["name"]
)
def test_a_run_goes_on_as_if_it_had_not_been_cut_off(name, protocol, tmp_path, trained):
    """Tables, weights and memories are equal, and no job is trained twice; so too if devices fail and leave."""
    changes = {
        "method": name,
        "protocol": protocol,
        "failures": TROUBLE,
        "availability": {"name": "sessions", "on": "20 s", "off": "2 s"},
        "evaluation": {"every": 2, "personal": True},
    }
    whole = mixed_scenario(**changes, stop={"rounds": 5})
    expected, jobs = results_of(run(whole)), trained.copy()
    trained.clear()
    checkpoint = Checkpoint(tmp_path / "checkpoint", ALWAYS_S, {})
    resumed(mixed_scenario(**changes, stop={"rounds": 3}), checkpoint)
    before = trained.copy()
    assert results_of(resumed(whole, checkpoint)) == expected
    assert sorted(trained) == sorted(jobs)
    assert 0 < len(before) < len(jobs)
