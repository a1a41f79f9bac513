"""What a session promises whoever works in it: the devices that it may not ask might as well not be there."""

from __future__ import annotations

from typing import Any

import pytest

from edgesim.config.plugins import plugins_of
from tests.contracts.support import METHODS, hardest, mixed_scenario, results_of, run, tried

# Arguments with which each shipped selection is tried on four devices, of which it must have a choice.
SELECTIONS: dict[str, dict[str, Any]] = {
    "all": {},
    "uniform": {"fraction": 0.5},
    "stratified": {"count": 2},
    "poisson": {"rate": 0.5},
    "fedcs": {"count": 3, "deadline": "30 s"},
    "oort": {"count": 2},
    "tifl": {"count": 2, "tiers": 2, "interval": 1},
    "power_of_choice": {"count": 2, "candidates": 3},
    "pow_d": {"count": 2, "candidates": 3},
    "bc": {"count": 2},
    "bn2": {"count": 2},
    "bc_bn2": {"count": 2, "candidates": 3},
    "bn2_c": {"count": 2, "upload": "1 s"},
    "norm_sampling": {"count": 2},
    "round_robin": {"count": 2},
    "proportional_fair": {"count": 2},
    "battery_aware": {"count": 2},
    "least_time": {"count": 2},
    "packet_error": {"count": 2},
    "importance_channel": {"count": 2},
}
RADIO = {"bandwidth": "1 MHz", "distance_m": {"uniform": [100, 900]}, "fading": "per_round"}
OF_THE_WORLD = "rounds"  # their joules are those of all devices


def as_in_a_small_fleet(**changes: Any) -> None:
    """Compare a session on the first four of six devices with one that has a fleet of these four for itself."""
    own = [] if changes.get("network", {}).get("name") == "cell" else ["network"]  # no links beside those of a cell
    fleet = [
        {key: value for key, value in block.items() if key in ("count", "level", "cpu", *own)}
        for block in mixed_scenario().canonical()["fleet"]
    ]
    devices = [[0, 3]]
    part = results_of(run(mixed_scenario(**changes, fleet=fleet, session=[{"name": "s", "devices": devices}])))
    whole = results_of(run(mixed_scenario(**changes, fleet=fleet[:3], session=[{"name": "s"}])))
    assert {name for name in whole if whole[name] != part[name]} <= {OF_THE_WORLD}


@pytest.mark.parametrize("name", tried(METHODS))
def test_a_method_sees_the_devices_of_its_session_alone(name):
    """Jobs, evaluations, metrics, weights and what devices keep are those of a fleet without the others."""
    as_in_a_small_fleet(method=name, protocol=hardest(name))


@pytest.mark.parametrize("name", plugins_of("selection"))
def test_a_selection_sees_the_devices_of_its_session_alone(name):
    """Whom it asks, and what follows from that, bit for bit."""
    network = "cell" if "cell" in plugins_of("selection")[name].needs else "wireless"
    selection = {"name": name, **SELECTIONS[name]}
    as_in_a_small_fleet(selection=selection, network={"name": network, **RADIO}, stop={"rounds": 4})
