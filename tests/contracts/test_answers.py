"""Every method: a run that is answered by another one is that run, bit for bit, and trains nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from edgesim.core.errors import ContractError
from edgesim.execution.result_cache import Answers
from edgesim.methods.fedavg import FedAvg
from edgesim.records.manifest import FINISHED
from edgesim.runs.assembly import assemble
from edgesim.runs.cache_identity import facts_of
from edgesim.runs.recording import _weights
from edgesim.runs.simulation import Silent, Simulation
from tests.contracts.support import (
    fingerprint,
    mixed_scenario,
    needs_of,
    tried,
)
from tests.contracts.test_backends import TROUBLE
from tests.contracts.test_checkpoint import CASES, trained
from tests.sizes import spread

__all__ = ["trained"]  # a fixture


def found(scenario: Any, answers: Answers | None) -> tuple[dict[str, Any], Simulation]:
    """Return tables and weights of a run, in the short, and the run."""
    parts = assemble(scenario)
    simulation = Simulation(parts, scenario.backend.value.open(parts.make_trainer), Silent(), None, answers)
    simulation.run()
    tables = {name: table.frame().to_csv() for name, table in simulation.tables.items()}
    weights = {which: sorted(arrays.items()) for which, arrays in _weights(simulation, FINISHED).items()}
    return {**tables, "weights": fingerprint(weights)}, simulation


@pytest.mark.parametrize(
    ("name", "protocol"), tried(CASES), ids=lambda each: each if isinstance(each, str) else each["name"]
)
def test_a_run_that_is_answered_is_the_run(
    name: str, protocol: dict[str, Any], tmp_path: Path, trained: list[int]
) -> None:
    """In trouble too; with other prices, where what the server does does not depend on them, nothing is trained."""
    changes = {
        "method": name,
        "protocol": protocol,
        "failures": TROUBLE[:2] if needs_of(name).peers else TROUBLE,
        "availability": {"name": "sessions", "on": "20 s", "off": "2 s"},
        "evaluation": {"every": 2, "personal": True},
        "stop": {"rounds": 4},
    }
    alone, _ = found(mixed_scenario(**changes), None)
    first, _ = found(mixed_scenario(**changes), Answers(tmp_path))
    assert alone == first
    trained.clear()
    assert found(mixed_scenario(**changes), Answers(tmp_path))[0] == first
    assert trained == []
    dear = {**changes, "energy": {"name": "power", "idle": "3 W", "busy": "9 W"}}
    replayed, _ = found(mixed_scenario(**dear), Answers(tmp_path))
    assert needs_of(name).clock or trained == []
    assert replayed == found(mixed_scenario(**dear), None)[0]


class Curious(FedAvg):
    """Reads a speed on the server without saying so."""

    def update_weights(self, updates: Any, setting: Any) -> Any:
        """Return the speeds of the devices."""
        return [setting.up_bps[update.device] for update in updates]


def test_facts_of_the_world_are_not_for_the_server() -> None:
    scenario = mixed_scenario(method=f"{__name__}:Curious")
    with pytest.raises(ContractError, match=r"Curious: reads setting\.up_bps on the server, but needs\.clock is not"):
        found(scenario, None)


@pytest.mark.parametrize("name", spread(["fedpns", "afd"], 1))
def test_plans_of_another_selection_are_not_taken(name: str, tmp_path: Path) -> None:
    """These methods plan from what was learned; in the first round all that they have learned is the same."""
    for selection in ("all", {"name": "uniform", "count": 2}, {"name": "uniform", "count": 3}):
        scenario = mixed_scenario(method=name, selection=selection, protocol="sync")
        assert found(scenario, Answers(tmp_path))[0] == found(scenario, None)[0]


@pytest.mark.parametrize(
    ("name", "change", "same"),
    [
        ("fedavg", {"energy": "none"}, True),
        ("fedavg", {"stop": {"rounds": 9}}, True),
        ("fedavg", {"selection": {"name": "uniform", "count": 2}}, True),
        ("fedavg", {"training": {"batch": 4, "lr": 0.1}}, False),
        ("fedavg", {"seed": 7}, False),
        ("fedavg", {"backend": {"name": "workers", "workers": 2}}, True),
        ("fedavg", {"backend": "cohort"}, False),
        ("fedavg", {"encoding": {"up": "float16"}}, False),
        ("fedad", {"energy": "none"}, False),
        ("fedad", {"stop": {"rounds": 9}}, True),
    ],
)
def test_what_learning_depends_on(name: str, change: dict[str, Any], same: bool) -> None:
    one, other = (facts_of(assemble(mixed_scenario(method=name, **more))) for more in ({}, change))
    assert (one == other) == same
