"""Random protocols on random fleets that come, go and break: laws that hold in every run, whatever happens in it."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import edgesim.runs.assembly
from edgesim.core.job import DELIVERED, Completion, Outcome
from edgesim.execution.backends.null import NullBackend
from edgesim.reports.critical_path import attributed
from edgesim.runs.simulation import Simulation
from tests.conftest import frames, timing_scenario
from tests.engine.spent import charged_j
from tests.sizes import examples

pytestmark = pytest.mark.usefixtures("few_tries")

IDLE_W, COMPUTE_W, TRANSMIT_W, RECEIVE_W = 2.0, 3.0, 1.0, 0.5  # the last three above idle
POWER = {"name": "power", "idle": IDLE_W, "busy": IDLE_W + COMPUTE_W, "transmit": TRANSMIT_W, "receive": RECEIVE_W}
PHASES = ["down_s", "wait_s", "compute_s", "up_s"]
JOULES = ["down_j", "compute_j", "up_j", "peer_j"]
CRITICAL = [f"critical_{name}" for name in ("down_s", "compute_s", "up_s", "link_wait_s", "wait_s")]
ROUNDING_S = 1e-6
MOST_EVENTS = 100_000  # far more than any of these runs needs
ALIKE = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

# --- what may be -------------------------------------------------------------------------------------------------


def plugin(name: str, **keys: list[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Return a strategy for the settings of a part: one of the values of each key."""
    return st.fixed_dictionaries({"name": st.just(name)} | {key: st.sampled_from(keys[key]) for key in keys})


AVAILABILITY = st.one_of(
    plugin("always"),
    plugin("bernoulli", p=[0.3, 0.9], retry=[60, 300]),
    plugin("diurnal", mean=[0.5, 0.9], amplitude=[0.2, 0.5], period=[100, 400], zones=[1, 4], slot=[3, 20]),
    plugin("lifetime", join=[0, 12, {"uniform": [0, 40]}], leave=[60, {"uniform": [45, 200]}]),
    plugin("sessions", on=[20, {"uniform": [5, 80]}], off=[10, {"choice": [1, 30]}]),
    plugin("groups", size=[1, 3], on=[30, 100], off=[10]),
    plugin("trace", file=[""]),
)
FAILURE = st.one_of(
    plugin("crash", probability=[0.2, 1.0], phase=["any", "download", "training", "upload"], share=[0.3, 1.0]),
    plugin("crash", mean_time=[5, 50], share=[0.5, 1.0]),
    plugin("partial_work", probability=[0.5, 1.0], least=[0, 0.5]),
)
FAILURE_AMONG_PEERS = st.one_of(FAILURE, plugin("link_outage", up=[5, 20], down=[2, 10]))
FAILURE_WITH_SERVER = st.one_of(
    FAILURE_AMONG_PEERS,
    plugin("server_restart", mean_time=[15, 60]),
    plugin("server_restart", at=[[20], [10, 20, 40, 60]]),
)
OWN = {"up": ["20 kbit/s", {"log_uniform": [2e4, 2e5]}], "down": ["100 kbit/s"], "latency": [0, {"uniform": [0, 0.5]}]}
SERVER = {"server_up": ["50 kbit/s", float("inf")], "server_down": ["80 kbit/s"], "server_latency": [0, 0.2]}
SHARED = plugin("shared", **OWN, discipline=["fair", "fifo"])
ALLOCATORS = ["equal", "min_max_time", "proportional", {"name": "min_energy", "deadline": "20 s"}]
CELL = plugin(
    "cell", bandwidth=["10 kHz"], distance_m=[{"uniform": [200, 3000]}], latency=[0, 0.2], waterfall=[0, 0.5],
    fading=["none", "per_transfer"], allocator=ALLOCATORS, access=["fdma", "tdma", "noma"],
)  # fmt: skip
TOPOLOGY = st.one_of(
    plugin("star"), plugin("star", **SERVER), plugin("tree", **SERVER, edge_servers=[2], edge_up=["40 kbit/s"])
)
CELL_WITH_SERVER = st.one_of(
    plugin("cell", bandwidth=["10 kHz"], distance_m=[{"uniform": [200, 3000]}], waterfall=[0.3], on_outage=["lose"],
           power=["1 mW"], efficiency=[0.01, 0.5], access=["fdma", "tdma", "noma"]),
    plugin("cell", bandwidth=["10 kHz"], distance_m=[{"uniform": [200, 3000]}], power_control=["inversion"],
           target_snr_db=[10], cutoff_db=[None, -120], efficiency=[0.01, 0.5], latency=[0, 0.2],
           fading=["per_round", "per_transfer"], allocator=ALLOCATORS, access=["fdma", "tdma"]),
)  # fmt: skip
LINKS = st.one_of(
    st.fixed_dictionaries({"network": st.one_of(plugin("ideal"), plugin("fixed", **OWN))}),
    st.fixed_dictionaries({"network": SHARED, "topology": TOPOLOGY}),
    st.fixed_dictionaries({"network": CELL, "topology": TOPOLOGY}),
)
LINKS_WITH_SERVER = st.one_of(LINKS, st.fixed_dictionaries({"network": CELL_WITH_SERVER, "topology": TOPOLOGY}))
CPU = st.fixed_dictionaries({"flops_per_s": st.sampled_from([1e6, 4e6, {"log_uniform": [5e5, 2e7]}])})
BLOCK = {"count": st.integers(2, 4), "level": st.integers(1, 2), "cpu": CPU}
MEMORY = {"memory": st.sampled_from(["1 GB", "1 GB", "1 GB", "1 kB"])}  # the last is too small for any job
WINDOWS = [[[0, 86_400]], [[20, 50], [150, 250], [500, 900]]]
BATTERY = plugin("rechargeable", capacity=[40, 150], level=[0, 0.6, 1], charge=[0, 6], windows=WINDOWS)
SETTING = {
    "seed": st.integers(0, 10_000),
    "partition": plugin("sizes", samples_per_device=[20, [1, 60]]),
    "availability": st.lists(AVAILABILITY, min_size=1, max_size=2),
    "slowdown": st.one_of(plugin("none"), plugin("log_normal", sigma=[0.5])),
    "server": st.sampled_from([{}, *({"flops_per_s": 5e4, "workers": w, "idle": 1, "busy": 3} for w in (1, 2))]),
}
ROUNDS = st.fixed_dictionaries({"rounds": st.integers(2, 6)}, optional={"sim_time": st.sampled_from([20, 60, 400])})


@st.composite
def settings_of(draw: st.DrawFn, server: bool) -> dict[str, Any]:
    """Draw what does not depend on the protocol, with up to twelve devices."""
    block = st.fixed_dictionaries(BLOCK, optional=MEMORY | {"battery": BATTERY})
    failures = st.lists(FAILURE_WITH_SERVER if server else FAILURE_AMONG_PEERS, max_size=3)
    once = failures.filter(lambda few: sum("down" in each for each in few) <= 1)  # one may cut the links
    own = {"fleet": st.lists(block, min_size=1, max_size=3), "failures": once}
    given = draw(st.fixed_dictionaries(SETTING | own)) | draw(LINKS_WITH_SERVER if server else LINKS)
    sleeps = not any("battery" in block for block in given["fleet"]) and draw(st.booleans())
    return given | {"energy": {**POWER, "sleep": 0.25} if sleeps else POWER}


@st.composite
def with_rounds(draw: st.DrawFn) -> dict[str, Any]:
    """Draw a run of a server that works in rounds."""
    given = draw(settings_of(server=True))
    devices = sum(block["count"] for block in given["fleet"])
    selection, asked = draw(st.sampled_from([({"name": "all"}, devices), ({"name": "uniform", "count": 2}, 2)]))
    late = {"late": ["keep", "drop"], "late_weight": [0.5, 1, 0], "minimum": [0, 0, 0, 1, asked]}
    protocol = st.one_of(
        plugin("sync"),
        plugin("deadline", deadline=[3, 8, 20], **late),
        plugin("deadline", rule=["quantile"], quantile=[0.5, 1.0], rounds=[1, 5], **late),
        plugin("deadline", rule=["mad"], k=[0, 3], deadline=[5], **late),
        plugin("over_selection", keep=list(range(1, asked + 1))),
    )
    method = st.sampled_from(["fedavg", "fedpmt", "tests.plugins.methods:Asking"])
    own = {"protocol": protocol, "method": method, "stop": ROUNDS}
    return given | {"selection": selection} | draw(st.fixed_dictionaries(own))


@st.composite
def without_rounds(draw: st.DrawFn) -> dict[str, Any]:
    """Draw a run of a server that merges as updates come in; it may wait for updates that never come."""
    given = draw(settings_of(server=True))
    devices = sum(block["count"] for block in given["fleet"])
    places = {"concurrency": list(range(1, devices + 1)), "reassign": ["random", "same"]}
    buffered = plugin("buffered", **places, buffer=[1, 2, 5], max_staleness=[None, 0, 2])
    in_tiers = plugin("tiers", tiers=[tiers for tiers in (1, 2, 3, 5) if tiers <= devices])
    protocol, methods = draw(st.sampled_from([(buffered, ["fedasync", "fedbuff"]), (in_tiers, ["fedat"])]))
    own = {
        "protocol": protocol,
        "selection": st.one_of(plugin("all"), plugin("uniform", fraction=[0.5])),
        "method": st.sampled_from(methods),
        "stop": st.fixed_dictionaries({"rounds": st.integers(2, 12), "sim_time": st.sampled_from([20, 60, 400])}),
    }
    return given | draw(st.fixed_dictionaries(own))


@st.composite
def among_peers(draw: st.DrawFn) -> dict[str, Any]:
    """Draw a run without a server, in which nobody waits for more neighbours than there are."""
    given = draw(settings_of(server=False))
    devices = sum(block["count"] for block in given["fleet"])
    degrees = list(range(1, devices))
    waits = {"reuse": [0, 1, 3], "wait_select": ["lowest_index", "first_finish"]}
    own = {
        "peers": st.one_of(plugin("random", degree=degrees), plugin("ring"), plugin("full"), plugin("exponential")),
        "method": st.one_of(plugin("dfedavg", **waits), plugin("dpsgd", **waits)),
        "stop": ROUNDS,
    }
    drawn = draw(st.fixed_dictionaries(own))
    peers, method = drawn["peers"], drawn["method"]
    heard = {"ring": min(2, devices - 1), "full": devices - 1, "exponential": (devices - 1).bit_length()}
    method["reuse"] = min(method["reuse"], heard.get(peers["name"], peers.get("degree")))
    return given | drawn


# --- what is seen ------------------------------------------------------------------------------------------------


class Seen:
    """A finished run, and what its learner and its observer were told on the way."""

    def __init__(self, given: Mapping[str, Any], trace: Path) -> None:
        there = [each | {"file": str(trace)} if "file" in each else each for each in given["availability"]]
        scenario = timing_scenario(model="cnn_digits", training={"batch": 8}, **{**given, "availability": there})
        self.simulation = Simulation(edgesim.runs.assembly.assemble(scenario), NullBackend(), self)
        self.started: list[int] = []  # jobs
        self.let_go: list[Completion] = []  # merged or cancelled
        self.merged: list[tuple[float, int]] = []  # start and updates; a run may end while the server computes the last
        self.ages: list[tuple[int, int]] = []  # of merged updates: models since theirs, and their staleness
        self.closed: list[tuple[int, float, float]] = []  # jobs that had ended, time, joules
        self._listen()
        self._limit()
        self.simulation.run()  # checks the ledger
        self.tables = {**frames(self.simulation), "devices": pd.DataFrame(self.simulation.devices())}
        self.jobs, self.devices = self.tables["jobs"], self.tables["devices"]
        self.rounds = attributed(self.jobs, self.tables["rounds"])
        self.end_s = self.simulation.session.now_s
        self.fleet, self.peers = self.simulation.parts.fleet, scenario.peers is not None
        self.rule = scenario.protocol.value

    def round_closed(self, info: Mapping[str, Any]) -> None:
        """Remember how many jobs had ended, and the joules of the run so far."""
        self.closed.append((len(self.simulation.tables["jobs"]), info["now_s"], info["energy_j"]))

    def _listen(self) -> None:
        learner, merge = self.simulation.learner, self.simulation.learner.aggregate
        learner.start = lambda jobs: self.started.extend(job.id for job in jobs)
        learner.cancel = self.let_go.extend

        def listening(completions, view):
            delivered = [completion for completion in completions if completion.outcome in DELIVERED]
            self.let_go += delivered
            self.merged.append((view.now_s, len(delivered)))
            self.ages += [(view.version - each.job.base.version, each.staleness) for each in delivered]
            return merge(completions, view)

        learner.aggregate = listening

    def _limit(self) -> None:
        """Make a run fail that goes round in circles."""
        env, step, events = self.simulation.session.env, self.simulation.session.env.step, count()

        def counting():
            assert next(events) < MOST_EVENTS, f"still running at {env.now} s"
            step()

        env.step = counting


# --- laws --------------------------------------------------------------------------------------------------------


def time_runs_forward(seen: Seen) -> None:
    """Rows are written in the order of time, rounds follow one another, and the run ended for a reason."""
    jobs, rounds = seen.jobs, seen.rounds
    assert jobs["end_s"].is_monotonic_increasing
    assert (jobs["sent_s"] <= jobs["end_s"]).all()
    assert rounds["start_s"].tolist() == [0.0, *rounds["now_s"]][: len(rounds)]
    assert rounds["now_s"].is_monotonic_increasing
    assert max([0.0, *jobs["end_s"], *rounds["now_s"]]) <= seen.end_s
    assert seen.simulation.rounds.stop_reason


def jobs_end_once(seen: Seen) -> None:
    """Every job sent has one row with a known outcome, and the learner hears of it once, by the next merge."""
    jobs = seen.jobs
    assert sorted(jobs["job"]) == sorted(seen.started) == list(range(len(jobs)))
    assert not seen.simulation.session.running
    assert set(jobs["outcome"]) <= set(get_args(Outcome))
    told = {completion.job.id: completion.outcome for completion in seen.let_go}
    assert len(told) == len(seen.let_go)
    if not hasattr(seen.rule, "buffer") and not seen.rule.tiers:  # else updates may wait while the server computes
        assert told.keys() >= set(jobs["job"][jobs["end_s"] < max(seen.merged, default=(0.0, 0))[0]])
    written = dict(zip(jobs["job"], jobs["outcome"], strict=True))
    assert told == {job: written[job] for job in told}
    used = [updates for _, updates in seen.merged]
    assert seen.rounds["used"].tolist() == used[: len(seen.rounds)]
    assert sum(used) == sum(outcome in DELIVERED for outcome in told.values())


def one_job_at_a_time(seen: Seen) -> None:
    """No device starts a job before its last one has ended, nor while it is away, nor goes on when it has left."""
    there = seen.simulation.parts.availability
    for _, own in seen.jobs.sort_values("job").groupby("device"):
        assert (own["sent_s"].to_numpy()[1:] >= own["end_s"].to_numpy()[:-1]).all()
    ids, sent_s = (seen.jobs[name].to_numpy() for name in ("device", "sent_s"))
    assert (there.on_from_s(ids, sent_s) == sent_s).all()
    leaves_s = there.until_s(ids, sent_s)
    assert (seen.jobs["end_s"] <= leaves_s + ROUNDING_S).all()
    left = (seen.jobs["outcome"] == "offline").to_numpy()
    assert seen.jobs["end_s"][left].to_numpy() == pytest.approx(leaves_s[left])


def seconds_add_up(seen: Seen) -> None:
    """Phases and waits fill the time of a job, and what decided a round's length fills the round."""
    jobs, rounds = seen.jobs, seen.rounds
    assert (jobs[[*PHASES, "link_wait_s"]] >= 0).all(axis=None)
    assert (jobs["link_wait_s"] <= jobs["down_s"] + jobs["up_s"] + ROUNDING_S).all()
    lasted_s = (jobs["end_s"] - jobs["sent_s"]).to_numpy()
    assert jobs[PHASES].sum(axis=1).to_numpy() == pytest.approx(lasted_s, abs=ROUNDING_S)
    rounds_s = (rounds["now_s"] - rounds["start_s"]).to_numpy()
    assert (rounds[CRITICAL] >= 0).all(axis=None)
    assert rounds[[*CRITICAL, "server_s"]].sum(axis=1).to_numpy() == pytest.approx(rounds_s, abs=ROUNDING_S)


def protocols_keep_their_word(seen: Seen) -> None:
    """Deadlines unless a round is extended, at least and at most so many updates a merge, and devices at a time."""
    rounds, rule = seen.rounds, seen.rule
    least, most = getattr(rule, "minimum", 0), getattr(rule, "buffer", np.inf)
    assert ((rounds["used"] == 0) | rounds["used"].between(least, most)).all()
    merged = seen.jobs[seen.jobs["job"].isin([a.job.id for a in seen.let_go if a.outcome in DELIVERED])]
    assert (merged.groupby(["round", "task"]).size() <= getattr(rule, "keep", np.inf)).all()
    sent_s, end_s = np.sort(seen.jobs["sent_s"]), np.sort(seen.jobs["end_s"])
    at_work = np.arange(1, 1 + len(sent_s)) - np.searchsorted(end_s, sent_s, side="right")
    assert at_work.max(initial=0) <= getattr(rule, "concurrency", len(seen.fleet))
    if least == 0 and rule.deadline_s < np.inf:
        began_s = seen.jobs.groupby("round")["sent_s"].min().reindex(rounds["round"]).to_numpy()
        assert (rounds["now_s"] - rounds["server_s"] <= began_s + rule.deadline_s + ROUNDING_S).all()


def work_is_paid_for(seen: Seen) -> None:
    """FLOPs and joules of a job follow from the seconds that it really spent, whatever its outcome."""
    jobs, parts = seen.jobs, seen.simulation.parts
    devices = jobs["device"].to_numpy()
    assert jobs["compute_j"].to_numpy() == pytest.approx(COMPUTE_W * jobs["compute_s"].to_numpy(), abs=ROUNDING_S)
    if seen.fleet.steady:  # else factors slow computing down
        speeds = seen.fleet.flops_per_s[devices]
        assert jobs["flops"].to_numpy() / speeds == pytest.approx(jobs["compute_s"].to_numpy(), abs=ROUNDING_S)
    if seen.peers or (parts.failures is not None and parts.failures.links is not None):
        return
    paths = parts.shared and parts.shared.paths
    ways = {"down": (RECEIVE_W, lambda node: (0, node)), "up": (TRANSMIT_W, lambda node: (node, 0))}
    for way, (watts, ends) in ways.items():
        latency_s = [paths.latency_s(*ends(1 + d)) if paths else seen.fleet.latency_s[d] for d in devices.tolist()]
        air_s = np.maximum(0.0, jobs[f"{way}_s"] - latency_s).to_numpy()
        if getattr(parts.scenario.network.value, "access", None) == "tdma":  # radios are on in their own turns
            assert (jobs[f"{way}_j"] <= watts * air_s + ROUNDING_S).all()
            turns_s = jobs[f"{way}_j"].sum() / watts
            cells = 2 if parts.scenario.topology.name == "tree" else 1
            assert turns_s <= cells * seen.end_s + ROUNDING_S
        else:
            assert jobs[f"{way}_j"].to_numpy() == pytest.approx(watts * air_s, abs=ROUNDING_S)


def joules_add_up(seen: Seen) -> None:
    """Joules of jobs and of idle and sleeping time, worked out here, are those of devices, rounds and the ledger."""
    simulation, rows, fleet = seen.simulation, seen.devices[:-1], seen.fleet
    spent_j = seen.devices[["down_j", "compute_j", "up_j", "idle_j", "sleep_j"]].to_numpy()
    assert (spent_j >= 0).all()
    total_j = spent_j.sum() + seen.jobs["link_j"].sum()
    assert charged_j(simulation.ledger, seen.end_s) == pytest.approx(total_j, rel=1e-9)
    if any(block.battery for block in simulation.parts.scenario.fleet):
        return
    awake_s, asleep_s = rows["idle_j"] / fleet.idle_w, rows["sleep_j"] / fleet.sleep_w
    assert (awake_s + asleep_s).to_numpy() == pytest.approx(np.full(len(fleet), seen.end_s))
    of_rounds = seen.rounds.assign(server_s=seen.rounds["server_s"].cumsum()).to_dict("records")
    for (ended, now_s, energy_j), row in zip(seen.closed, of_rounds, strict=True):
        server, away = simulation.parts.scenario.server, simulation.parts.availability.off_s(now_s)
        resting_j = (fleet.idle_w * (now_s - away) + fleet.sleep_w * away).sum()
        in_flight = seen.jobs[ended:].query("sent_s < @now_s")  # at most all that they spend in the end
        for found_j, names, rest_j in ((energy_j, JOULES, resting_j), (row["total_energy_network_j"], ["link_j"], 0.0)):
            ended_j = seen.jobs[names][:ended].to_numpy().sum() + rest_j
            most_j, slack_j = ended_j + in_flight[names].to_numpy().sum(), 1e-9 * found_j
            assert ended_j - slack_j <= found_j <= most_j + slack_j
        # of several workers all others are at a merge for no longer than the one that is longest at it
        idle_j, worker_j = server.idle * now_s, (server.busy - server.idle) * row["server_s"]
        server_j = row["total_energy_server_j"]
        assert (idle_j + worker_j) * (1 - 1e-9) <= server_j <= (idle_j + server.workers * worker_j) * (1 + 1e-9)
    assert seen.rounds["total_energy_j"].to_numpy() == pytest.approx([energy_j for *_, energy_j in seen.closed])


def batteries_give_what_they_have(seen: Seen) -> None:
    """A device spends no more than its battery held and was charged with, and all of that once it is empty."""
    spent_j, first = seen.devices[["down_j", "compute_j", "up_j", "idle_j"]].sum(axis=1).to_numpy(), 0
    died = set(seen.jobs["device"][seen.jobs["outcome"] == "battery"])
    for block in seen.simulation.parts.scenario.fleet:
        devices = range(first, first + block.count)
        first += block.count
        if block.battery is None:
            assert not died & set(devices)
            continue
        battery = block.battery.value
        held_j = battery.capacity * battery.level
        assert (spent_j[devices] <= held_j + battery.charge * seen.end_s + ROUNDING_S).all()
        if battery.charge == 0:
            empty_j = spent_j[[device for device in devices if device in died]]
            assert empty_j == pytest.approx(np.full(len(empty_j), held_j), abs=ROUNDING_S)


def messages_pay_both_ends(seen: Seen) -> None:
    """What peers sent is what others received, and no radio draws while it could not be on."""
    if not seen.peers:
        return
    jobs, rows = seen.jobs, seen.devices[:-1]
    assert (jobs["peer_bytes"] == jobs["down_bytes"]).all()
    assert rows["up_j"].sum() == pytest.approx(jobs["peer_j"].sum(), abs=ROUNDING_S)
    lasted_s = (jobs["end_s"] - jobs["sent_s"]).to_numpy()
    if seen.simulation.parts.shared is None:  # inputs share a downlink; at the sender links are not contended
        assert (jobs["down_j"] <= RECEIVE_W * lasted_s + ROUNDING_S).all()
        return
    for way, watts in ("down_j", RECEIVE_W), ("up_j", TRANSMIT_W):
        assert (rows[way] <= watts * seen.end_s + ROUNDING_S).all()


def bytes_add_up(seen: Seen) -> None:
    """What devices received and sent is what their jobs moved."""
    jobs, devices = seen.jobs, seen.devices
    assert devices["down_bytes"].sum() == jobs["down_bytes"].sum()
    assert devices["up_bytes"].sum() == (jobs["up_bytes"] + jobs["peer_bytes"]).sum()


def staleness_counts_models(seen: Seen) -> None:
    """An update is as stale as there have been models since its device got one, at the merge that takes it."""
    assert seen.peers or all(models == staleness for models, staleness in seen.ages)


def nobody_waits_in_vain(seen: Seen) -> None:
    """Time in which no device works and the server does not compute is time in which nobody can be reached."""
    there = seen.simulation.parts.availability
    by_chance = there.retry_s < np.inf or any(block.battery for block in seen.simulation.parts.scenario.fleet)
    at_once = (seen.jobs["sent_s"] == seen.jobs["end_s"]) & ~seen.jobs["outcome"].isin(DELIVERED)
    if by_chance or at_once.any():
        return
    begin_s = [*seen.jobs["sent_s"], *(start_s for start_s, _ in seen.merged), seen.end_s]
    end_s = [*seen.jobs["end_s"], *[*seen.rounds["now_s"], seen.end_s][: len(seen.merged)], seen.end_s]
    until_s, idle_s = 0.0, []
    for from_s, to_s in sorted(zip(begin_s, end_s, strict=True)):
        idle_s += np.linspace(until_s, from_s, 12)[1:-1].tolist() if from_s > until_s + ROUNDING_S else []
        until_s = max(until_s, to_s)
    assert not [at_s for at_s in idle_s if there.on(at_s, 0).any()]


LAWS = (
    time_runs_forward,
    jobs_end_once,
    one_job_at_a_time,
    seconds_add_up,
    protocols_keep_their_word,
    work_is_paid_for,
    joules_add_up,
    batteries_give_what_they_have,
    messages_pay_both_ends,
    bytes_add_up,
    staleness_counts_models,
    nobody_waits_in_vain,
)


def check(given: Mapping[str, Any], trace: Path) -> None:
    """Run a scenario twice: every law holds, and both runs are the same to the last bit."""
    seen, again = Seen(given, trace), Seen(given, trace)
    for law in LAWS:
        law(seen)
    for name, table in seen.tables.items():
        pd.testing.assert_frame_equal(table, again.tables[name], check_exact=True)


@settings(ALIKE, max_examples=examples(220, short=8))
@given(given=with_rounds())
def test_laws_of_rounds(given, trace):
    """Synchronous, with deadlines of every rule, and over-selection."""
    check(given, trace)


@settings(ALIKE, max_examples=examples(140, short=6))
@given(given=without_rounds())
def test_laws_without_rounds(given, trace):
    """Buffered, fully asynchronous, and in tiers."""
    check(given, trace)


@settings(ALIKE, max_examples=examples(250, short=6))
@given(given=among_peers())
def test_laws_among_peers(given, trace):
    """No server; devices wait for one another's messages, with batteries, outages, crashes and partial work."""
    check(given, trace)
