"""Joules of hand-made schedules, and a ledger that closes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgesim.core.errors import LedgerError
from edgesim.world.energy.ledger import EnergyLedger
from edgesim.world.fleet import build_fleet
from tests.conftest import frames, simulate_null, timing_scenario
from tests.engine.spent import charged_j
from tests.sizes import examples

POWER = {"name": "power", "idle": "2 W", "busy": "5 W", "transmit": "1 W", "receive": "0.5 W"}
LINK = {"name": "fixed", "up": "1 Mbit/s", "down": "4 Mbit/s", "latency": "0.1 s"}
BYTES = 4 * 567_858  # CNN-CIFAR10


def one_device(**changes):
    """A device of 738.06 MFLOP/s that trains CNN-CIFAR10 on 500 samples in 10 s."""
    fleet = [{"count": 1, "cpu": {"flops_per_s": 7.3806e8}}]
    return timing_scenario(fleet=fleet, network=LINK, energy=POWER, **changes)


def test_one_job_by_hand():
    """Receive 0.5 W and transmit 1 W while bits flow, computing adds 5 - 2 W, idle 2 W all the time."""
    simulation = simulate_null(one_device())
    tables = frames(simulation)
    job, merge = tables["jobs"].iloc[0], tables["rounds"].iloc[0]
    down_air_s, up_air_s = 8 * BYTES / 4e6, 8 * BYTES / 1e6
    assert job["down_s"] == pytest.approx(0.1 + down_air_s)
    assert job["up_s"] == pytest.approx(0.1 + up_air_s)
    assert job["end_s"] == pytest.approx(0.2 + down_air_s + 10 + up_air_s)
    assert job["down_j"] == pytest.approx(0.5 * down_air_s)
    assert job["compute_j"] == pytest.approx(3 * 10)
    assert job["up_j"] == pytest.approx(1 * up_air_s)
    active_j = job["down_j"] + job["compute_j"] + job["up_j"]
    assert merge["total_energy_j"] == pytest.approx(active_j + 2 * job["end_s"])
    assert simulation.devices()["busy_s"].tolist() == pytest.approx([job["end_s"], 0])  # the server's is the last


def test_capacitance_model():
    """kappa f^2 joules a cycle and core: 1e-28 x (1.5e9)^2 x 4 cores x 1.5e9 x 10 s, on top of idle."""
    cpu = {"frequency": "1.5 GHz", "cores": 4, "flops_per_cycle": 8, "efficiency": 7.3806e8 / (1.5e9 * 4 * 8)}
    energy = {"name": "cpu", "capacitance": 1e-28, "idle": "0.5 W"}
    simulation = simulate_null(timing_scenario(fleet=[{"cpu": cpu}], energy=energy))
    tables = frames(simulation)
    assert tables["jobs"]["compute_s"].tolist() == pytest.approx([10])
    assert tables["jobs"]["compute_j"].tolist() == pytest.approx([1e-28 * 1.5e9**2 * 1.5e9 * 10 * 4])
    assert simulation.devices()["idle_j"][0] == pytest.approx(0.5 * 10)


@pytest.mark.parametrize("deadline_s", [0.05, 0.5, 3.0, 14.9, 20.0])
def test_an_aborted_job_is_charged_what_it_spent(deadline_s):
    """A cancelled job is charged the seconds, bytes, FLOPs and joules up to the deadline, phase by phase."""
    protocol = {"name": "deadline", "deadline": deadline_s}
    tables = frames(simulate_null(one_device(protocol=protocol)))
    job = tables["jobs"].iloc[0]
    down_s, up_s = 0.1 + 8 * BYTES / 4e6, 0.1 + 8 * BYTES / 1e6
    spent = [
        min(deadline_s, down_s),
        float(np.clip(deadline_s - down_s, 0, 10)),
        float(np.clip(deadline_s - down_s - 10, 0, up_s)),
    ]
    assert job["outcome"] == "late"
    assert job[["down_s", "compute_s", "up_s"]].tolist() == pytest.approx(spent)
    assert job["compute_j"] == pytest.approx(3 * spent[1])
    assert job["flops"] == pytest.approx(7.3806e8 * spent[1])
    down_air_s, up_air_s = max(0.0, spent[0] - 0.1), max(0.0, spent[2] - 0.1)  # no bit flows during the latency
    assert job["down_bytes"] == pytest.approx(BYTES * down_air_s / (down_s - 0.1), abs=1.001)
    assert job["up_bytes"] == pytest.approx(BYTES * up_air_s / (up_s - 0.1), abs=1.001)
    assert (job["down_j"], job["up_j"]) == pytest.approx((0.5 * down_air_s, up_air_s))


def test_simulated_time_ends_a_run_in_mid_round():
    """At 25 s the job that started at 0 is still computing; it is charged up to there and named stopped."""
    scenario = timing_scenario(stop={"sim_time": 25}, energy=POWER)
    simulation = simulate_null(scenario)
    jobs = frames(simulation)["jobs"].sort_values("device")
    assert jobs["outcome"].tolist() == ["stopped", "stopped", "stopped", "ok", "ok"]
    assert jobs["compute_s"].tolist() == pytest.approx([25, 25, 25, 20, 10])
    assert charged_j(simulation.ledger, 25.0) == pytest.approx(5 * 2 * 25 + 3 * (25 * 3 + 20 + 10))


@settings(max_examples=examples(60), deadline=None)
@given(
    seed=st.integers(0, 10_000),
    devices=st.integers(1, 12),
    share=st.floats(0.1, 1.0),
    deadline_s=st.one_of(st.none(), st.floats(0.5, 200)),
    horizon_s=st.one_of(st.none(), st.floats(1, 500)),
)
def test_time_jobs_and_joules_add_up(seed, devices, share, deadline_s, horizon_s):
    """Random scenarios: time never runs back, every job ends once, work and joules add up."""
    scenario = timing_scenario(
        seed=seed,
        fleet=[{"count": devices, "cpu": {"flops_per_s": {"log_uniform": [1e8, 1e10]}}}],
        network={"name": "fixed", "up": {"log_uniform": [1e5, 1e8]}, "down": {"log_uniform": [1e6, 1e8]}, "latency": 0},
        energy={**POWER, "idle": {"uniform": [0, 2]}},
        selection={"name": "uniform", "fraction": share},
        protocol="sync" if deadline_s is None else {"name": "deadline", "deadline": deadline_s},
        stop={"rounds": 3, **({} if horizon_s is None else {"sim_time": horizon_s})},
    )
    simulation = simulate_null(scenario)
    tables = frames(simulation)
    jobs, rounds = tables["jobs"], tables["rounds"]
    assert rounds["now_s"].is_monotonic_increasing
    assert jobs["end_s"].is_monotonic_increasing
    assert jobs["job"].is_unique
    assert not simulation.session.running
    assert (jobs["end_s"] - jobs["sent_s"]).to_numpy() == pytest.approx(
        jobs[["down_s", "compute_s", "up_s"]].sum(axis=1).to_numpy()
    )
    devices_table = simulation.devices()
    spent_j = sum(float(np.sum(devices_table[c])) for c in ("down_j", "compute_j", "up_j", "idle_j"))
    assert spent_j == pytest.approx(charged_j(simulation.ledger, simulation.session.now_s), rel=1e-9)
    for _, own in jobs.groupby("device"):  # no device is in two jobs at once
        assert (own["sent_s"].to_numpy()[1:] >= own["end_s"].to_numpy()[:-1]).all()


def test_a_ledger_that_does_not_close_is_an_error():
    """A joule that no job accounts for is found."""
    ledger = EnergyLedger(np.array([1.0]))
    ledger.charge(0, 0.0, 5.0, 0.0, 1.0)
    devices_j = float(ledger.activity_j.sum() + ledger.idle_j(10.0).sum())
    ledger.check(5.0, devices_j, 10.0)
    with pytest.raises(LedgerError, match="15"):
        ledger.check(5.0 - 1e-6, devices_j, 10.0)


# --- sleep and links --------------------------------------------------------------------------------------------


def test_a_sleeping_device_draws_less():
    """2 W and 3 W idle, 0.5 W asleep: of 10 s the first sleeps 4 and the second, which is off for 3 more, 2."""
    sleep_w, asleep_s, off_s = np.array([0.5, 0.5]), np.array([4.0, 2.0]), np.array([0.0, 3.0])
    ledger = EnergyLedger(np.array([2.0, 3.0]), 1.0, 1.0, lambda _: off_s, sleep_w, lambda _: asleep_s)
    ledger.charge(1, 1.0, 7.0, 2.0, 4.0)
    assert ledger.idle_j(10.0).tolist() == [2 * 6, 3 * 5]
    assert ledger.sleep_j(10.0).tolist() == [0.5 * 4, 0.5 * 2]
    assert charged_j(ledger, 10.0) == (12 + 15) + (2 + 1) + 10 + 1 * 10
    ledger.check(10.0, 10.0 + 27 + 3, 10.0)
    with pytest.raises(LedgerError, match="37"):  # idle time alone
        ledger.check(10.0, 10.0 + 27, 10.0)


def test_without_sleeping_power_a_sleeper_idles():
    """Whenever it sleeps, all joules are those of idle power; none are named sleep if nobody ever sleeps."""
    idle_w = np.array([2.0, 3.0])
    asleep = EnergyLedger(idle_w, asleep_s=lambda now_s: np.array([0.25, 0.75]) * now_s)
    awake = EnergyLedger(idle_w, sleep_w=np.zeros(2))
    assert asleep.sleep_j(8.0).tolist() == [2 * 2, 3 * 6]
    assert charged_j(asleep, 8.0) == charged_j(awake, 8.0) == (2 + 3) * 8
    assert awake.sleep_j(8.0).tolist() == [0, 0]


def test_whether_another_device_sleeps_changes_nothing(tmp_path):
    """A device without sleeping power of its own draws idle power while it is away, whoever else sleeps then."""
    (tmp_path / "there.csv").write_text("device,start,end\n0,0,30\n0,90,200\n1,0,30\n1,90,200\n")
    there = {"name": "trace", "file": str(tmp_path / "there.csv")}
    other = {"cpu": {"flops_per_s": 7.3806e8}}
    columns = []
    for energy in (POWER, {**POWER, "sleep": "0.5 W"}):
        fleet = [{"cpu": {"flops_per_s": 7.3806e8}}, {**other, "energy": energy}]
        stop = {"sim_time": "100 s"}
        devices = simulate_null(timing_scenario(fleet=fleet, energy=POWER, availability=there, stop=stop)).devices()
        columns.append([(devices[name][0], devices[name][1]) for name in ("idle_j", "sleep_j")])
    assert columns == [[(200, 200), (0, 0)], [(200, 80), (0, 30)]]


def test_links_take_joules_of_nobodys_battery():
    """They are in the total, but in no device's joules."""
    ledger = EnergyLedger(np.array([1.0, 1.0]))
    ledger.charge_link(3.5)
    ledger.charge_link(4.0)
    assert ledger.link_j == 7.5
    assert charged_j(ledger, 10.0) == 7.5 + 2 * 10
    ledger.check(0.0, 2 * 10, 10.0)


@pytest.mark.parametrize(
    ("energy", "sleep_w"),
    [
        ({**POWER}, 2.0),
        ({**POWER, "sleep": "50 mW"}, 0.05),
        ({"name": "power", "busy": "5 W", "idle": "2 W", "sleep": 0}, 0.0),
        ({"name": "none"}, 0.0),
    ],
)
def test_sleeping_power_is_idle_power_unless_given(energy, sleep_w):
    """One column of the fleet."""
    assert build_fleet(timing_scenario(energy=energy)).sleep_w.tolist() == [sleep_w] * 5


def test_sleeping_power_may_be_spread_and_leaves_idle_alone():
    """A stream of its own: the other powers are those of a fleet without it."""
    energy = {**POWER, "idle": {"uniform": [1, 2]}}
    plain = build_fleet(timing_scenario(energy=energy))
    slept = build_fleet(timing_scenario(energy={**energy, "sleep": {"uniform": ["0.1 W", "0.3 W"]}}))
    assert slept.idle_w.tolist() == plain.idle_w.tolist() == plain.sleep_w.tolist()
    assert ((slept.sleep_w >= 0.1) & (slept.sleep_w <= 0.3)).all()
    assert len(set(slept.sleep_w.tolist())) == 5
