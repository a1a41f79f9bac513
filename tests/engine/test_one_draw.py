"""Who is drawn does not depend on how the engine learns who is idle, nor what a job costs on how many are sent."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from edgesim.core.rng import Draws, Key
from edgesim.core.task import Order, Task
from edgesim.engine.pricing import Pricer
from edgesim.engine.reachability import Presence
from edgesim.engine.selection.rules import All
from edgesim.engine.view import _MOST_MISSES, FleetView, PeerGraphs
from edgesim.runs.assembly import assemble
from edgesim.world.availability.always import Always
from tests.conftest import timing_scenario
from tests.sizes import full, thinned

DEVICES = 40


def view_of(busy: np.ndarray, places: int, known: bool = True) -> FleetView:
    """Return what a method sees; `known`: it is known beforehand that whoever has no job is there."""
    presence = Presence(Always().build(len(busy), Key(0), "availability"), None)
    presence.everybody = known
    graphs = PeerGraphs(None, Key(0))
    at_work = int(busy.sum())
    setting = SimpleNamespace(level=np.ones(len(busy), dtype=np.int64), members=None)
    return FleetView(setting, 0.0, 0, 0, 0, (), presence, busy, at_work, All(), graphs, places)  # type: ignore[arg-type]


@pytest.mark.parametrize("places", [1, 2, 7, 30])
@pytest.mark.parametrize("at_work", [0, 5, 31, 38])
def test_listing_who_is_idle_changes_nobody(at_work, places):
    """Draw by draw, the devices are the same whether the idle ones are listed or only looked up."""
    for n in range(200):
        key = Key(3).at(4, n)
        busy = np.zeros(DEVICES, dtype=bool)
        busy[key.at(9).numpy().choice(DEVICES, at_work, replace=False)] = True
        found, listed = (view_of(busy, places, known).choose(key) for known in (True, False))
        assert found.tolist() == listed.tolist() == sorted(set(found.tolist()))
        assert found.dtype == listed.dtype == np.int64
        assert len(found) == min(places, DEVICES - at_work)
        assert not busy[found].any()


@pytest.mark.parametrize("known", [True, False])
def test_hidden_devices_are_drawn_around(known):
    """Leaving a device out that was not drawn changes nothing; one that was drawn gives way to another."""
    busy = np.zeros(DEVICES, dtype=bool)
    for n in range(100):
        view, key = view_of(busy, 1, known), Key(3).at(4, n)
        [drawn] = view.choose(key)
        other = (drawn + 1) % DEVICES
        assert replace(view, hidden=(other,)).choose(key).tolist() == [drawn]
        assert replace(view, hidden=(drawn,)).choose(key).tolist() != [drawn]


@full
@pytest.mark.parametrize(("idle", "places"), thinned([(DEVICES, 1), (10, 3)], [(10, 3)]))
def test_everybody_idle_is_as_likely(idle, places):
    """Chi-square over 20,000 draws of one of 40 devices, or of three of the ten that are idle."""
    busy, draws = np.arange(DEVICES) >= idle, 20_000
    counts = np.zeros(DEVICES)
    for n in range(draws):
        counts[view_of(busy, places).choose(Key(1).at(4, n))] += 1
    expected = draws * places / idle
    assert counts[idle:].sum() == 0
    # without replacement the counts vary by (idle - places) / (idle - 1) of what independent draws would
    chi2 = ((counts[:idle] - expected) ** 2 / expected).sum() / (1 - places / idle)
    assert chi2 < idle - 1 + 5 * np.sqrt(2 * (idle - 1))


def test_the_only_idle_device_among_many_is_found():
    """Draws of all devices miss it again and again: then the idle ones are listed, in a large fleet too."""
    busy = np.ones(1_000 * _MOST_MISSES, dtype=bool)
    busy[[17, 4_321]] = False
    seen = {int(view_of(busy, 1).choose(Key(1).at(4, n))[0]) for n in range(40)}
    assert seen == {17, 4_321}


def test_one_order_costs_what_many_do():
    """Prices that are looked up, order by order, are bit for bit those that are worked out for all at once."""
    parts = assemble(
        timing_scenario(
            fleet=[{"count": 1_500, "cpu": {"flops_per_s": {"log_uniform": ["1 GFLOP/s", "10 GFLOP/s"]}}}],
            network={
                "name": "fixed",
                "up": {"uniform": ["1 Mbit/s", "20 Mbit/s"]},
                "down": "20 Mbit/s",
                "latency": 0.1,
            },
            energy={"name": "power", "idle": "1 W", "busy": "3 W", "transmit": "1 W", "receive": "0.7 W"},
        )
    )
    pricer = Pricer(parts.fleet, parts.setting)
    training = (parts.setting.training.local_sgd(0),)
    tasks = [Task(local_sgd=training), Task(start="device", local_sgd=training)]
    orders = [Order(device, tasks[device % 2]) for device in range(1_499, -1, -1)]
    ids = np.array([order.device for order in orders])
    together = pricer.of_each(orders, 5.0, Draws(Key(8), ids, ids))
    alone = [price for order in orders for price in pricer.of_each([order], 5.0, None)]
    assert pricer.steady
    assert together == alone
    assert len(set(alone)) > 1_000
