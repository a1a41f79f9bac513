"""Batteries, memory, frequencies and slow-downs of devices, in the event loop."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import edgesim
from edgesim.core.errors import ConfigError
from edgesim.runs.assembly import assemble
from tests.conftest import digits_scenario, frames, simulate_null, timing_scenario
from tests.engine.spent import charged_j
from tests.sizes import examples

POWER = {"name": "power", "idle": "2 W", "busy": "5 W"}
TEN_SECONDS = 7.3806e8  # FLOP/s with which a device trains CNN-CIFAR10 on 500 samples in 10 s


def one_kind(count=1, *, network="ideal", **block):
    """Return what a scenario of equal devices needs to change."""
    return {"fleet": [{"count": count, "cpu": {"flops_per_s": TEN_SECONDS}, **block}], "network": network}


# --- batteries ----------------------------------------------------------------------------------------------


def test_a_battery_that_empties_in_mid_job():
    """20 J at 5 W last 4 s of the 10: outcome battery, exactly the capacity is drawn, then the device is off."""
    scenario = timing_scenario(**one_kind(battery={"capacity": "20 J"}), energy=POWER, stop={"rounds": 3})
    simulation = simulate_null(scenario)
    job = frames(simulation)["jobs"].iloc[0]
    assert (job["outcome"], job["end_s"], job["compute_s"]) == ("battery", pytest.approx(4), pytest.approx(4))
    assert job["compute_j"] == pytest.approx(3 * 4)
    assert charged_j(simulation.ledger, simulation.session.now_s) == pytest.approx(20)
    assert "no device can take part any more" in simulation.rounds.stop_reason


def test_it_takes_part_again_only_after_charging():
    """Charging at 8 W from second 100 to 200: the restart level of 4 J is reached at 100.5 s, not before."""
    battery = {"capacity": "20 J", "charge": "8 W", "windows": [["100 s", "200 s"]]}
    scenario = timing_scenario(**one_kind(battery=battery), energy=POWER, stop={"rounds": 2})
    jobs = frames(simulate_null(scenario))["jobs"]
    assert jobs["outcome"].tolist() == ["battery", "ok"]
    assert jobs["sent_s"].tolist() == pytest.approx([0, 100 + 0.2 * 20 / 8])


def test_a_merge_goes_on_without_the_dead():
    """Of two kinds one dies in mid-round: it counts as a completion without an update, and is not asked again."""
    fleet = [
        {"count": 2, "cpu": {"flops_per_s": TEN_SECONDS}},
        {"count": 2, "cpu": {"flops_per_s": TEN_SECONDS}, "battery": {"capacity": "20 J"}},
    ]
    tables = frames(simulate_null(timing_scenario(fleet=fleet, energy=POWER, stop={"rounds": 2})))
    assert tables["rounds"]["asked"].tolist() == [4, 2]
    assert tables["rounds"]["used"].tolist() == [2, 2]
    assert tables["jobs"].groupby("outcome").size().to_dict() == {"battery": 2, "ok": 4}


def test_dead_jobs_are_never_trained():
    """Real training: weights come from the devices that lived, and nothing is left waiting."""
    fleet = [
        {"count": 3, "cpu": {"flops_per_s": "100 MFLOP/s"}},
        {"count": 3, "cpu": {"flops_per_s": "100 MFLOP/s"}, "battery": {"capacity": "0.5 J"}},
    ]
    run = edgesim.run(digits_scenario(fleet=fleet, selection="all"))
    assert set(run.jobs["outcome"]) == {"ok", "battery"}
    assert run.rounds["used"].tolist() == [3, 3, 3]
    assert run.devices["idle_j"].iloc[3:6].tolist() == pytest.approx(
        (0.5 - run.devices["compute_j"].iloc[3:6] - run.devices["down_j"].iloc[3:6]).tolist()
    )


@settings(max_examples=examples(40), deadline=None)
@given(
    seed=st.integers(0, 1000),
    capacity_j=st.floats(5, 200),
    charge_w=st.one_of(st.just(0.0), st.floats(0.01, 12)),  # less takes too long to charge, and is refused
    deadline_s=st.one_of(st.none(), st.floats(2, 40)),
)
def test_no_battery_gives_more_than_it_had(seed, capacity_j, charge_w, deadline_s):
    """Random batteries and deadlines: the ledger closes, and nobody draws more than capacity and charge."""
    battery = {"capacity": capacity_j, "charge": charge_w, "windows": [["0 s", "1 h"]], "restart": 0.5}
    scenario = timing_scenario(
        seed=seed,
        fleet=[{"count": 4, "cpu": {"flops_per_s": {"log_uniform": [2e8, 2e9]}}, "battery": battery}],
        network={"name": "fixed", "up": {"log_uniform": [1e6, 1e8]}, "down": "10 Mbit/s", "latency": "10 ms"},
        energy={**POWER, "transmit": "1 W", "receive": "0.5 W"},
        protocol="sync" if deadline_s is None else {"name": "deadline", "deadline": deadline_s},
        stop={"rounds": 4, "sim_time": 3000},
    )
    simulation = simulate_null(scenario)  # checks the ledger
    drawn = simulation.devices()
    spent_j = sum(np.asarray(drawn[c])[:4] for c in ("down_j", "compute_j", "up_j", "idle_j"))
    assert (spent_j <= capacity_j + charge_w * simulation.session.now_s + 1e-6).all()
    jobs = frames(simulation)["jobs"]
    assert jobs["job"].is_unique
    assert set(jobs["outcome"]) <= {"ok", "late", "battery", "stopped"}


# --- memory -------------------------------------------------------------------------------------------------


def test_who_lacks_the_memory_is_refused():
    """A device with too little memory answers at once with no_memory, for nothing; the others go on."""
    fleet = [{"cpu": {"flops_per_s": TEN_SECONDS}}, {"cpu": {"flops_per_s": TEN_SECONDS}, "memory": "1 MB"}]
    tables = frames(simulate_null(timing_scenario(fleet=fleet, energy=POWER)))
    jobs = tables["jobs"].sort_values("device")
    assert jobs["outcome"].tolist() == ["ok", "no_memory"]
    assert jobs[["compute_s", "flops", "down_bytes", "compute_j"]].iloc[1].tolist() == [0, 0, 0, 0]
    assert tables["rounds"]["used"].tolist() == [1]


def test_a_fleet_that_nobody_fits_ends_with_the_reason():
    """Only an accuracy would stop it otherwise."""
    scenario = timing_scenario(**one_kind(3, memory="1 MB"), stop={"rounds": 10**9})
    simulation = simulate_null(scenario)
    assert "memory" in simulation.rounds.stop_reason
    assert simulation.session.round == 1


def test_fedpmt_gives_a_small_device_a_smaller_part():
    """A device of the full width whose memory only holds a narrower one trains that."""
    need = assemble(timing_scenario()).setting.cost_profile
    scenario = timing_scenario(method="fedpmt")
    parts = [j for j in frames(simulate_null(scenario))["jobs"].sort_values("device")["submodel"]]
    assert parts == ["last1", "last2", "last3", "last4", "last5"]
    needs = [need.memory_bytes(need_part, 20).total for need_part in map(part_of(need), range(1, 6))]
    assert needs == sorted(needs)
    fleet = [{"level": 5, "cpu": {"flops_per_s": TEN_SECONDS}, "memory": float(needs[2])}]
    jobs = frames(simulate_null(timing_scenario(method="fedpmt", fleet=fleet)))["jobs"]
    assert (jobs["outcome"].tolist(), jobs["submodel"].tolist()) == (["ok"], ["last3"])


def part_of(cost_profile):
    """Return a function from a number of last layers to the part that trains them."""
    from edgesim.core.task import Submodel

    return lambda count: Submodel(frozen=frozenset(cost_profile.layer_names[:-count]))


# --- frequencies and slow-downs -----------------------------------------------------------------------------


def cpu_scenario(governor, *, deadline_s=26.5, static=0.0, **changes):
    """One CPU of 0.2 to 2 GHz, 4 FLOPs a cycle, 2 cores, on CNN-CIFAR10 with 500 samples."""
    cpu = {"frequency": "2 GHz", "min_frequency": "0.2 GHz", "cores": 2, "flops_per_cycle": 4, "governor": governor}
    return timing_scenario(
        fleet=[{"cpu": cpu}],
        energy={"name": "cpu", "capacitance": 1e-27, "static": static},
        protocol={"name": "deadline", "deadline": deadline_s},
        **changes,
    )


CYCLES = 14_761_200 * 500 / (4 * 2)  # on each core


@pytest.mark.parametrize(
    ("governor", "static", "hz"),
    [
        ("max", 0.0, 2e9),
        ({"name": "fixed", "frequency": "1 GHz"}, 0.0, 1e9),
        ("just_in_time", 0.0, CYCLES / 3.0),
        ("energy_optimal", 2.0, (2.0 / (2 * 1e-27 * 2)) ** (1 / 3)),
        ("just_in_time", 2.0, (2.0 / (2 * 1e-27 * 2)) ** (1 / 3)),
    ],
)
def test_governors_choose_time_and_energy(governor, static, hz):
    """Seconds are cycles / f and joules (kappa f^3 cores + static) x seconds, for the frequency of the formula."""
    job = frames(simulate_null(cpu_scenario(governor, deadline_s=3.0, static=static)))["jobs"].iloc[0]
    assert job["outcome"] == "ok"
    assert job["compute_s"] == pytest.approx(CYCLES / hz)
    assert job["compute_j"] == pytest.approx((1e-27 * hz**3 * 2 + static) * CYCLES / hz)


def test_just_in_time_meets_the_deadline_with_links():
    """Communication leaves less time to compute: the job ends at the deadline, and is in time."""
    network = {"name": "fixed", "up": "20 Mbit/s", "down": "20 Mbit/s", "latency": "50 ms"}
    tables = frames(simulate_null(cpu_scenario("just_in_time", deadline_s=4.0, network=network)))
    assert tables["jobs"]["outcome"].tolist() == ["ok"]
    assert tables["rounds"]["now_s"].tolist() == pytest.approx([4.0], abs=1e-9)


def test_slow_downs_stretch_time_and_energy(tmp_path):
    """Half speed for 10 s, then full: 10 s of computing take 15, and busy watts flow all that time."""
    series = tmp_path / "speed.csv"
    series.write_text("time_s,speed\n0,0.5\n10,1\n")
    load = {"name": "replay", "file": str(series), "repeat": False}
    jobs = frames(simulate_null(timing_scenario(**one_kind(), energy=POWER, slowdown=load)))["jobs"]
    assert jobs["compute_s"].tolist() == pytest.approx([15])
    assert jobs["compute_j"].tolist() == pytest.approx([3 * 15])


CROWDED = {"network": {"name": "shared", "up": "1 Gbit/s", "down": "4 Mbit/s"}}
CROWDED |= {"topology": {"name": "star", "server_up": "4 Mbit/s"}}  # two downloads take twice as long as one


def test_slow_downs_over_shared_links_count_from_when_computing_starts(tmp_path):
    """Half speed from second 6 on: a download alone would end at 4.5 s, both end at 9.1 s, and 10 s of work take 20."""
    series = tmp_path / "speed.csv"
    series.write_text("time_s,speed\n0,1\n6,0.5\n")
    load = {"name": "replay", "file": str(series), "repeat": False}
    jobs = frames(simulate_null(timing_scenario(**{**one_kind(2), **CROWDED}, energy=POWER, slowdown=load)))["jobs"]
    assert (jobs["down_s"] > 9).all()
    assert jobs["compute_s"].tolist() == pytest.approx([20, 20])
    assert jobs["compute_j"].tolist() == pytest.approx([3 * 20, 3 * 20])


def test_slower_work_crashes_after_the_same_share_of_it(tmp_path):
    """Whatever the speed turns out to be when computing starts."""
    series = tmp_path / "speed.csv"
    series.write_text("time_s,speed\n0,1\n6,0.5\n")
    load = {"name": "replay", "file": str(series), "repeat": False}
    crash = {"name": "crash", "probability": 1.0, "phase": "training"}
    alike, slower = (
        frames(simulate_null(timing_scenario(**{**one_kind(2), **CROWDED}, failures=crash, **more)))["jobs"]
        for more in ({}, {"slowdown": load})
    )
    alike, slower = (jobs.sort_values("device").reset_index() for jobs in (alike, slower))
    assert set(slower["outcome"]) == {"crashed"}
    assert slower["compute_s"].tolist() == pytest.approx((2 * alike["compute_s"]).tolist())
    assert slower["flops"].tolist() == pytest.approx(alike["flops"].tolist())


def test_slow_downs_do_not_depend_on_who_else_is_asked():
    """The first three devices compute for as long alone as among nine, round by round."""
    noise = {"name": "log_normal", "sigma": 0.5}
    few, many = (
        frames(simulate_null(timing_scenario(**one_kind(n), slowdown=noise, stop={"rounds": 3})))["jobs"]
        for n in (3, 9)
    )
    seconds = [table.set_index(["round", "device"])["compute_s"].sort_index() for table in (few, many)]
    assert seconds[0].tolist() == seconds[1].loc[seconds[0].index].tolist()
    assert seconds[0].nunique() == 9


def test_a_profile_fills_a_block():
    """A named device of the catalogue, with one key of its own."""
    scenario = timing_scenario(fleet=[{"profile": "raspberry_pi_4", "count": 3, "level": 1}])
    block = scenario.fleet[0]
    assert (block.name, block.count, block.energy.name) == ("raspberry_pi_4", 3, "power")
    assert edgesim.load(scenario.canonical()) == scenario
    jobs = frames(simulate_null(scenario))["jobs"]
    assert (jobs["compute_j"] > 0).all()


def test_an_unknown_profile_is_refused():
    with pytest.raises(ConfigError, match=r"raspberry_pi_4"):
        timing_scenario(fleet=[{"profile": "raspberry_pi4"}])
