"""What every part of the world promises: nothing negative, more work never costs less, devices stand for themselves."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from edgesim.assembly import assemble
from edgesim.catalogue import parts_of
from edgesim.contracts import Order, Part, Pass, Payload, Stretch, Task
from edgesim.engine.pricing import ROWS, price_orders, price_task
from edgesim.rng import Draws, Key
from edgesim.world.fleet import Fleet, build_fleet
from tests.contracts.support import mixed_scenario

DEVICES = 6
KEY = Key(5).at(7)

# Arguments for parts that cannot do without, with spreads wherever a part takes them.
SPREAD_WATTS = {"uniform": ["0.1 W", "0.5 W"]}
EXAMPLES: dict[tuple[str, str], dict[str, Any]] = {
    ("network", "wireless"): {"bandwidth": "1 MHz", "distance_m": {"uniform": [50, 500]}},
    ("network", "fixed"): {"up": {"log_uniform": ["1 Mbit/s", "9 Mbit/s"]}, "down": "8 Mbit/s", "latency": "20 ms"},
    ("energy", "power"): {"busy": "4 W", "idle": SPREAD_WATTS, "transmit": SPREAD_WATTS, "receive": "0.2 W"},
    ("energy", "cpu"): {"idle": SPREAD_WATTS, "transmit": "1 W"},
    ("network", "shared"): {"up": {"log_uniform": ["1 Mbit/s", "9 Mbit/s"]}, "down": "8 Mbit/s", "latency": "20 ms"},
    ("slowdown", "log_normal"): {"sigma": 0.5},
    ("slowdown", "shifted_exponential"): {"scale": 0.3},
    ("slowdown", "pareto"): {"alpha": 3.0},
    ("slowdown", "markov"): {"idle": "20 s", "busy": "5 s", "factor": 3.0},
    ("cost", "table"): {"ratios": [0.4, 0.7, 1.0]},
}


def parts(kind: str) -> list[tuple[str, dict[str, Any]]]:
    """Return name and table of every shipped part of a kind that has an example or can do without."""
    tried = [name for name, cls in parts_of(kind).items() if (kind, name) in EXAMPLES or not _required(cls)]
    return [(name, {"name": name, **EXAMPLES.get((kind, name), {})}) for name in tried]


def _required(cls: type) -> list[str]:
    missing = dataclasses.MISSING
    return [f.name for f in dataclasses.fields(cls) if f.default is missing and f.default_factory is missing]


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
    fleet, setting = assembly.fleet, assembly.setting
    stretch = setting.training.stretch(0)
    tasks = [Task(stretches=(stretch,)), Task("probe", down=None, passes=(Pass("forward", samples=9),))]
    ids = np.array([4, 0, 5, 2])
    nth = np.array([0, 3, 1, 2])

    def price(task, places):
        draws = Draws(KEY, ids[places], nth[places])
        return price_task(task, draws.ids, fleet, setting, 7.0, draws)

    for task in tasks:
        together = price(task, np.arange(4))
        alone = np.concatenate([price(task, np.array([place])) for place in range(4)], axis=1)
        assert together.shape == (len(ROWS), len(ids))
        assert np.array_equal(together, alone)
        assert np.array_equal(together, price(task, np.arange(4)))
        assert (together >= 0).all()
    mixed = tuple(Order(device, tasks[place % 2]) for place, device in enumerate(ids.tolist()))
    expected = np.concatenate([price(order.task, np.array([place])) for place, order in enumerate(mixed)], axis=1)
    assert np.array_equal(price_orders(mixed, fleet, setting, 7.0, Draws(KEY, ids, nth)), expected)


@settings(max_examples=25, deadline=None)
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
    return TypeAdapter(parts_of(kind)[table["name"]]).validate_python(arguments)


@pytest.mark.parametrize(("name", "table"), parts("cost"))
@pytest.mark.parametrize("kind", ["train", "forward", "param_step", "flops"])
def test_costs_rise_with_the_work(name, table, kind):
    """FLOPs are >= 0 and never fall with samples, steps, times or width; vectors equal loops; no input is changed."""
    cost, card = chosen("cost", table), assemble(scenario()).setting.card
    samples, steps = np.array([0.0, 16.0, 40.0]), np.array([0.0, 1.0, 3.0])
    widths = [Part(f"last{w}", frozen=card.before_last(w) if w < 3 else frozenset(), width=w) for w in (1, 2, 3)]
    rows = np.stack([cost.flops(card, Pass(kind), part, samples, steps) for part in widths])
    assert (rows >= 0).all()
    assert (np.diff(rows, axis=0) >= 0).all()
    assert (np.diff(rows, axis=1) >= 0).all()
    assert (cost.flops(card, Pass(kind, times=2.0), widths[0], samples, steps) == 2 * rows[0]).all()
    alone = [cost.flops(card, Pass(kind), widths[0], samples[i : i + 1], steps[i : i + 1])[0] for i in range(3)]
    assert alone == rows[0].tolist()
    assert (samples.tolist(), steps.tolist()) == ([0, 16, 40], [0, 1, 3])


@pytest.mark.parametrize("name", parts_of("availability"))
def test_asking_who_is_there_changes_nothing(name):
    """The answer at an instant is the same however often and in whichever order instants are asked for."""
    part = chosen("availability", {"name": name})
    instants = [0.0, 17.5, 3.0, 1e6]
    first = {now_s: part.mask(9, now_s).copy() for now_s in instants}
    assert all(mask.shape == (9,) and mask.dtype == bool for mask in first.values())
    assert all(np.array_equal(part.mask(9, now_s), first[now_s]) for now_s in reversed(instants))


SELECTIONS = [{"name": "all"}, {"name": "uniform", "count": 4}, {"name": "uniform", "fraction": 0.5}]
SELECTIONS += [{"name": "stratified", "count": 4}]


@pytest.mark.parametrize("table", SELECTIONS, ids=str)
def test_choices_are_idle_distinct_and_repeatable(table):
    """A selection depends on idle set, levels and key alone; another key may choose others."""
    part, level, idle = chosen("selection", table), np.repeat([1, 2], 6), np.array([1, 2, 3, 5, 6, 7, 8, 10, 11])
    choices = [part.choose(idle, level, Key(s)).tolist() for s in range(20)]
    assert choices == [part.choose(idle, level, Key(s)).tolist() for s in range(20)]
    assert all(c == sorted(set(c)) and set(c) <= set(idle.tolist()) for c in choices)
    assert (len({str(c) for c in choices}) == 1) == (table["name"] == "all")


def test_examples_cover_every_selection():
    """A selection that edgesim ships has to be tried here."""
    assert {table["name"] for table in SELECTIONS} == set(parts_of("selection"))


def test_message_prices_follow_the_payload():
    """4 bytes a float, the extra bytes on top, nothing for a bare request; rates and latency turn them into seconds."""
    assembly = assemble(scenario(network={"name": "fixed", "up": "1 Mbit/s", "down": "2 Mbit/s", "latency": 0.5}))
    up = Payload(kinds=frozenset({"params"}), layers=frozenset({"fc1"}), extra_bytes=3)
    task = Task(stretches=(Stretch(batch=16, lr=0.1, epochs=1),), down=None, up=up)
    draws = Draws(KEY, np.array([0]), np.array([0]))
    priced = price_task(task, draws.ids, assembly.fleet, assembly.setting, 0.0, draws)
    prices = dict(zip(ROWS, priced[:, 0], strict=True))
    fc_bytes = 4 * (128 * 10 + 10) + 3  # 32 channels of 2 x 2 pixels to 10 classes
    assert (prices["down_bytes"], prices["up_bytes"]) == (0, fc_bytes)
    assert prices["down_s"] == 0.5  # a bare request still takes the latency
    assert prices["up_s"] == pytest.approx(0.5 + 8 * fc_bytes / 1e6)
