"""Nothing runs whose seconds or joules could add up to more than a float holds: one line names the key to blame."""

from __future__ import annotations

import math
import warnings
from pathlib import Path

import numpy as np
import pytest

from edgesim.core.errors import ConfigError, LedgerError
from edgesim.world.energy.ledger import EnergyLedger
from tests.calling import call
from tests.conftest import frames, simulate_null, timing_scenario

FAST = {"frequency": "2 GHz", "flops_per_cycle": 4}
SLOW = {**FAST, "efficiency": 5e-324}
CPU = {"name": "cpu", "idle": "1 W"}
LINKS = {"name": "fixed", "up": "1 Mbit/s", "down": "1 Mbit/s"}
SHARED = {"name": "shared", "up": "1 Mbit/s", "down": "1 Mbit/s"}
TOO_MUCH = 1e100  # the largest value that a key takes

WRONG = {
    "cpu": (
        {"fleet": [{"cpu": SLOW}]},
        "fleet.0.cpu: computing on device 0 of fleet.0 takes inf s, must be at most 1e+100",
    ),
    "one of many": (
        {"fleet": [{"count": 3, "cpu": FAST}, {"count": 2, "cpu": SLOW}]},
        "fleet.1.cpu: computing on device 3 of fleet.1 takes inf s, must be at most 1e+100",
    ),
    "per byte": (
        {"fleet": [{"cpu": {**FAST, "per_byte": 1e99}}]},
        "fleet.0.cpu: computing on device 0 of fleet.0 takes ",
    ),
    "capacitance": ({"energy": {**CPU, "capacitance": 1e300}}, "energy: computing on device 0 of fleet.0 takes "),
    "idle": ({"energy": {**CPU, "idle": TOO_MUCH}}, "energy.idle: the power of "),
    "sleep": ({"energy": {**CPU, "sleep": TOO_MUCH}}, "energy.sleep: the power of "),
    "transmit": ({"energy": {**CPU, "transmit": TOO_MUCH}}, "energy.transmit: an upload on device 0 of fleet.0 takes "),
    "receive": ({"energy": {**CPU, "receive": TOO_MUCH}}, "energy.receive: a download on device 0 of fleet.0 takes "),
    "up": ({"network": {**LINKS, "up": 1e-304}}, "network.up: an upload on device 0 of fleet.0 takes inf s, must be"),
    "down": ({"network": {**LINKS, "down": 1e-304}}, "network.down: a download on device 0 of fleet.0 takes inf s"),
    "up, shared": ({"network": {**SHARED, "up": 1e-304}}, "network.up: an upload on device 0 of fleet.0 takes inf s"),
    "topology": ({"network": SHARED, "topology": {"name": "star", "server_up": 1e-304}}, "topology: a transfer takes"),
    "per bit": ({"network": {**LINKS, "energy_per_bit": TOO_MUCH}}, "network.energy_per_bit: carrying the "),
    "server": ({"server": {"flops_per_s": 1e-320}}, "server.flops_per_s: a merge of the server takes inf s, must be"),
    "server, bytes": ({"server": {"per_byte": 1e99}}, "server.per_byte: a merge of the server takes "),
    "server, tests": (
        {"server": {"flops_per_s": 1e-90, "test_samples": 10**9}},
        "server.test_samples: a test of the model takes ",
    ),
    "edge server": (
        {
            "network": SHARED,
            "topology": {"name": "tree", "edge_servers": 2},
            "edges": {"flops_per_s": 1e-320},
        },
        "edges.flops_per_s: a merge of an edge server takes inf s, must be",
    ),
    "server, idle": ({"server": {"idle": TOO_MUCH, "busy": TOO_MUCH}}, "server.idle: the power of "),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_added_up_is_refused(name):
    """Of the smallest and the largest values that a key takes; nothing is warned of besides."""
    changes, says = WRONG[name]
    base = {"fleet": [{"count": 2, "cpu": FAST}], "energy": CPU, "network": LINKS}
    with warnings.catch_warnings(), pytest.raises(ConfigError) as refused:
        warnings.simplefilter("error")
        simulate_null(timing_scenario(**{**base, **changes}))
    assert str(refused.value).startswith(says) and "\n" not in str(refused.value)


def test_peers_are_refused_too():
    """Their messages go from device to device."""
    peers = {"method": "dfedavg", "peers": "ring", "fleet": [{"count": 3, "cpu": FAST}]}
    for network in ({**LINKS, "up": 1e-304}, {**SHARED, "down": 1e-304}):
        with pytest.raises(
            ConfigError, match=r"^network\.(up|down): an? (up|down)load on device 0 of fleet.0 takes inf"
        ):
            simulate_null(timing_scenario(**peers, network=network))
    slow_hub = {"network": SHARED, "topology": {"name": "tree", "edge_servers": 2, "edge_up": 1e-304}}
    with pytest.raises(ConfigError, match=r"^network, topology: a transfer over shared links takes inf s, must be fin"):
        simulate_null(timing_scenario(**peers, **slow_hub))


@pytest.mark.parametrize("command", ["validate", "run"])
def test_it_is_one_line_and_leaves_nothing(here: Path, command):
    folder = ("--out", "mine") if command == "run" else ()
    code, out, err = call(command, "scenario.toml", "--set", "network.up=1e-304", *folder)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert (
        err.startswith("error: network.up: an upload on device 0 of fleet.0 takes inf s")
        and not (here / "mine").exists()
    )


def test_what_adds_up_to_infinity_only_in_time_is_refused_at_the_next_merge(monkeypatch: pytest.MonkeyPatch):
    """Each round takes 6e307 J of idle power, the third one more than there are."""
    monkeypatch.setattr("edgesim.core.limits.MOST_AMOUNT", math.inf)  # else it is refused before
    monkeypatch.setattr("edgesim.config.units.MOST_AMOUNT", math.inf)
    scenario = timing_scenario(
        fleet=[{"cpu": {"flops_per_s": 7.3806e8}}], energy={"name": "power", "idle": 6e306, "busy": 6e306},
        stop={"rounds": 9},
    )  # fmt: skip
    with pytest.raises(LedgerError, match=r"^after 30 s the run has spent energy_j inf.*, must be finite$"):
        simulate_null(scenario)


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_the_check_of_the_ledger_fires(wrong):
    """Of what is not a number no comparison holds, and infinity is as near to infinity as one could wish."""
    ledger = EnergyLedger(np.array([1.0]))
    ledger.check(5.0, 15.0, 10.0)
    for jobs_j, devices_j, horizon_s in ((wrong, 15.0, 10.0), (5.0, wrong, 10.0), (wrong, wrong, 10.0)):
        with pytest.raises(LedgerError):
            ledger.check(jobs_j, devices_j, horizon_s)
    ledger.charge(0, 0.0, wrong, 0.0, 1.0)
    assert not math.isfinite(ledger.joules(10.0, np.array([True])).energy_j)


def test_the_largest_amounts_are_taken():
    """A round of 1e99 s is long, but its joules and those of many more can be added up; of 1e101 s it is refused."""
    speed = 7.3806e9  # that makes a round of one second
    simulation = simulate_null(timing_scenario(fleet=[{"cpu": {"flops_per_s": speed * 1e-99}}]))
    assert frames(simulation)["rounds"]["now_s"].tolist() == pytest.approx([1e99], rel=1e-9)
    with pytest.raises(
        ConfigError, match=r"^fleet.0.cpu: computing on device 0 of fleet.0 takes 1e\+101 s, must be at "
    ):
        simulate_null(timing_scenario(fleet=[{"cpu": {"flops_per_s": speed * 1e-101}}]))


def test_no_value_is_above_what_can_be_added_up():
    with pytest.raises(ConfigError, match=r"^energy.idle: must be at most 1e\+100 W, got '1e101 W'"):
        timing_scenario(energy={"name": "power", "idle": "1e101 W", "busy": "1e101 W"})
