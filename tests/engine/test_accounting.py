"""What a run has spent at a merge: the same as of a run that is stopped there, to the last joule and byte."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import edgesim
from edgesim.execution.backends.null import NullBackend
from edgesim.records.schema import COSTS
from edgesim.reports.energy import attribute_energy, split_energy
from edgesim.reports.stats import JOULES, summary
from edgesim.runs.assembly import assemble
from edgesim.runs.simulation import Silent, Simulation
from edgesim.studies.column import parse_column
from tests.calling import call
from tests.conftest import PSI, frames, simulate_null, timing_scenario
from tests.sizes import full, spread, thinned

POWER = {
    "name": "power", "idle": {"uniform": ["1 W", "2 W"]}, "busy": "5 W", "transmit": "1 W", "receive": "0.5 W",
    "sleep": "0.1 W",
}  # fmt: skip
AWAKE = {key: watts for key, watts in POWER.items() if key != "sleep"}  # as whoever has a battery is
LINKS = {"name": "fixed", "up": "1 Mbit/s", "down": "4 Mbit/s", "latency": "0.1 s", "energy_per_bit": "1 uJ/bit"}
SHARED = {"name": "shared", "up": "2 Mbit/s", "down": "8 Mbit/s", "latency": "0.1 s"}
TREE = {"name": "tree", "edge_servers": 2, "edge_up": "3 Mbit/s"}
FLEET = [{"count": 9, "cpu": {"flops_per_s": {"log_uniform": [5e8, 5e9]}}}]
AWAY = [{"name": "sessions", "on": "3 min", "off": "20 s"}]
BUFFERED = {"name": "buffered", "concurrency": 5, "buffer": 2}
KEPT = {"name": "deadline", "deadline": "9 s", "late": "keep"}
SIX = {"name": "uniform", "count": 6}
PEERS = {"method": {"name": "dfedavg", "reuse": 2}, "peers": {"name": "random", "degree": 3}}
TRADES = {"method": "adpsgd", "protocol": "gossip", "peers": "ring"}
OUTAGES = [{"name": "link_outage", "up": "30 s", "down": "2 s"}]
SERVER = {"flops_per_s": "10 MFLOP/s", "idle": "3 W", "busy": "20 W"}
BELOW = {
    "network": SHARED, "topology": {**TREE, "server_down": "4 Mbit/s"}, "server": SERVER,
    "edges": {"rounds": 2, "flops_per_s": "1 MFLOP/s", "idle": "1 W", "busy": "9 W", "energy_per_bit": "2 uJ/bit"},
}  # fmt: skip
SPENT = ("flops", "down_bytes", "up_bytes", *JOULES, *COSTS)
BANDS = [{"low": f"{p / 2} EUR/J", "typical": f"{p} EUR/J", "high": f"{2 * p} EUR/J"} for p in (1.0, 3.0, 0.5)]
PRICES = {
    "electricity": {"name": "tests.plugins.tariffs:Turns", "prices": BANDS, "each": "1.7 s"},
    "carbon": "2 g/J", "data": "3 EUR/kB", "device_hours": "5 EUR/s", "embodied": "7 g/s", "server_hours": "11 EUR/s",
    "payments": "13 EUR",
}  # fmt: skip
JOB_J = ["down_j", "compute_j", "up_j", "peer_j", "link_j"]

RUNS: dict[str, dict[str, Any]] = {
    "sync": {"selection": SIX},
    "dropping the late": {"selection": SIX, "protocol": {"name": "deadline", "deadline": "9 s"}},
    "keeping the late": {"selection": SIX, "protocol": KEPT},
    "keeping the late, shared links": {"selection": SIX, "protocol": KEPT, "network": SHARED, "topology": TREE},
    "buffered": {"method": "fedbuff", "protocol": BUFFERED},
    "buffered, many at work": {
        "method": "fedbuff",
        "protocol": {**BUFFERED, "concurrency": 40, "buffer": 7},
        "fleet": [{**FLEET[0], "count": 60}],
    },
    "buffered, the server works": {"method": "fedbuff", "protocol": BUFFERED, "server": SERVER},
    "one by one": {"method": "fedasync", "protocol": {**BUFFERED, "buffer": 1}},
    "buffered, shared links": {"method": "fedbuff", "protocol": BUFFERED, "network": SHARED, "topology": TREE},
    "buffered, a queue": {"method": "fedbuff", "protocol": BUFFERED, "network": {**SHARED, "discipline": "fifo"}},
    "buffered, links that fail": {"method": "fedbuff", "protocol": BUFFERED, "failures": OUTAGES},
    "shared links that fail": {"method": "fedbuff", "protocol": BUFFERED, "network": SHARED, "failures": OUTAGES},
    "peers": PEERS,
    "peers, shared links": {**PEERS, "network": SHARED},
    "peers, links that fail": {**PEERS, "failures": OUTAGES},
    "peers, shared links that fail": {**PEERS, "network": SHARED, "failures": OUTAGES},
    "peers with batteries": {
        **PEERS,
        "energy": AWAKE,
        "fleet": [{**FLEET[0], "battery": {"capacity": {"uniform": ["60 J", "4 kJ"]}}}],
    },
    "trades": TRADES,
    "trades, shared links": {**TRADES, "network": SHARED},
    "edge servers, a buffered cloud": {"protocol": {**BUFFERED, "concurrency": 2, "buffer": 1}, **BELOW},
    "edge servers, dropping the late": {"protocol": {"name": "deadline", "deadline": "15 s"}, **BELOW},
    "peers that compute at their own times": {**PEERS, "slowdown": {"name": "log_normal", "sigma": 0.5}},
}


def given(name: str, rounds: int) -> edgesim.Scenario:
    """Return a scenario that ends with so many rounds."""
    base: dict[str, Any] = {"fleet": FLEET, "energy": POWER, "network": LINKS, "prices": PRICES}
    base["stop"] = {"rounds": rounds}
    away = {} if "failures" in RUNS[name] else {"availability": AWAY}
    return timing_scenario(**{**base, **away, **RUNS[name]})


def in_devices(simulation: Any) -> dict[str, float]:
    """Return what the tables of a run that has ended say was spent, by its jobs and devices."""
    devices, jobs = simulation.devices(), frames(simulation)["jobs"]
    each_j = sum(devices[way] for way in ("down_j", "compute_j", "up_j"))
    resting_j, is_device = devices["idle_j"] + devices["sleep_j"], devices["device"] >= 0
    active_j, idle_j = each_j[is_device].sum(), resting_j[is_device]
    never_asked = np.bincount(jobs["device"], minlength=len(simulation.parts.fleet)) == 0
    return {
        "flops": jobs["flops"].sum(),
        "down_bytes": devices["down_bytes"].sum(),
        "up_bytes": devices["up_bytes"].sum(),
        "energy_j": active_j + idle_j.sum(),
        "active_j": active_j,
        "idle_j": idle_j.sum(),
        "participant_j": active_j + idle_j[~never_asked].sum(),
        "energy_network_j": jobs["link_j"].sum() + frames(simulation)["edges"]["link_j"].sum(),
        "energy_server_j": (each_j + resting_j)[~is_device].sum(),
        **{name: devices[name].sum() for name in COSTS},
    }


@pytest.mark.parametrize("name", thinned(RUNS, ["sync", "peers, links that fail"]))
def test_a_merge_counts_what_a_run_that_ends_there_has_spent(name):
    """For every merge of a run: a run that stops there breaks off the jobs in flight and charges them."""
    runs = {count: simulate_null(given(name, count)) for count in (1, 2, 4)}
    rounds = frames(runs[4])["rounds"]
    in_flight = 0
    for count, stopped in runs.items():
        spent, row = in_devices(stopped), rounds.iloc[count - 1]
        found = {column: float(row[f"total_{column}"]) for column in SPENT}
        assert found == pytest.approx(spent, rel=1e-9, abs=0)
        in_flight += (frames(stopped)["jobs"]["outcome"] == "stopped").sum()
    assert bool(in_flight) == (name not in ("sync", "dropping the late") and "peers" not in name)


@pytest.mark.parametrize("at_s", thinned([1.5, 7.0, 16.0], [7.0]))
@pytest.mark.parametrize("name", spread(RUNS, 8))
def test_at_any_instant_it_is_what_breaking_off_would_charge(name, at_s):
    """At the end of its simulated time a run breaks off what is at work; it is asked just before that."""
    stop = {"stop": edgesim.config.scenario.Stop(sim_time=at_s)}
    simulation = Simulation(assemble(given(name, 1).model_copy(update=stop)), NullBackend(), Silent())
    before, abort = [], simulation.session.abort

    def asked_before(jobs, why):
        before[:] = [simulation.world.totals()]
        return abort(jobs, why)

    simulation.session.abort = asked_before
    simulation.run()
    assert (frames(simulation)["jobs"]["outcome"] == "stopped").any()
    assert before[0]._asdict() == pytest.approx(in_devices(simulation), rel=1e-9, abs=0)


@pytest.mark.parametrize(
    "name",
    thinned(
        [
            *("buffered", "buffered, many at work", "buffered, shared links", "peers", "peers, shared links"),
            *("peers, links that fail", "peers, shared links that fail", "peers with batteries"),
        ],
        ["buffered, shared links", "peers with batteries"],
        ["buffered", "buffered, many at work", "peers", "peers, shared links", "peers, shared links that fail"],
    ),
)
def test_asking_changes_nothing(name, monkeypatch):
    """Asked at every event, twice, a run is the same bit for bit."""
    plain = frames(simulate_null(given(name, 2)))
    step, asked = edgesim.engine.world.simpy.Environment.step, []

    def asking(env):
        step(env)
        world = asked[0]
        asked.append(world.totals())
        assert world.totals() == asked[-1]

    make = edgesim.engine.world.World.__init__

    def making(world, **kwargs):
        make(world, **kwargs)
        asked.append(world)

    monkeypatch.setattr(edgesim.engine.world.World, "__init__", making)
    monkeypatch.setattr(edgesim.engine.world.simpy.Environment, "step", asking)
    seen = frames(simulate_null(given(name, 2)))
    for table in ("jobs", "rounds"):
        assert seen[table].to_csv() == plain[table].to_csv()
    for before, after in pairwise(asked[1:]):  # nothing that was spent is ever given back, but for rounding
        assert all(b <= a * (1 + 1e-9) + 1e-9 for b, a in zip(before, after, strict=True))


@pytest.mark.parametrize(
    ("name", "stop"),
    spread(
        [
            (name, stop)
            for name in ("sync", "keeping the late", "buffered", "peers")
            for stop in ({"rounds": 4}, {"sim_time": "21 s"}, {"rounds": 4, "energy": "200 J"})
        ],
        4,
    ),
)
def test_whoever_says_what_a_run_spent_says_the_same(name, stop, tmp_path):
    """The tables, the commands `table` and `energy`, the columns of studies, and the devices."""
    scenario = given(name, 4).model_copy(update={"stop": edgesim.config.scenario.Stop(**stop)})
    run = edgesim.run(scenario, out=tmp_path / "run")
    split, said = split_energy(run), summary(run)
    for column in JOULES:
        assert said[column] == pytest.approx(split[column], rel=1e-9, abs=0)
        assert parse_column(column).of(run) == said[column]
    devices = run.devices[run.devices["device"] >= 0]
    devices_j = devices[["down_j", "compute_j", "up_j", "idle_j", "sleep_j"]].to_numpy().sum()
    assert said["energy_j"] == pytest.approx(devices_j, rel=1e-9, abs=0)
    assert said["energy_network_j"] == pytest.approx(run.jobs["link_j"].sum(), rel=1e-9, abs=0)
    assert split["energy_total_j"] == pytest.approx(attribute_energy(run)["joules"].sum(), rel=1e-9, abs=0)
    assert said["energy_j"] == pytest.approx(said["active_j"] + said["idle_j"], rel=1e-9, abs=0)
    jobs = run.jobs.assign(up_bytes=run.jobs["up_bytes"] + run.jobs["peer_bytes"])  # sent to the server, and to peers
    for column in ("flops", "down_bytes", "up_bytes"):
        assert said[column] == pytest.approx(jobs[column].sum(), rel=1e-12, abs=0)
        if column != "flops":
            assert run.devices[column].sum() == jobs[column].sum()
    if "rounds" in stop:
        assert run.rounds["total_energy_j"].iloc[-1] == pytest.approx(said["energy_j"], rel=1e-9, abs=0)
        assert run.rounds["energy_j"].sum() == pytest.approx(said["energy_j"], rel=1e-9, abs=0)
    else:
        assert said["sim_time_s"] == 21.0


def test_the_limit_on_energy_counts_work_in_flight(tmp_path):
    """The run ends with the first merge at which that much was spent, by jobs that still run too."""
    rounds = frames(simulate_null(given("buffered", 6)))["rounds"]
    limit_j = float(rounds["total_energy_j"].iloc[2])
    ends = given("buffered", 6).model_copy(update={"stop": edgesim.config.scenario.Stop(energy=limit_j)})
    simulation = simulate_null(ends)
    assert simulation.session.round == 3
    assert simulation.rounds.stop_reason == f"energy {limit_j:g} J spent"


@full
def test_budgets_of_bytes_and_of_each_device_end_a_run_after_a_round():
    """The third round reaches the bytes of two and a bit; the device that has spent the most counts, not the mean."""
    whole = simulate_null(given("sync", 4))
    rounds, devices = frames(whole)["rounds"], whole.devices()
    most_j = max(sum(devices[f"{what}_j"][:-1] for what in ("down", "compute", "up", "idle", "sleep")))
    after_two = int(rounds["total_down_bytes"].iloc[1] + rounds["total_up_bytes"].iloc[1])
    for name, limit, reason in (
        ("bytes", after_two + 1, f"{after_two + 1:g} bytes sent and received"),
        ("device_energy", 0.7 * most_j, f"energy {0.7 * most_j:g} J spent by a device"),
    ):
        ends = given("sync", 4).model_copy(update={"stop": edgesim.config.scenario.Stop.model_validate({name: limit})})
        simulation = simulate_null(ends)
        assert (simulation.session.round, simulation.rounds.stop_reason) == (3, reason)


def test_by_hand_at_a_merge_two_of_three_are_at_work(tmp_path):
    """Three devices of 10, 20 and 40 s at 3 W above 2 W idle, one that is never there; a merge at 10 s.

    By then each of the three has computed 10 s. 90 J are above idle power, 80 J are idle, 20 J of them of the fourth.
    """
    (tmp_path / "there.csv").write_text("device,start,end\n0,0,100\n1,0,100\n2,0,100\n")
    flops_per_s = [PSI / slower for slower in (1, 2, 4, 1)]
    simulation = simulate_null(
        timing_scenario(
            fleet=[{"count": 1, "cpu": {"flops_per_s": speed}} for speed in flops_per_s],
            energy={"name": "power", "idle": "2 W", "busy": "5 W"},
            method="fedbuff",
            protocol={"name": "buffered", "concurrency": 3, "buffer": 1},
            availability={"name": "trace", "file": str(tmp_path / "there.csv")},
        )
    )
    [merge] = frames(simulation)["rounds"].to_dict("records")
    assert merge["now_s"] == pytest.approx(10.0)
    assert merge["total_flops"] == pytest.approx(10 * PSI * (1 + 1 / 2 + 1 / 4))
    joules = [merge[f"total_{name}"] for name in ("energy_j", "active_j", "idle_j", "participant_j")]
    assert joules == pytest.approx([170, 90, 80, 150])


def test_the_table_shows_the_split(tmp_path):
    run = edgesim.run(given("buffered", 3), out=tmp_path / "run")
    shown = call("table", run.folder).out
    places = [shown.index(name) for name in ("energy", "active", "idle", "participants")]
    assert places == sorted(places)
