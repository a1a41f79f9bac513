"""Several trainings on one fleet: alone where they share nothing, and in each other's way where they do."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

import edgesim
from edgesim.core.errors import ConfigError, ContractError
from edgesim.core.task import Order, Plan, Task
from edgesim.engine.session import Session
from edgesim.execution.backends.null import NullBackend
from edgesim.execution.checkpoint import Checkpoint, Saved
from edgesim.execution.result_cache import Answers
from edgesim.learning.train.trainer import Trainer
from edgesim.reports.stats import JOULES
from edgesim.runs.simulate import simulate
from edgesim.runs.simulation import Silent, Simulation
from edgesim.runs.training import assemble_all
from tests.conftest import digits_scenario, timing_scenario
from tests.sizes import full, spread

BITS = 8 * 4 * 567_858  # CNN-CIFAR10, one way
SECOND = 7.3806e8  # FLOP/s at which a device trains 500 samples in 10 s
POWER = {"name": "power", "idle": "2 W", "busy": "5 W", "transmit": "1 W", "receive": "0.5 W"}
RADIO = {"name": "wireless", "bandwidth": "1 MHz", "distance_m": {"uniform": [100, 900]}, "fading": "per_transfer"}
FIXED = {"name": "fixed", "up": {"uniform": ["1 Mbit/s", "4 Mbit/s"]}, "down": "8 Mbit/s"}
SPREAD = {"count": 6, "cpu": {"flops_per_s": {"uniform": [1e8, 1e9]}}}
HALVES = [{"name": "left", **SPREAD}, {"name": "right", **SPREAD}]
BATTERY = {"capacity": "400 J", "level": 0.5, "charge": "4 W", "windows": [["0 h", "24 h"]]}
# Columns of rounds that tell joules and money of the whole world, and the only ones in which halves differ.
OF_THE_WORLD = {
    *JOULES,
    *(f"total_{name}" for name in JOULES),
    *(f"total_{name}" for name in ("cost_low", "cost", "cost_high", "co2e_low_g", "co2e_g", "co2e_high_g")),
}
WORLDS: dict[str, dict[str, Any]] = {
    "fixed": {"network": FIXED},
    "draws": {"network": RADIO, "slowdown": {"name": "log_normal", "sigma": 0.5}},
    "asked anew": {"availability": {"name": "bernoulli", "p": 0.5}},
    "churn": {
        "availability": {"name": "sessions", "on": "60 s", "off": "30 s"},
        "failures": [{"name": "crash", "probability": 0.3}, {"name": "partial_work", "probability": 0.4}],
        "protocol": {"name": "deadline", "deadline": "40 s", "late": "keep"},
    },
    "restarts": {
        "failures": {"name": "server_restart", "mean_time": "40 s"},
        "protocol": {"name": "deadline", "deadline": "60 s"},
        "server": {"flops_per_s": "1 MFLOP/s", "idle": "10 W", "busy": "20 W"},
    },
    "buffered": {
        "method": "fedasync",
        "selection": "all",
        "protocol": {"name": "buffered", "concurrency": 3, "buffer": 2},
        "failures": {"name": "crash", "mean_time": "60 s"},
        "stop": {"sim_time": "400 s"},
    },
    "out of time": {"stop": {"sim_time": "111 s"}},
    "batteries": {
        "fleet": [{**half, "battery": BATTERY} for half in HALVES],
        "selection": {"name": "battery_aware", "count": 3, "reserve": 0.2},
    },
    "by channel": {"network": RADIO, "selection": {"name": "proportional_fair", "count": 3}},
    "in turns": {"selection": {"name": "round_robin", "count": 2}, "network": "lte"},
    "expected": {"selection": {"name": "fedcs", "count": 4, "deadline": "60 s", "candidates": 5}},
    "outages": {"network": FIXED, "failures": {"name": "link_outage", "up": "20 s", "down": "4 s"}},
    "queue": {
        "network": {**FIXED, "latency": "30 ms", "jitter": "20 ms", "loss": 0.02},
        "server": {"flops_per_s": "1 MFLOP/s", "workers": 2, "idle": "10 W", "busy": "20 W"},
    },
}


def timed(scenario: edgesim.Scenario) -> Simulation:
    """Run the trainings of a timing-only scenario in memory."""
    first, *more = assemble_all(scenario)
    also = [(parts, NullBackend()) for parts in more]
    simulation = Simulation(first, NullBackend(), Silent(), others=also)
    simulation.run()
    return simulation


def table(simulation: Simulation, name: str, of: int = 0) -> pd.DataFrame:
    """Return a table of one of the trainings."""
    return simulation.trainings[of].tables[name].frame()


def differing(one: pd.DataFrame, other: pd.DataFrame) -> set[str]:
    """Return the columns in which two tables differ, all if they have not as many rows."""
    if len(one) != len(other):
        return set(one)
    return {name for name in one if not one[name].equals(other[name])}


@pytest.mark.parametrize("world", WORLDS)
def test_on_disjoint_halves_each_is_as_if_it_were_alone(world):
    """All of jobs and rounds is equal but the joules and the money of the world, of which both are a part."""
    sessions = [{"name": "a", "devices": "left"}, {"name": "b", "devices": [[6, 11]]}]
    base = {"fleet": HALVES, "energy": POWER, "stop": {"rounds": 6}, "selection": {"name": "uniform", "count": 3}}
    both = timed(scenario := timing_scenario(**{**base, **WORLDS[world]}, session=sessions))
    for place in (0, 1):
        alone = timed(scenario.trainings[place])
        assert len(table(alone, "jobs")) > 6
        assert differing(table(both, "jobs", place), table(alone, "jobs")) == set()
        assert differing(table(both, "rounds", place), table(alone, "rounds")) <= OF_THE_WORLD
        assert both.trainings[place].rounds.stop_reason == alone.rounds.stop_reason
    assert set(table(both, "jobs", 0)["device"]) <= set(range(6))
    assert set(table(both, "jobs", 1)["device"]) <= set(range(6, 12))


def test_one_session_that_draws_nothing_is_its_scenario():
    """Its name gives it random streams of its own; where nothing is drawn from them, all tables are the scenario's."""
    base = {"fleet": HALVES, "energy": POWER, "network": FIXED, "stop": {"rounds": 3}, "selection": "all"}
    plain, named = timed(timing_scenario(**base)), timed(timing_scenario(**base, session=[{"name": "only"}]))
    for name in ("jobs", "rounds"):
        pd.testing.assert_frame_equal(table(named, name), table(plain, name), check_exact=True)
    assert named.totals == plain.totals


def test_halves_learn_what_they_learn_alone(tmp_path):
    """Real training: jobs, evaluations, metrics and weights of each are those of a run of its own."""
    sessions = [{"name": "a", "devices": [[0, 4]]}, {"name": "b", "devices": [[5, 9]], "method": "scaffold"}]
    scenario = digits_scenario(session=sessions, selection={"name": "uniform", "count": 3})
    both = edgesim.run(scenario, out=tmp_path / "both")
    assert both.sessions == ("a", "b")
    for place, name in enumerate(both.sessions):
        one, alone = both.session(name), edgesim.run(scenario.trainings[place], out=tmp_path / name)
        for found in ("jobs", "evals", "metrics"):
            pd.testing.assert_frame_equal(getattr(one, found), getattr(alone, found), check_exact=True)
        assert differing(one.rounds, alone.rounds) <= OF_THE_WORLD
        assert one.saved_weights == alone.saved_weights == ["best", "final"]
        weights, as_alone = one.weights(), alone.weights()
        assert all(np.array_equal(weights[tensor], as_alone[tensor]) for tensor in as_alone)
        assert one.method == alone.method


@full
def test_sessions_that_are_cut_off_go_on(tmp_path, monkeypatch):
    """Each ends as if it had been left alone, and what was trained before its checkpoint is not trained again."""
    sessions = [{"name": "a"}, {"name": "b", "method": "scaffold"}]
    scenario = digits_scenario(session=sessions, selection={"name": "uniform", "count": 3})
    really_run, trained, most = Trainer.run, [], None

    def counted(self, given):
        if len(trained) == most:
            raise ZeroDivisionError
        trained.append(1)
        return really_run(self, given)

    monkeypatch.setattr(Trainer, "run", counted)
    alone = simulate(scenario, tmp_path / "alone")
    every = len(trained)
    checkpoint = Checkpoint(tmp_path / "saved", 0.0, {})
    trained.clear()
    most = 3 * every // 4
    with pytest.raises(ZeroDivisionError):
        simulate(scenario, tmp_path / "run", checkpoint=checkpoint)
    assert sorted(path.name for path in tmp_path.glob("saved*")) == ["saved", "saved.b"]
    trained.clear()
    most = None
    run = simulate(scenario, tmp_path / "run", checkpoint=checkpoint)
    assert 0 < len(trained) < every / 2
    for name in ("jobs", "rounds", "evals"):
        pd.testing.assert_frame_equal(run.table(name), alone.table(name), check_exact=True)
    for path in (tmp_path / "alone").glob("*.safetensors"):
        assert (tmp_path / "run" / path.name).read_bytes() == path.read_bytes()
    checkpoint.remove()
    assert not list(tmp_path.glob("saved*"))


def test_a_checkpoint_of_a_further_session_may_be_outdated_alone(tmp_path):
    """The run's own file may be missing: it is saved by its session, and another one may have come first."""
    saved = Checkpoint(tmp_path / "saved", 0.0, {"of": "a scenario"})
    saved.of_session("b").save(Saved({}, {}, 0.0))
    assert not saved.is_outdated()
    assert replace(saved, stamp={"of": "another"}).is_outdated()


def test_sessions_of_two_names_draw_apart():
    """Two equal sessions on one fleet do not ask the same devices at the same times, nor meet the same fading."""
    base = {"fleet": [{**SPREAD, "count": 40}], "network": RADIO, "selection": {"name": "uniform", "count": 4}}
    scenario = timing_scenario(**base, stop={"rounds": 3}, session=[{"name": "a"}, {"name": "b"}])
    a, b = (table(timed(alone), "jobs") for alone in scenario.trainings)
    assert set(a["device"][a["round"] == 0]) != set(b["device"][b["round"] == 0])
    same = a.merge(b, on=["device", "task"], suffixes=("", "_b"))
    assert len(same)
    assert not np.isclose(same["up_s"], same["up_s_b"]).any()


def test_one_device_serves_one_after_the_other():
    """By hand: one device, jobs of 10 s; the second session gets it whenever the first has just had it, and back."""
    fleet = [{"count": 1, "cpu": {"flops_per_s": SECOND}}]
    both = timed(timing_scenario(fleet=fleet, stop={"rounds": 2}, session=[{}, {}]))
    sent = [table(both, "jobs", place)["sent_s"].tolist() for place in (0, 1)]
    assert sorted(sent[0] + sent[1]) == pytest.approx([0, 10, 20, 30])
    assert sent[0][0] == 0
    assert sent[1][0] == pytest.approx(10)
    assert both.world.now_s == pytest.approx(40)
    assert {each.rounds.stop_reason for each in both.trainings} == {"2 rounds done"}


def test_a_buffered_session_waits_for_devices_of_the_other():
    """It does not end as if nobody came, and asks again as soon as a job of the other ends."""
    fleet = [{"count": 1, "cpu": {"flops_per_s": SECOND}}]
    waits = {"method": "fedasync", "protocol": {"name": "buffered", "concurrency": 1, "buffer": 1}}
    sessions = [{"name": "first"}, {"name": "waits", **waits}]
    both = timed(timing_scenario(fleet=fleet, stop={"rounds": 2}, session=sessions))
    jobs = table(both, "jobs", 1)
    assert both.trainings[1].rounds.stop_reason == "2 rounds done"
    assert jobs["sent_s"].iloc[0] == pytest.approx(10)


def test_two_jobs_share_the_server_fairly():
    """By hand: the second session starts 4 s later; while both transfer, each has half of the server's 1 Mbit/s.

    a downloads alone for 4 s, then both at half speed until a has all; b goes on alone. Computing takes 10 and 20 s, so
    that the uploads meet again, or do not: the same fluid calculation for them.
    """
    fleet = [
        {"name": "one", "cpu": {"flops_per_s": SECOND}},
        {"name": "two", "cpu": {"flops_per_s": SECOND / 2}},
    ]
    sessions = [{"name": "a", "devices": "one"}, {"name": "b", "devices": "two", "start": "4 s"}]
    links = {"name": "shared", "up": "1 Gbit/s", "down": "1 Gbit/s"}
    server = {"name": "star", "server_up": "1 Mbit/s", "server_down": "1 Mbit/s"}
    both = timed(timing_scenario(fleet=fleet, network=links, topology=server, session=sessions))
    down = _shared_ends((0.0, 4.0), BITS, 1e6)
    up = _shared_ends((down[0] + 10, down[1] + 20), BITS, 1e6)
    jobs = pd.concat([table(both, "jobs", 0), table(both, "jobs", 1)])
    assert (jobs["sent_s"] + jobs["down_s"]).tolist() == pytest.approx(down, rel=1e-9)
    assert jobs["end_s"].tolist() == pytest.approx(up, rel=1e-9)
    assert (jobs["link_wait_s"] > 0).all()


def _shared_ends(starts_s: tuple[float, float], bits: float, bps: float) -> list[float]:
    """Return when two transfers of as many bits end that share a link fairly; the first starts first."""
    first, second = starts_s
    if first + bits / bps <= second:
        return [first + bits / bps, second + bits / bps]
    left = bits - bps * (second - first)  # of the first when the second comes
    first_ends = second + left / (bps / 2)
    rest = bits - left  # of the second then
    return [first_ends, first_ends + rest / bps]


@pytest.mark.parametrize("network", ["fixed", "shared"])
def test_joules_of_both_and_idle_power_are_those_of_the_fleet(network):
    """On one fleet: idle power is booked once, and with it the jobs of both add up to the devices' and the world's."""
    links = {"name": network, "up": "1 Mbit/s", "down": "4 Mbit/s"}
    sessions = [{"name": "a"}, {"name": "b", "stop": {"rounds": 8}, "protocol": {"name": "deadline", "deadline": 60}}]
    base = {"fleet": [SPREAD], "energy": POWER, "network": links, "selection": {"name": "uniform", "count": 3}}
    both = timed(timing_scenario(**base, stop={"rounds": 4}, session=sessions))  # which checks the ledger
    jobs = pd.concat([table(both, "jobs", 0), table(both, "jobs", 1)])
    jobs_j = jobs[["down_j", "compute_j", "up_j"]].to_numpy().sum()
    end_s = both.world.now_s
    assert both.totals is not None
    assert both.totals["energy_j"] == pytest.approx(jobs_j + 6 * 2.0 * end_s, rel=1e-9)
    devices = both.devices()
    assert devices["idle_j"].sum() == pytest.approx(6 * 2.0 * end_s, rel=1e-12)
    assert devices["jobs"].sum() == len(jobs)
    assert both.totals["flops"] == pytest.approx(jobs["flops"].sum(), rel=1e-12)


def test_a_device_works_for_one_session_at_a_time():
    """On a fleet that both want, no two jobs of a device overlap."""
    base = {"fleet": [{**SPREAD, "count": 3}], "selection": {"name": "uniform", "count": 2}}
    both = timed(timing_scenario(**base, stop={"rounds": 10}, session=[{}, {}, {}]))
    jobs = pd.concat([table(both, "jobs", place) for place in range(3)]).sort_values(["device", "sent_s"])
    for _, own in jobs.groupby("device"):
        assert (own["end_s"].to_numpy()[:-1] <= own["sent_s"].to_numpy()[1:] + 1e-9).all()
    assert len(jobs.groupby("device")) == 3


def test_a_session_counts_its_own_work_and_the_world_s_joules():
    """FLOPs and bytes of rounds are those of its own jobs, whatever the other does; jobs in flight count in part."""
    base = {"fleet": HALVES, "energy": POWER, "selection": {"name": "uniform", "count": 3}, "stop": {"rounds": 5}}
    both = timed(timing_scenario(**base, session=[{}, {"stop": {"rounds": 9}}]))
    for place in (0, 1):
        jobs, rounds = table(both, "jobs", place), table(both, "rounds", place)
        assert rounds["total_flops"].iloc[-1] == pytest.approx(jobs["flops"].sum())
        assert rounds["total_up_bytes"].iloc[-1] == jobs["up_bytes"].sum()
        assert sorted(jobs["job"]) == list(range(len(jobs)))


def test_who_has_stopped_leaves_the_world_to_the_others(monkeypatch):
    """A session that ends by its time in mid-job is charged up to then, asks nobody more, and the other goes on."""
    asked: list[tuple[float, str]] = []
    really = Session.dispatch

    def dispatch(self, plan, to):
        asked.append((self.now_s, "a" if self is first[0] else "b"))
        return really(self, plan, to)

    monkeypatch.setattr(Session, "dispatch", dispatch)
    fleet = [{"count": 1, "cpu": {"flops_per_s": SECOND}}]
    sessions = [{"name": "a", "stop": {"sim_time": "25 s"}}, {"name": "b"}]
    first: list[Session] = []
    scenario = timing_scenario(fleet=fleet, session=sessions, stop={"sim_time": "52 s"})
    parts, *more = assemble_all(scenario)
    simulation = Simulation(parts, NullBackend(), Silent(), others=[(more[0], NullBackend())])
    first.append(simulation.session)
    simulation.run()
    assert all(at_s <= 25 for at_s, who in asked if who == "a")
    jobs_a, jobs_b = table(simulation, "jobs", 0), table(simulation, "jobs", 1)
    assert jobs_a["outcome"].tolist()[-1] == "stopped"
    assert jobs_a["end_s"].max() == pytest.approx(25)
    assert jobs_b["sent_s"].tolist()[1:] == pytest.approx([25, 35, 45])
    assert simulation.world.now_s == pytest.approx(52)


PEERS: dict[str, dict[str, Any]] = {
    "rounds": {"method": "dpsgd", "peers": "ring"},
    "waits": {"method": "dfedavg", "peers": "exponential"},
    "trades": {"method": "adpsgd", "protocol": "gossip", "peers": "ring"},
    "fetches": {"method": "aedfl", "protocol": "gossip", "peers": "ring"},
}


@full
@pytest.mark.parametrize(
    ("world", "kind"),
    spread([(world, kind) for world in ("steady", "churn", "asked anew", "outages") for kind in PEERS], 3),
)
def test_peers_of_two_sessions_on_devices_of_their_own_are_as_if_alone(kind, world):
    """Every job and round, but for the joules of the world; whoever shares a device is refused."""
    churn = {"availability": {"name": "sessions", "on": "60 s", "off": "30 s"}}
    given = {**WORLDS, "steady": {}, "churn": churn}[world]
    base = {
        "fleet": HALVES,
        "energy": POWER,
        "network": FIXED,
        "selection": "all",
        "stop": {"rounds": 3},
        **PEERS[kind],
    }
    halves = [{"devices": "left"}, {"devices": "right"}]
    both = timed(apart := timing_scenario(**{**base, **given}, session=halves))
    for place in (0, 1):
        alone = timed(apart.trainings[place])
        assert differing(table(both, "jobs", place), table(alone, "jobs")) == set()
        assert differing(table(both, "rounds", place), table(alone, "rounds")) <= OF_THE_WORLD
        asked = set(table(both, "jobs", place)["device"])
        assert asked <= set(range(6 * place, 6 * place + 6)) and (len(asked) == 6 or world == "asked anew")
    with pytest.raises(ConfigError, match=r"^session: session1 and session2 exchange among peers and share device 0; "):
        assemble_all(timing_scenario(**base, session=[{}, {}]))


@pytest.mark.parametrize("kind", PEERS)
def test_peers_share_devices_with_a_server(kind):
    """No two jobs of a device overlap, both sessions get through, and the joules of all jobs are the world's."""
    server = {"name": "server", "method": "fedavg", "protocol": "sync", "selection": {"name": "uniform", "count": 4}}
    peers = {"name": "peers", "devices": "left", **PEERS[kind], "selection": "all"}
    base = {"fleet": HALVES, "energy": POWER, "network": FIXED, "stop": {"rounds": 4}}
    both = timed(timing_scenario(**base, session=[peers, server]))
    assert [each.rounds.stop_reason for each in both.trainings] == ["4 rounds done"] * 2
    jobs = pd.concat([table(both, "jobs", 0), table(both, "jobs", 1)]).sort_values(["device", "sent_s"])
    for _, own in jobs.groupby("device"):
        assert (own["end_s"].to_numpy()[:-1] <= own["sent_s"].to_numpy()[1:] + 1e-9).all()
    jobs_j = jobs[["down_j", "compute_j", "up_j", "peer_j"]].to_numpy().sum()
    assert both.totals is not None
    assert both.totals["energy_j"] == pytest.approx(jobs_j + 12 * 2.0 * both.world.now_s, rel=1e-9)


def test_peers_share_no_battery_with_a_server():
    """Named in one line, with the first device that both may ask; without a battery there nothing is refused."""
    peers = {"name": "p", "devices": [[2, 8]], "method": "dpsgd", "peers": "ring", "selection": "all"}
    base = {"energy": POWER, "session": [{"name": "s", "devices": "right"}, peers]}
    powered = [HALVES[0], {**HALVES[1], "battery": BATTERY}]
    with pytest.raises(ConfigError) as caught:
        assemble_all(timing_scenario(**base, fleet=powered))
    assert str(caught.value) == (
        "session: s and p share device 6, which has a battery, and p exchanges among peers; give them disjoint devices"
    )
    assert len(assemble_all(timing_scenario(**base, fleet=[{**HALVES[0], "battery": BATTERY}, HALVES[1]]))) == 2


def test_a_battery_is_emptied_by_both():
    """By hand: 120 J, 5 W at work, jobs of 10 s by turns: it is empty after 24 s, in the first session's second."""
    fleet = [{"count": 1, "cpu": {"flops_per_s": SECOND}, "battery": {"capacity": "120 J", "charge": "0 W"}}]
    both = timed(timing_scenario(fleet=fleet, energy=POWER, stop={"rounds": 9}, session=[{}, {}]))
    jobs = pd.concat([table(both, "jobs", 0), table(both, "jobs", 1)]).sort_values("sent_s")
    assert jobs["outcome"].tolist() == ["ok", "ok", "battery"]
    assert jobs["end_s"].tolist() == pytest.approx([10, 20, 24])
    assert both.totals is not None
    assert both.totals["energy_j"] == pytest.approx(120)
    reasons = {each.rounds.stop_reason for each in both.trainings}
    assert reasons == {"no device can take part any more: none is there and on, and none will ever be again"}
    assert all(each.rounds.gave_up for each in both.trainings)


def test_a_selection_sees_the_devices_of_its_session_alone():
    """A fraction is one of them, tiers are made of them, and a method cannot ask anybody else."""
    sessions = [{"devices": [[2, 3], [8, 11]], "selection": {"name": "uniform", "fraction": 0.5}}]
    half = timed(timing_scenario(fleet=HALVES, stop={"rounds": 8}, session=sessions))
    jobs = table(half, "jobs")
    assert (jobs.groupby("round").size() == 3).all()
    assert set(jobs["device"]) == {2, 3, 8, 9, 10, 11}
    setting = half.session.setting.of_members()
    assert setting.flops_per_s.tolist() == half.world.fleet.flops_per_s[[2, 3, 8, 9, 10, 11]].tolist()
    with pytest.raises(ContractError, match="asked device 4, which is none of those it may ask"):
        half.session.dispatch(Plan((Order(4, Task("any")),)), half.session.new_inbox())


@full
def test_what_was_known_with_other_sessions_is_not_taken(tmp_path):
    """A session chooses by batteries, which the other one drains: its plans are those of a run that knows nothing."""
    power = [{"count": 4, "cpu": {"flops_per_s": "50 MFLOP/s"}, "battery": {"capacity": "100 J", "charge": "0 W"}}]
    first = {"name": "a", "selection": {"name": "battery_aware", "count": 2}}
    worlds = [[first], [first, {"name": "b", "devices": [[0, 1]]}], [first, {"name": "b", "devices": [[2, 3]]}]]
    asked = []
    for place, sessions in enumerate(worlds):
        scenario = digits_scenario(fleet=power, stop={"rounds": 4}, session=sessions, selection="all")
        fresh = edgesim.run(scenario, out=tmp_path / f"fresh{place}").session("a")
        with closing(Answers(tmp_path)) as answers:
            again = simulate(scenario, tmp_path / f"again{place}", None, answers=answers).session("a")
        pd.testing.assert_frame_equal(again.jobs, fresh.jobs, check_exact=True)
        pd.testing.assert_frame_equal(again.evals, fresh.evals, check_exact=True)
        asked.append(fresh.jobs["device"].tolist())
    assert asked[0] != asked[1] != asked[2]


@full
@pytest.mark.workers
def test_however_many_processes_train(tmp_path):
    """Tables and weights of two sessions on one fleet are those of serial training with two workers too."""
    sessions = [{"name": "a"}, {"name": "b", "training": {"lr": 0.05}}]
    runs = [
        edgesim.run(digits_scenario(session=sessions, backend=backend), out=tmp_path / str(place))
        for place, backend in enumerate(["serial", {"name": "workers", "workers": 2}])
    ]
    for name in ("jobs", "rounds", "evals", "metrics", "devices"):
        pd.testing.assert_frame_equal(runs[0].table(name), runs[1].table(name), check_exact=True)
    for which in ("a.final", "b.final"):
        serial, workers = (run.weights(which) for run in runs)
        assert all(np.array_equal(serial[tensor], workers[tensor]) for tensor in serial)
