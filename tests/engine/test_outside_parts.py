"""A protocol, a link discipline and a tree of three tiers as a user would write them, against schedules on paper."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import edgesim
from tests.conftest import PSI, digits_scenario, frames, simulate_null, timing_scenario
from tests.engine.trees import run, tree

OUTSIDE = Path(__file__).parents[1] / "outside"
BITS = 8 * 4 * 567_858  # CNN-CIFAR10, one way


@pytest.mark.parametrize("file", ["tiers.py", "slices.py", "regions.py"])
def test_they_are_short_and_use_nothing_private(file: str) -> None:
    text = (OUTSIDE / file).read_text(encoding="utf-8")
    assert len(text.splitlines()) < 60
    private = [node.attr for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Attribute)]
    assert not [name for name in private if name.startswith("_") and name != "_replace"]  # of named tuples


def test_tiers_do_not_wait_for_one_another() -> None:
    """Devices of level 1 take 10 s, those of level 2 take 25 s: merges at 10, 20, 25, 30, 40 s.

    The update of the slow tier was computed from model 0, and two merges came before it.
    """
    fleet = [{"count": 2, "level": n, "cpu": {"flops_per_s": PSI * 10 / s}} for n, s in ((1, 10), (2, 25))]
    protocol = {"name": "tests.outside.tiers:Tiers", "a": 0.5}
    simulation = simulate_null(timing_scenario(fleet=fleet, method="fedbuff", protocol=protocol, stop={"rounds": 5}))
    rounds = frames(simulation)["rounds"]
    assert rounds["now_s"].tolist() == pytest.approx([10, 20, 25, 30, 40])
    assert rounds["used"].tolist() == [2] * 5
    assert rounds["staleness_mean"].tolist() == [0, 0, 2, 1, 0]


def test_tiers_learn() -> None:
    given = {"method": "fedbuff", "protocol": "tests.outside.tiers:Tiers", "stop": {"rounds": 4}}
    trained = edgesim.run(digits_scenario(**given, training={"batch": 10, "lr": 0.1}))
    assert trained.evals["accuracy"].iloc[-1] > trained.evals["accuracy"].iloc[0]


def test_slices_do_not_depend_on_other_transfers() -> None:
    """Each of two devices gets half of the server's 4 Mbit/s, in both directions."""
    links = {"name": "shared", "up": "8 Mbit/s", "down": "8 Mbit/s", "discipline": "tests.outside.slices:Slices"}
    server = {"name": "star", "server_up": "4 Mbit/s", "server_down": "4 Mbit/s"}
    simulation = simulate_null(
        timing_scenario(network=links, topology=server, fleet=[{"count": 2, "cpu": {"flops_per_s": PSI}}])
    )
    jobs = frames(simulation)["jobs"]
    assert jobs["down_s"].tolist() == pytest.approx([BITS / 2e6] * 2)
    assert jobs["up_s"].tolist() == pytest.approx([BITS / 2e6] * 2)


def test_orders_cross_the_links_of_their_region() -> None:
    """Two edge servers of one region send 24.4 kB each over its 100 kbit/s at once, after its latency of 0.3 s."""
    topology = {"name": "tests.outside.regions:Regions", "regions": 1, "edge_servers": 2}
    topology |= {"region_rate": "100 kbit/s", "region_latency": "0.3 s"}
    orders = run(tree({}, 2, topology=topology, stop={"rounds": 1})).edges
    bits = 8 * orders["down_bytes"].iloc[0]
    assert orders["down_s"].tolist() == pytest.approx([0.3 + 2 * bits / 1e5] * 2)
    assert orders["up_s"].tolist() == pytest.approx([0.3 + 2 * bits / 1e5] * 2)
