"""A simulation that goes on while its answers are computed, in whatever order, is the one that waits for each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
import pytest

import edgesim
from edgesim.core.backend import FuturesBackend, LocalTraining, Scoring, Work
from edgesim.execution.backends.serial import SerialBackend
from edgesim.runs.assembly import assemble
from edgesim.runs.simulation import Silent, Simulation
from tests.contracts.support import (
    COORDINATORS,
    METHODS,
    PLUGINS,
    UNDISTURBED,
    digits_scenario,
    hardest,
    mixed_scenario,
    results_of,
    run,
    tried,
)

TROUBLE = [{"name": "crash", "probability": 0.2}, {"name": "partial_work", "probability": 0.3}]


class Ahead(SerialBackend, FuturesBackend):
    """Does nothing before somebody waits, and then the piece of work that came last, or first, in turns."""

    rounds_ahead = 16

    def __init__(self, trainer: Any) -> None:
        super().__init__(trainer)
        self.held: list[tuple[int, Work]] = []
        self.most_held = 0
        self.collected = 0

    def submit(self, number: int, work: Work) -> None:
        """Take a piece of work."""
        self.held.append((number, work))
        self.most_held = max(self.most_held, len(self.held))

    def collect(self, wait: bool) -> Sequence[tuple[int, Any]]:
        """Return one piece of work, if somebody waits."""
        if not wait or not self.held:
            return []
        self.collected += 1
        number, work = self.held.pop(-(self.collected % 2))
        if isinstance(work, LocalTraining):
            return [(number, self.train([work.assignment])[0])]
        return [(number, self.evaluate(work.model) if isinstance(work, Scoring) else
                 self.evaluate_personal(work.models))]  # fmt: skip


CASES = [
    (name, hardest(name)) for name in (*METHODS, f"{PLUGINS}:Greedy", f"{PLUGINS}:Asking") if name not in UNDISTURBED
]
CASES += [("fedasync", COORDINATORS["buffered"]), ("fedbuff", COORDINATORS["buffered"])]


@pytest.mark.parametrize(
    ("name", "protocol"), tried(CASES), ids=lambda each: each if isinstance(each, str) else each["name"]
)
def test_whoever_goes_on_without_answers_comes_to_the_same(name: str, protocol: Any) -> None:
    scenario = mixed_scenario(
        method=name,
        protocol=protocol,
        failures=TROUBLE,
        availability={"name": "sessions", "on": "20 s", "off": "2 s"},
        evaluation={"every": 1, "personal": True},
        stop={"rounds": 4},
    )
    assert results_of(run(scenario, Ahead)) == results_of(run(scenario))


def test_it_does_go_on_and_a_stop_rule_does_not() -> None:
    """Several updates of an asynchronous run are ready at a time; at a target each score is waited for."""
    asynchronous = {"method": "fedasync", "protocol": {"name": "buffered", "buffer": 1, "concurrency": 4}}
    ahead = run(mixed_scenario(**asynchronous, stop={"rounds": 12}), Ahead)
    assert ahead.learner.backend.most_held > 4  # type: ignore[attr-defined]
    target = {"rounds": 12, "accuracy": 0.12}
    runs = [run(mixed_scenario(**asynchronous, stop=target), backend) for backend in (Ahead, None)]
    assert results_of(runs[0]) == results_of(runs[1])
    assert runs[0].rounds.stop_reason == runs[1].rounds.stop_reason == "accuracy 0.12 reached"


class Broken(Ahead):
    """Cannot go on after some pieces of work."""

    fails: BaseException = KeyboardInterrupt()

    def collect(self, wait: bool) -> Sequence[tuple[int, Any]]:
        """Return one piece of work, or break off."""
        if self.collected == 15:
            raise self.fails
        return super().collect(wait)


def interrupted(scenario: edgesim.Scenario) -> Simulation:
    parts = assemble(scenario)
    simulation = Simulation(parts, Broken(parts.make_trainer("cpu")), Silent())
    with pytest.raises(KeyboardInterrupt):
        simulation.run()
    return simulation


def test_an_interrupted_run_is_told_up_to_its_newest_answers() -> None:
    """The tables, the devices' too, and the final weights are those of a run of so many rounds."""
    changes = {"method": "fedavg", "selection": {"name": "uniform", "count": 3}}
    simulation = interrupted(digits_scenario(**changes, stop={"rounds": 12}))
    settled = simulation.rounds.settled
    assert 0 < settled < simulation.session.round
    whole = run(digits_scenario(**changes, stop={"rounds": settled}))
    for name, table in simulation.tables.items():
        pd.testing.assert_frame_equal(table.frame(committed_only=True), whole.tables[name].frame())
    pd.testing.assert_frame_equal(pd.DataFrame(simulation.devices(finished=False)), pd.DataFrame(whole.devices()))
    final = simulation.learner.graph.value(simulation.learner.saved_models()["final"])
    for kind, tensors in whole.learner.weights().items():
        for tensor_name, tensor in tensors.items():
            assert (final[kind][tensor_name] == tensor).all()
