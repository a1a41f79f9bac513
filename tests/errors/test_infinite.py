"""No run counts as finished whose seconds or joules are infinite or not a number: one line names the key to blame."""

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
TOO_MUCH = 1e308

WRONG = {
    "cpu": ({"fleet": [{"cpu": SLOW}]}, "fleet.0.cpu: computing takes inf s on device 0 of fleet.0, must be finite"),
    "one of many": (
        {"fleet": [{"count": 3, "cpu": FAST}, {"count": 2, "cpu": SLOW}]},
        "fleet.1.cpu: computing takes inf s on device 3 of fleet.1, must be finite",
    ),
    "capacitance": ({"energy": {**CPU, "capacitance": 1e300}}, "energy: computing takes inf J on device 0 "),
    "idle": ({"energy": {**CPU, "idle": TOO_MUCH}}, "energy.idle: the power of "),
    "sleep": ({"energy": {**CPU, "sleep": TOO_MUCH}}, "energy.sleep: the power of "),
    "transmit": ({"energy": {**CPU, "transmit": TOO_MUCH}}, "energy.transmit: an upload takes inf J "),
    "receive": ({"energy": {**CPU, "receive": TOO_MUCH}}, "energy.receive: a download takes inf J "),
    "up": ({"network": {**LINKS, "up": 1e-304}}, "network.up: an upload takes inf s on device 0 of fleet.0, must be"),
    "down": ({"network": {**LINKS, "down": 1e-304}}, "network.down: a download takes inf s on device 0 "),
    "up, shared": ({"network": {**SHARED, "up": 1e-304}}, "network.up: an upload takes inf s on device 0 "),
    "topology": ({"network": SHARED, "topology": {"name": "star", "server_up": 1e-304}}, "topology: a transfer takes"),
    "per bit": ({"network": {**LINKS, "energy_per_bit": TOO_MUCH}}, "network.energy_per_bit: carrying the "),
    "server": ({"server": {"flops_per_s": 1e-320}}, "server.flops_per_s: a merge takes inf s of the server, must be"),
    "server, idle": ({"server": {"idle": TOO_MUCH, "busy": TOO_MUCH}}, "server.idle: the power of "),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_no_float_can_hold_is_refused(name):
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
        with pytest.raises(ConfigError, match=r"^network\.(up|down): an? (up|down)load takes inf s on device 0 "):
            simulate_null(timing_scenario(**peers, network=network))
    slow_hub = {"network": SHARED, "topology": {"name": "tree", "edge_servers": 2, "edge_up": 1e-304}}
    with pytest.raises(ConfigError, match=r"^network, topology: a transfer over shared links takes inf s, must be fin"):
        simulate_null(timing_scenario(**peers, **slow_hub))


@pytest.mark.parametrize("command", ["validate", "run"])
def test_it_is_one_line_and_leaves_nothing(here: Path, command):
    folder = ("--out", "mine") if command == "run" else ()
    code, out, err = call(command, "scenario.toml", "--set", "network.up=1e-304", *folder)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("error: network.up: an upload takes inf s on device 0 ") and not (here / "mine").exists()


def test_what_adds_up_to_infinity_only_in_time_is_refused_at_the_next_merge():
    """Each round takes 6e307 J of idle power, the third one more than there are."""
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


def test_the_largest_numbers_that_can_be_held_are_taken():
    """A round of 1e300 s is long, but a number."""
    simulation = simulate_null(timing_scenario(fleet=[{"cpu": {"flops_per_s": 7.3806e-291}}]))
    assert frames(simulation)["rounds"]["now_s"].tolist() == pytest.approx([1e300], rel=1e-9)
