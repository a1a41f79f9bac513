"""Maps of scenarios: the nodes and links are those that the simulation sends over."""

from __future__ import annotations

from edgesim.runs.topology import topology_of
from tests.conftest import timing_scenario

FLEET = [
    {"name": "phone", "count": 3, "cpu": {"flops_per_s": 1e9}},
    {"name": "sensor", "count": 2, "cpu": {"flops_per_s": 1e8}},
]
FIXED = {"name": "fixed", "up": "1 Mbit/s", "down": "8 Mbit/s"}


def links_of(scenario):
    nodes, links = topology_of(scenario)
    return nodes, {(row["a"], row["b"]): row["bps"] for row in links.to_dict("records")}


def test_devices_with_links_of_their_own_are_a_star():
    nodes, links = links_of(timing_scenario(fleet=FLEET, network=FIXED))
    assert nodes["kind"].tolist() == ["server", "phone", "phone", "phone", "sensor", "sensor"]
    assert nodes["node"].tolist() == [0, 1, 2, 3, 4, 5]
    assert links == {(0, i): 1e6 for i in range(1, 6)}  # the slower direction


def test_a_tree_has_switches():
    """Five devices below two edge servers below a hub, the server beside them: as `TreePaths` numbers them."""
    shared = {"name": "shared", "up": "1 Mbit/s", "down": "8 Mbit/s"}
    tree = {"name": "tree", "edge_servers": 2, "edge_up": "5 Mbit/s", "edge_down": "3 Mbit/s", "server_up": "9 Mbit/s"}
    nodes, links = links_of(timing_scenario(fleet=FLEET, network=shared, topology=tree))
    assert nodes["kind"].tolist()[6:] == ["switch"] * 3
    assert {pair for pair in links if 6 in pair} == {(0, 6), (6, 7), (6, 8)}  # the hub
    assert links[6, 7] == 3e6 and links[0, 6] == 9e6
    assert sorted(pair for pair in links if pair[0] in range(1, 6)) == [(1, 7), (2, 7), (3, 7), (4, 8), (5, 8)]


def test_peers_have_no_server():
    ring = timing_scenario(fleet=FLEET, network=FIXED, method="dpsgd", peers="ring")
    nodes, links = links_of(ring)
    assert nodes["node"].tolist() == [1, 2, 3, 4, 5]
    assert links == {(1, 2): 1e6, (2, 3): 1e6, (3, 4): 1e6, (4, 5): 1e6, (1, 5): 1e6}
