"""Asynchronous tiers against schedules on paper, with devices that fail, leave, or come late."""

from __future__ import annotations

import numpy as np
import pytest

import edgesim
from edgesim.core.errors import ConfigError
from edgesim.execution.backends.null import NullBackend
from edgesim.runs.assembly import assemble
from edgesim.runs.simulation import Silent, Simulation
from edgesim.runs.training import assemble_all
from tests.conftest import PSI, digits_scenario, frames, simulate_null, timing_scenario
from tests.engine.trees import tree


def tiers(*seconds, rounds=4, count=2, **changes):
    """Return a scenario with a tier of `count` devices for each of these seconds of a job."""
    fleet = [{"count": count, "cpu": {"flops_per_s": PSI * 10 / s}} for s in seconds]
    protocol = {"name": "tiers", "tiers": len(seconds)}
    given = {"fleet": fleet, "method": {"name": "fedat", "mu": 0.0}, "protocol": protocol, "stop": {"rounds": rounds}}
    return timing_scenario(**{**given, **changes})


def test_a_slow_tier_and_a_fast_one():
    """Jobs of 25 s and of 10 s: two rounds of the slow tier beside five of the fast one, which is first at 50 s."""
    found = frames(simulate_null(tiers(25, 10, rounds=7)))
    rounds, jobs = found["rounds"], found["jobs"]
    assert rounds["now_s"].tolist() == pytest.approx([10, 20, 25, 30, 40, 50, 50])
    assert rounds["staleness_mean"].tolist() == [0, 0, 2, 1, 0, 0, 3]
    assert rounds["used"].tolist() == [2] * 7 and set(rounds["closed_by"]) == {"tier"}
    done = jobs[jobs["outcome"] == "ok"]
    assert done.groupby("device").size().tolist() == [2, 2, 5, 5]
    assert done[done["device"] < 2]["base_version"].tolist() == [0, 0, 3, 3]


def test_tiers_are_equally_large_by_expected_seconds():
    """Seven devices in three tiers: 3, 2 and 2. The links count as much as the computation."""
    fleet = [{"cpu": {"flops_per_s": PSI / s}} for s in (7, 1, 5, 3, 2, 6, 4)]
    scenario = tiers(1, fleet=fleet, protocol={"name": "tiers", "tiers": 3})
    tier = assemble(scenario).setting.tier
    assert tier is not None and tier.tolist() == [2, 0, 1, 0, 0, 2, 1]
    slow = {"name": "fixed", "up": "1 kbit/s", "down": "8 Mbit/s"}
    fleet = [{"cpu": {"flops_per_s": PSI}, "network": slow}, {"cpu": {"flops_per_s": PSI / 9}}]
    tier = assemble(tiers(1, fleet=fleet, protocol={"name": "tiers", "tiers": 2})).setting.tier
    assert tier is not None and tier.tolist() == [1, 0]


def test_the_selection_chooses_within_a_tier():
    jobs = frames(simulate_null(tiers(25, 10, count=5, selection={"name": "uniform", "count": 2})))["jobs"]
    at_once = jobs.assign(tier=jobs["device"] // 5).groupby(["sent_s", "tier"]).size()
    assert set(at_once) == {2} and at_once.loc[0.0].tolist() == [2, 2]


def test_one_tier_is_sync():
    given = {"selection": {"name": "uniform", "count": 3}, "backend": "null"}
    one = digits_scenario(**given, method={"name": "fedat", "mu": 0.0}, protocol={"name": "tiers", "tiers": 1})
    ours, theirs = (frames(simulate_null(each)) for each in (one, digits_scenario(**given)))
    assert ours["jobs"].equals(theirs["jobs"])
    assert ours["rounds"].drop(columns="closed_by").equals(theirs["rounds"].drop(columns="closed_by"))


def test_a_tier_without_the_memory_is_left_alone():
    """Its refused jobs are counted in the next round of the other tier, and make none of their own."""
    fleet = [{"count": 2, "cpu": {"flops_per_s": PSI * 10 / s}} for s in (25, 10)]
    found = frames(simulate_null(tiers(25, 10, rounds=2, fleet=[{**fleet[0], "memory": "1 kB"}, fleet[1]])))
    assert found["rounds"]["now_s"].tolist() == pytest.approx([10, 20])
    assert found["rounds"]["asked"].tolist() == [4, 4] and found["rounds"]["used"].tolist() == [2, 2]


def test_a_run_in_which_nothing_can_come_ends():
    fleet = [{"count": 2, "memory": "1 kB", "cpu": {"flops_per_s": PSI}}]
    simulation = simulate_null(tiers(1, fleet=fleet, protocol={"name": "tiers", "tiers": 2}))
    assert "memory" in str(simulation.rounds.stop_reason)
    crash = [{"name": "crash", "probability": 1.0}]
    simulation = simulate_null(tiers(25, 10, rounds=5000, failures=crash))
    assert simulation.rounds.stop_reason == "1000 rounds in a row brought no update"


def test_devices_that_leave_and_come():
    """Each tier goes on with the devices that are there, and the run with any tier that can be asked."""
    there = {"name": "sessions", "on": "40 s", "off": "30 s"}
    found = frames(simulate_null(tiers(25, 10, rounds=40, availability=there)))
    assert len(found["rounds"]) == 40
    assert set(found["jobs"]["outcome"]) >= {"ok", "offline"}
    assert set(found["jobs"]["device"]) == {0, 1, 2, 3}
    assert (np.diff(found["rounds"]["now_s"]) >= 0).all()


def test_what_a_restart_of_the_server_loses():
    """A restart after the first device of a tier has delivered, and before the second has."""
    fleet = [{"cpu": {"flops_per_s": PSI * 10 / s}} for s in (10, 40)]
    restart = [{"name": "server_restart", "at": ["15 s"]}]
    found = frames(simulate_null(tiers(1, fleet=fleet, rounds=2, failures=restart)))
    assert found["jobs"]["outcome"].tolist()[:2] == ["lost", "ok"]
    assert found["rounds"]["used"].tolist()[0] == 1


def test_sessions_have_tiers_of_their_own_devices():
    """Two sessions of four devices each. Device 3 is the slowest of the first, and device 4 that of the second."""
    fleet = [{"cpu": {"flops_per_s": PSI * 10 / s}} for s in (1, 2, 3, 4, 9, 8, 7, 6)]
    own = [{"name": name, "devices": [[k, k + 3]]} for name, k in (("a", 0), ("b", 4))]
    scenario = tiers(1, fleet=fleet, protocol={"name": "tiers", "tiers": 2}, session=own)
    parts = assemble_all(scenario)
    found = [each.setting.tier for each in parts]
    assert [each.tolist() for each in found if each is not None] == [[0, 0, 1, 1, 0, 0, 0, 0], [0, 0, 0, 0, 1, 1, 0, 0]]
    simulation = Simulation(parts[0], NullBackend(), Silent(), others=[(parts[1], NullBackend())])
    simulation.run()
    assert [len(each.tables["rounds"]) for each in simulation.trainings] == [4, 4]


def test_edge_servers_are_refused():
    why = r"protocol.name: tiers divides the devices of one server, found edge servers"
    with pytest.raises(ConfigError, match=why):
        assemble(edgesim.load(tree({}, 2, protocol={"name": "tiers", "tiers": 1})))


def test_more_tiers_than_devices():
    with pytest.raises(ConfigError, match=r"protocol.tiers: must be at most the 4 devices, found 5"):
        assemble(tiers(25, 10, protocol={"name": "tiers", "tiers": 5}))
