"""What every part of the world promises: nothing negative, more work never costs less, devices stand for themselves."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from edgesim.config.plugins import PACKAGES, plugins_of
from edgesim.core.job import Prices
from edgesim.core.local_sgd import LocalSGD
from edgesim.core.rng import Draws, Key
from edgesim.core.selection import Informed
from edgesim.core.task import Order, Pass, Payload, Submodel, Task
from edgesim.engine.pricing import Pricer
from edgesim.runs.assembly import assemble
from edgesim.world.fleet import Fleet, build_fleet
from tests.contracts.support import mixed_scenario, run
from tests.sizes import examples

DEVICES = 6
KEY = Key(5).at(7)

FILES = Path(__file__).with_name("examples")
LINK = {"up": {"log_uniform": ["1 Mbit/s", "9 Mbit/s"]}, "down": "8 Mbit/s", "latency": "20 ms"}
CELL = {"bandwidth": "1 MHz", "distance_m": {"uniform": [50, 500]}, "weight": {"uniform": [1, 3]}}

# Arguments for parts that cannot do without or do nothing then, with spreads wherever a part takes them.
SPREAD_WATTS = {"uniform": ["0.1 W", "0.5 W"]}
EXAMPLES: dict[tuple[str, str], dict[str, Any]] = {
    ("network", "wireless"): {"bandwidth": "1 MHz", "distance_m": {"uniform": [50, 500]}},
    ("network", "cell"): CELL,
    ("allocator", "min_energy"): {"deadline": "20 s"},
    ("resources", "min_energy"): {"deadline": "20 s"},
    ("network", "fixed"): LINK,
    ("network", "shared"): LINK,
    ("network", "trace"): {"file": str(FILES / "rates.csv"), "latency": "20 ms"},
    ("energy", "power"): {"busy": "4 W", "idle": SPREAD_WATTS, "transmit": SPREAD_WATTS, "receive": "0.2 W"},
    ("energy", "cpu"): {"idle": SPREAD_WATTS, "transmit": "1 W"},
    ("slowdown", "log_normal"): {"sigma": 0.5},
    ("slowdown", "shifted_exponential"): {"scale": 0.3},
    ("slowdown", "pareto"): {"alpha": 3.0},
    ("slowdown", "markov"): {"idle": "20 s", "busy": "5 s", "factor": 3.0},
    ("slowdown", "replay"): {"file": str(FILES / "speeds.csv")},
    ("cost", "table"): {"ratios": [0.4, 0.7, 1.0]},
    ("cost", "as"): {"model": "cnn_mnist"},
    ("tariff", "constant"): {"price": "0.3 EUR/kWh"},
    ("tariff", "daily"): {"hours": ["0.3 EUR/kWh"] * 24, "starts_at": "8 h"},
    ("tariff", "series"): {"file": str(FILES / "prices.csv"), "of": "1 EUR/MWh"},
    ("tariff", "average"): {"of": "electricity", "place": "EU"},
    ("governor", "fixed"): {"frequency": "1 GHz"},
    ("energy", "voltage"): {"points": [["0.5 GHz", "0.7 V"], ["3 GHz", "1.1 V"]], "capacitance": "400 pF"},
    ("energy", "gpu"): {"limit": "20 W", "utilisation": {"uniform": [0.5, 1.0]}, "memory_share": 0.5},
    ("clock", "terms"): {"flops": "0.1 ns", "steps": "2 ms", "clocked": {"steps": 0.5}},
    ("battery", "rechargeable"): {
        "capacity": {"uniform": ["5 J", "50 J"]},
        "charge": "5 W",
        "windows": [["0 s", "9 h"]],
    },
    ("topology", "tree"): {"edge_servers": 2, "edge_up": "2 Mbit/s"},
    ("topology", "random_regular"): {"degree": 2},
    ("mobility", "markov"): {"stay": "2 s"},
    ("mobility", "trace"): {"file": str(FILES / "moves.csv")},
    ("topology", "file"): {"file": str(FILES / "links.csv")},
    ("availability", "bernoulli"): {"p": {"uniform": [0.2, 0.9]}},
    ("availability", "sessions"): {"on": {"uniform": ["5 s", "20 s"]}, "off": "5 s"},
    ("availability", "groups"): {"size": 2, "on": "20 s", "off": "5 s"},
    ("availability", "diurnal"): {"slot": "2 s", "period": "60 s", "zones": 3},
    ("availability", "lifetime"): {"join": {"uniform": ["0 s", "5 s"]}, "leave": {"uniform": ["20 s", "99 s"]}},
    ("availability", "trace"): {"file": str(FILES / "availability.csv")},
    ("failure", "attackers"): {"probability": {"uniform": [0.1, 0.9]}, "labels": "next", "factor": -1.0},
    ("failure", "crash"): {"probability": {"uniform": [0.1, 0.9]}},
    ("failure", "link_outage"): {"up": {"uniform": ["2 s", "9 s"]}, "down": "1 s"},
    ("failure", "partial_work"): {"probability": {"uniform": [0.1, 0.9]}},
    ("failure", "server_restart"): {"mean_time": "3 s"},
    ("peers", "expander"): {"degree": 2},
    ("peers", "random"): {"degree": 3},
    ("peers", "gossip_match"): {"size": 3},
    ("peers", "star_of_stars"): {"hubs": 2},
    ("peers", "file"): {"file": str(FILES / "peers.csv")},
}


def parts(kind: str) -> list[tuple[str, dict[str, Any]]]:
    """Return name and table of every shipped part of a kind, with the arguments of its example."""
    return [(name, {"name": name, **EXAMPLES.get((kind, name), {})}) for name in plugins_of(kind)]


every_of = {
    kind: pytest.mark.parametrize("table", [pytest.param(table, id=name) for name, table in parts(kind)])
    for kind in ("availability", "failure", "peers", "discipline")
}


def scenario(count: int = DEVICES, **changes: Any) -> Any:
    """Return a timing-only scenario of one block whose speeds are spread."""
    cpu = {"frequency": {"uniform": ["1 GHz", "2 GHz"]}, "flops_per_cycle": 4, "cores": 2, "efficiency": 0.1}
    return mixed_scenario(fleet=[{"count": count, "cpu": cpu}], backend="null", **changes)


every_world = pytest.mark.parametrize(
    "changes",
    [pytest.param({kind: table}, id=name) for kind in ("network", "energy", "slowdown") for name, table in parts(kind)],
)


@every_world
def test_columns_are_physical_and_read_only(changes):
    """Powers and latencies are finite and >= 0, speeds and rates > 0, one entry a device; nobody can write them."""
    fleet = build_fleet(scenario(**changes))
    for name in ("idle_w", "transmit_w", "receive_w", "latency_s"):
        column = getattr(fleet, name)
        assert column.shape == (DEVICES,)
        assert np.isfinite(column).all()
        assert (column >= 0).all()
    for name in ("flops_per_s", "up_bps", "down_bps"):
        assert (getattr(fleet, name) > 0).all()
    arrays = [v for f in dataclasses.fields(Fleet) if isinstance(v := getattr(fleet, f.name), np.ndarray)]
    assert len(arrays) >= 9
    assert not any(array.flags.writeable for array in arrays)


@every_world
def test_more_devices_leave_the_first_as_they_were(changes):
    """Five devices more change no column of the others; the same fleet asked for again is the same fleet."""
    small, large, again = (build_fleet(scenario(count, **changes)) for count in (DEVICES, DEVICES + 5, DEVICES))
    for field in dataclasses.fields(Fleet):
        column = getattr(small, field.name)
        if isinstance(column, np.ndarray):
            assert np.array_equal(getattr(again, field.name), column)
            assert np.array_equal(getattr(large, field.name)[:DEVICES], column)


def test_a_longer_block_leaves_later_blocks_alone():
    """Every block has streams of its own: devices of the second block do not depend on the size of the first."""
    cpu = {"flops_per_s": {"log_uniform": ["1 GFLOP/s", "9 GFLOP/s"]}}
    fleets = [
        build_fleet(mixed_scenario(fleet=[{"count": count, "cpu": cpu}, {"count": 3, "cpu": cpu}], backend="null"))
        for count in (2, 7)
    ]
    assert fleets[0].flops_per_s[-3:].tolist() == fleets[1].flops_per_s[-3:].tolist()
    assert fleets[0].up_bps[-3:].tolist() == fleets[1].up_bps[-3:].tolist()


@every_world
def test_prices_of_many_are_those_of_each(changes):
    """Vector answer = loop of single answers, bit for bit; asking twice gives the same; nothing is negative."""
    assembly = assemble(scenario(**changes))
    sgd = assembly.setting.training.local_sgd(0)
    tasks = [Task(local_sgd=(sgd,)), Task("probe", down=None, passes=(Pass("forward", samples=9),))]
    ids = np.array([4, 0, 5, 2])
    nth = np.array([0, 3, 1, 2])

    pricer = Pricer(assembly.fleet, assembly.setting)

    def price(orders, places, by=pricer):
        return np.stack(by.prices([orders[place] for place in places], 7.0, Draws(KEY, ids[places], nth[places])))

    of_both = tuple(Order(device, tasks[place % 2]) for place, device in enumerate(ids.tolist()))
    for orders in ([Order(d, tasks[0]) for d in ids.tolist()], [Order(d, tasks[1]) for d in ids.tolist()], of_both):
        together = price(orders, np.arange(4))
        alone = [price(orders, np.array([place]), Pricer(assembly.fleet, assembly.setting)) for place in range(4)]
        assert together.shape == (len(Prices._fields), len(ids))
        assert np.array_equal(together, np.concatenate(alone, axis=1))
        assert np.array_equal(together, price(orders, np.arange(4)))
        assert (together >= 0).all()


@settings(max_examples=examples(25), deadline=None)
@given(
    work=st.lists(st.floats(0, 1e15), min_size=2, max_size=2).map(sorted),
    device=st.integers(0, DEVICES - 1),
    energy=st.sampled_from([table for _, table in parts("energy")]),
)
def test_more_work_never_takes_less(work, device, energy):
    """Seconds of computation and transfer are >= 0, 0 for nothing, and rise with FLOPs and bytes."""
    fleet = build_fleet(scenario(energy=energy))
    ids = np.array([device, device])
    draws, now_s, nothing_s = Draws(KEY, ids, np.zeros(2, dtype=np.int64)), np.full(2, 3.0), np.zeros(2)
    compute_s, joules = fleet.compute(ids, np.array(work), nothing_s, np.inf, now_s, draws)
    whole_s, air_s = fleet.transfer_s(ids, np.array(work), True, now_s, draws)
    for seconds in (compute_s, joules, whole_s, air_s):
        assert 0 <= seconds[0] <= seconds[1] < np.inf
    assert (whole_s >= air_s).all()
    assert fleet.compute(ids, nothing_s, nothing_s, np.inf, now_s, draws)[0].tolist() == [0, 0]


def chosen(kind: str, table: dict[str, Any]) -> Any:
    """Return the part that a table chooses."""
    arguments = {key: value for key, value in table.items() if key != "name"}
    return TypeAdapter(plugins_of(kind)[table["name"]]).validate_python(arguments)


@pytest.mark.parametrize(("name", "table"), parts("cost"))
@pytest.mark.parametrize("kind", ["train", "forward", "param_step", "flops"])
def test_costs_rise_with_the_work(name, table, kind):
    """FLOPs are >= 0 and never fall with samples, steps, times or width; vectors equal loops; no input is changed."""
    cost, cost_profile = chosen("cost", table), assemble(scenario(cost=table, method="fedpmt")).setting.cost_profile
    samples, steps = np.array([0.0, 16.0, 40.0]), np.array([0.0, 1.0, 3.0])
    widths = [
        Submodel(f"last{w}", frozen=cost_profile.before_last(w) if w < 3 else frozenset(), width=w) for w in (1, 2, 3)
    ]
    rows = np.stack([cost.flops(cost_profile, Pass(kind), part, samples, steps) for part in widths])
    assert (rows >= 0).all()
    assert (np.diff(rows, axis=0) >= 0).all()
    assert (np.diff(rows, axis=1) >= 0).all()
    assert (cost.flops(cost_profile, Pass(kind, times=2.0), widths[0], samples, steps) == 2 * rows[0]).all()
    alone = [cost.flops(cost_profile, Pass(kind), widths[0], samples[i : i + 1], steps[i : i + 1])[0] for i in range(3)]
    assert alone == rows[0].tolist()
    assert (samples.tolist(), steps.tolist()) == ([0, 16, 40], [0, 1, 3])


@every_of["availability"]
def test_asking_who_is_there_changes_nothing(table):
    """The answers at an instant are the same however often and in whichever order instants are asked for.

    Who is there now stays until a later instant. In a larger fleet the first devices come and go as before.
    """
    ids, instants = np.arange(DEVICES), [0.0, 17.5, 3.0, 1e6]
    part = chosen("availability", table)
    there, larger = (part.build(n, KEY, "availability") for n in (DEVICES, DEVICES + 5))

    def answers(each, now_s):
        on = each.on(now_s, 3)
        assert (on.shape, on.dtype) == ((each.n,), bool)
        until_s = each.until_s(ids, now_s)
        assert (until_s > now_s).all()
        return [on[:DEVICES].tolist(), until_s.tolist(), each.on_from_s(ids, np.full(DEVICES, now_s)).tolist()]

    first = {now_s: [answers(there, now_s), there.next_on_s(now_s)] for now_s in instants}
    for now_s in reversed(instants):
        assert [answers(there, now_s), there.next_on_s(now_s)] == first[now_s]
        assert there.next_on_s(now_s) > now_s
        assert answers(larger, now_s) == first[now_s][0]


@every_of["failure"]
def test_asking_what_fails_changes_nothing(table):
    """What becomes of a job depends on that job alone: not on who asks, what was asked before, or other devices."""
    part = chosen("failure", table)
    failure, larger = (part.build(n, KEY, "failures.0") for n in (DEVICES, DEVICES + 5))
    ids, nth = np.arange(DEVICES), np.array([0, 3, 1, 2, 0, 7])
    phases_s = np.outer([1.0, 2.0, 3.0], np.arange(1, DEVICES + 1))

    def answers(each, places):
        draws = Draws(KEY, ids[places], nth[places])
        phase, after_s = each.strikes(draws, phases_s[:, places])
        share = each.work_share(draws)
        assert (after_s >= 0).all() and ((share > 0) & (share <= 1)).all()
        links = None if each.links is None else each.links.on(ids[places], 4.0).tolist()
        return [phase.tolist(), after_s.tolist(), share.tolist(), links, each.next_restart_s(4.0)]

    together = answers(failure, ids)
    assert answers(failure, ids) == together == answers(larger, ids)
    for place in reversed(range(DEVICES)):
        alone = answers(failure, ids[place : place + 1])
        assert alone[:3] == [column[place : place + 1] for column in together[:3]]
    assert failure.next_restart_s(4.0) > 4.0


@every_of["peers"]
def test_asking_who_hears_whom_changes_nothing(table):
    """The graph of a round is the same asked for again, in any order; only who is there is heard, and hears."""
    part, online = chosen("peers", table), np.array([True, True, False, True, True, True])
    part.check(DEVICES)
    rounds = [0, 3, 1, 3]
    graphs = [part.graph(online, round_, KEY.at(round_)) for round_ in rounds]
    for round_, graph in zip(reversed(rounds), reversed(graphs), strict=True):
        again = part.graph(online, round_, KEY.at(round_))
        assert np.array_equal(again.first, graph.first) and np.array_equal(again.sources, graph.sources)
        assert not {2} & {*graph.sources.tolist(), *graph.targets.tolist()}
        assert (graph.sources != graph.targets).all()
        assert not graph.sources.flags.writeable


TRANSFER = st.tuples(
    st.integers(0, 20), st.sets(st.sampled_from("abc"), min_size=1), st.integers(0, 60), st.integers(1, 99)
)  # second of its start, links, bytes, and seconds after which it is dropped if it is still under way


@every_of["discipline"]
@settings(max_examples=examples(60), deadline=None)
@given(transfers=st.lists(TRANSFER, min_size=1, max_size=8))
def test_links_carry_no_more_than_they_can(table, transfers):
    """Whatever the discipline: no link is overloaded, no transfer is faster than alone, and all of its bytes move.

    Asking changes nothing, and what was dropped had moved at most all of it.
    """
    speeds = {"a": 8.0, "b": 16.0, "c": 40.0}  # bit/s
    links = chosen("discipline", table).links(speeds)
    events = [(start_s, "start", flow) for flow, (start_s, *_) in enumerate(transfers)]
    events = sorted(
        events + [(start_s + lasts_s, "drop", flow) for flow, (start_s, *_, lasts_s) in enumerate(transfers)]
    )
    moved = {}  # bytes of those under way
    while events:
        done = links.next_done()
        at_s, what, flow = (*done[:1], "end", done[1]) if done and done[0] <= events[0][0] else events.pop(0)
        before, moved = moved, {each: links.moved_bytes(each, at_s) for each in moved}
        assert moved == {each: links.moved_bytes(each, at_s) for each in moved}
        assert all(before[each] - 1e-9 <= moved[each] <= transfers[each][2] + 1e-9 for each in moved)
        start_s, path, nbytes, _ = transfers[flow]
        if what == "start":
            links.admit(flow, sorted(path), float(nbytes), float(at_s))
            moved[flow] = 0.0
        elif what == "end":
            links.finish(flow, at_s)
            assert moved.pop(flow) == pytest.approx(nbytes)
            assert at_s - start_s >= 8 * nbytes / min(speeds[link] for link in path) - 1e-9
        elif flow in moved:
            assert links.drop(flow, float(at_s)) == moved.pop(flow)
        assert links.busy == len(moved)
        assert links.next_done() == links.next_done()
        for link, bps in speeds.items():
            rates = [links.rate_bps(each) for each in moved if link in transfers[each][1] and transfers[each][2]]
            assert sum(rates) <= bps * (1 + 1e-9)
    assert links.busy == 0


def world_of(kind: str, table: dict[str, Any]) -> dict[str, Any]:
    """Return the changes of a scenario in which a part of a kind has work to do."""
    cpu = {"frequency": {"uniform": ["1 GHz", "2 GHz"]}, "flops_per_cycle": 4, "efficiency": 0.01}
    block = {"count": DEVICES, "cpu": {**cpu, "min_frequency": "0.5 GHz"}}
    energy = {"name": "cpu", "idle": "0.5 W", "transmit": "1 W"}
    common = {"fleet": [block], "energy": energy, "network": {"name": "fixed", **LINK}}
    return common | {
        "failure": {"failures": [table]},
        "peers": {"peers": table, "method": "dfedavg"},
        "topology": {"topology": table, "network": {"name": "shared", **LINK}},
        "discipline": {"network": {"name": "shared", **LINK, "discipline": table}},
        "allocator": {"network": {"name": "cell", **CELL, "allocator": table}},
        "resources": {
            "resources": table,
            "network": {"name": "cell", **CELL, "efficiency": 0.5},
            "energy": {"name": "cpu", "idle": "0.5 W"},
        },
        "governor": {"fleet": [{**block, "cpu": {**block["cpu"], "governor": table}}]},
        "clock": {"fleet": [{**block, "cpu": {**block["cpu"], "clock": table, "governor": "just_in_time"}}]},
        "battery": {"fleet": [{**block, "battery": table}]},
        "cost": {"cost": table, "method": "fedpmt"},
        "mobility": {
            "edges": {"mobility": table, "handover": "new"},
            "topology": {"name": "tree", "edge_servers": 3},
            "network": {"name": "shared", **LINK},
        },
        "tariff": {"prices": {"electricity": table}},
    }.get(kind, {kind: table})


WORLDS = ("cost", "network", "energy", "slowdown", "governor", "clock", "battery", "availability", "failure", "peers")
WORLDS += ("topology", "tariff", "discipline", "allocator", "mobility", "resources")


@pytest.mark.parametrize(("kind", "table"), [pytest.param(k, t, id=f"{k} {n}") for k in WORLDS for n, t in parts(k)])
def test_every_part_works_in_a_run(kind, table):
    """Rounds pass, every job ends once and after it began, updates arrive, and the joules of the ledger add up."""
    simulation = run(mixed_scenario(**world_of(kind, table), backend="null", stop={"rounds": 8}))
    jobs, rounds = simulation.tables["jobs"].frame(), simulation.tables["rounds"].frame()
    assert len(rounds) == 8
    assert sorted(jobs["job"]) == list(range(len(jobs)))
    assert (jobs["end_s"] >= jobs["sent_s"]).all()
    assert (jobs[["down_s", "compute_s", "up_s", "flops", "down_j", "compute_j", "up_j"]] >= 0).all(axis=None)
    assert rounds["used"].sum() > 0
    assert (rounds["now_s"].diff().iloc[1:] >= 0).all()


SELECTIONS = [{"name": "all"}, {"name": "uniform", "count": 4}, {"name": "uniform", "fraction": 0.5}]
SELECTIONS += [{"name": "stratified", "count": 4}, {"name": "poisson", "rate": 0.3}]


@pytest.mark.parametrize("table", SELECTIONS, ids=str)
def test_choices_are_idle_distinct_and_repeatable(table):
    """A selection depends on idle set, levels and key alone; another key may choose others."""
    part, level, idle = chosen("selection", table), np.repeat([1, 2], 6), np.array([1, 2, 3, 5, 6, 7, 8, 10, 11])
    choices = [part.choose(idle, level, Key(s)).tolist() for s in range(20)]
    assert choices == [part.choose(idle, level, Key(s)).tolist() for s in range(20)]
    assert all(c == sorted(set(c)) and set(c) <= set(idle.tolist()) for c in choices)
    assert (len({str(c) for c in choices}) == 1) == (table["name"] == "all")


def test_examples_cover_every_selection():
    """A selection that edgesim ships has to be tried here, as has every other part of the world; none is made up.

    Those that look at what is known of devices are tried in test_known.py.
    """
    plain = {name for name, cls in plugins_of("selection").items() if not issubclass(cls, Informed)}
    assert {table["name"] for table in SELECTIONS} == plain
    assert {(kind, name) for kind, name in EXAMPLES if name not in plugins_of(kind)} == set()
    assert {kind for kind, package in PACKAGES.items() if ".world." in package or kind == "cost"} == set(WORLDS)


def test_message_prices_follow_the_payload():
    """4 bytes a float, the extra bytes on top, nothing for a bare request; rates and latency turn them into seconds."""
    assembly = assemble(scenario(network={"name": "fixed", "up": "1 Mbit/s", "down": "2 Mbit/s", "latency": 0.5}))
    up = Payload(collections=frozenset({"params"}), layers=frozenset({"fc1"}), extra_bytes=3)
    task = Task(local_sgd=(LocalSGD(batch=16, lr=0.1, epochs=1),), down=None, up=up)
    draws = Draws(KEY, np.array([0]), np.array([0]))
    [prices] = Pricer(assembly.fleet, assembly.setting).of_each([Order(0, task)], 0.0, draws)
    fc_bytes = 4 * (128 * 10 + 10) + 3  # 32 channels of 2 x 2 pixels to 10 classes
    assert (prices.down_bytes, prices.up_bytes, prices.message_bytes) == (0, fc_bytes, fc_bytes)
    assert prices.down_s == 0.5  # a bare request still takes the latency
    assert prices.up_s == pytest.approx(0.5 + 8 * fc_bytes / 1e6)
