"""Links and paths of networks against drawings done by hand, and the refusals of bad ones."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path

import networkx
import numpy as np
import pytest

from edgesim.core.errors import ConfigError
from edgesim.core.rng import Key
from edgesim.world.topology.base import Access, GraphPaths, Tier, TreePaths, Wire, random_regular, read_graph, ring


def access(devices: int) -> Access:
    """Return connections that differ: device i sends 10 + i, receives 100 + i bit/s, with i s of delay."""
    i = np.arange(devices, dtype=float)
    return Access(10 + i, 100 + i, i)


def test_star() -> None:
    paths = TreePaths(access(3), Wire(1000.0, 2000.0, 0.5))  # hub: node 4
    assert paths.path(2, 0) == ((2, 4), (4, 0))
    assert paths.path(0, 2) == ((0, 4), (4, 2))
    assert paths.path(1, 3) == ((1, 4), (4, 3))
    assert paths.path(3, 3) == ()
    assert dict(paths.capacity_bps) == {
        (0, 4): 1000.0, (1, 4): 10.0, (2, 4): 11.0, (3, 4): 12.0,
        (4, 0): 2000.0, (4, 1): 100.0, (4, 2): 101.0, (4, 3): 102.0,
    }  # fmt: skip
    assert len(paths.capacity_bps) == 8
    assert paths.latency_s(3, 0) == 2.5 and paths.latency_s(1, 3) == 2.0 and paths.latency_s(1, 1) == 0.0


def test_three_tier_tree() -> None:
    # devices 1-6, hub 7, lower servers 8-10 with two devices each, upper ones 11 (8 and 9) and 12 (10)
    tiers = [Tier(3, Wire(50.0, 60.0, 0.1)), Tier(2, Wire(70.0, 80.0, 0.2))]
    paths = TreePaths(access(6), Wire(latency_s=0.4), tiers)
    assert paths.path(1, 0) == ((1, 8), (8, 11), (11, 7), (7, 0))
    assert paths.path(0, 6) == ((0, 7), (7, 12), (12, 10), (10, 6))
    assert paths.path(3, 4) == ((3, 9), (9, 4))
    assert paths.path(2, 3) == ((2, 8), (8, 11), (11, 9), (9, 3))
    assert paths.path(5, 12) == ((5, 10), (10, 12))
    assert [paths.capacity_bps[link] for link in paths.path(2, 3)] == [11.0, 50.0, 60.0, 102.0]
    assert paths.latency_s(1, 0) == pytest.approx(0 + 0.1 + 0.2 + 0.4)
    # the closed form is the shortest path of the graph of its links
    graph = networkx.DiGraph(list(paths.capacity_bps))
    for source in range(paths.nodes):
        for target, nodes in networkx.single_source_shortest_path(graph, source).items():
            assert paths.path(source, target) == tuple(pairwise(nodes))


def test_a_star_of_many_devices_costs_nothing_until_used() -> None:
    many = 10**9  # as graph or list it would not fit into memory
    columns = Access(*(np.broadcast_to(value, many) for value in (1e6, 2e6, 0.01)))
    paths = TreePaths(columns, tiers=[Tier(1000, Wire())])
    assert paths.path(many, 0) == ((many, many + 1001), (many + 1001, many + 1), (many + 1, 0))
    assert paths.capacity_bps[many, many + 1001] == 1e6


def test_ring() -> None:
    paths = ring(access(5))
    assert paths.path(1, 5) == ((1, 5),)
    assert paths.path(1, 4) == ((1, 5), (5, 4)) and paths.path(4, 1) == ((4, 5), (5, 1))
    assert paths.capacity_bps[2, 3] == 11.0  # as fast as device 1 sends; device 2 receives 102
    assert paths.latency_s(1, 4) == (0 + 4) + (4 + 3)
    assert len(paths.capacity_bps) == 10
    with pytest.raises(ConfigError, match=r"^topology: no path .* from device 1 \(node 2\) to the server \(node 0\)$"):
        paths.path(2, 0)
    with_server = ring(access(4), Wire(up_bps=11.5))
    assert with_server.path(0, 4) == ((0, 4),) and with_server.path(0, 2) == ((0, 1), (1, 2))
    assert with_server.capacity_bps[0, 1] == 11.5 and with_server.capacity_bps[3, 4] == 12.0


def test_of_equally_short_ways_the_lowest_nodes_are_taken() -> None:
    # a square 0-7-3 and 0-5-3, entered in either order
    for edges in ([(0, 7), (7, 3), (0, 5), (5, 3)], [(5, 3), (0, 5), (7, 3), (0, 7)]):
        graph = networkx.DiGraph()
        for a, b in edges:
            graph.add_edge(a, b, bps=1.0, latency_s=0.0)
            graph.add_edge(b, a, bps=1.0, latency_s=0.0)
        paths = GraphPaths(graph, 7)
        assert paths.path(0, 3) == ((0, 5), (5, 3)) and paths.path(3, 0) == ((3, 5), (5, 0))


def test_one_way_links_are_obeyed() -> None:
    graph = networkx.DiGraph()
    networkx.add_cycle(graph, range(4), bps=1.0, latency_s=1.0)
    paths = GraphPaths(graph, 3)
    assert paths.path(2, 1) == ((2, 3), (3, 0), (0, 1)) and paths.path(1, 3) == ((1, 2), (2, 3))


@pytest.mark.parametrize(("devices", "degree"), [(20, 2), (20, 3), (7, 4)])
def test_random_regular(devices: int, degree: int) -> None:
    paths = random_regular(access(devices), degree, Key(1))
    graph = networkx.DiGraph(list(paths.capacity_bps))
    assert set(graph) == set(range(1, devices + 1))
    assert {d for _, d in graph.out_degree} == {d for _, d in graph.in_degree} == {degree}
    assert networkx.is_strongly_connected(graph)
    for target in range(2, devices + 1):
        assert len(paths.path(1, target)) == networkx.shortest_path_length(graph, 1, target)
        assert paths.path(target, 1) == tuple((b, a) for a, b in reversed(paths.path(1, target)))
    again = random_regular(access(devices), degree, Key(1))
    other = random_regular(access(devices), degree, Key(2))
    assert again.capacity_bps == paths.capacity_bps != other.capacity_bps


@pytest.mark.parametrize(("devices", "degree"), [(5, 3), (4, 4), (4, 0), (6, 1)])
def test_impossible_degree_is_refused(devices: int, degree: int) -> None:
    with pytest.raises(ConfigError, match=rf"^topology\.degree: .* got {degree}$"):
        random_regular(access(devices), degree, Key(1))


HEADER = "a,b,bps_ab,bps_ba,latency_s"


def test_file(tmp_path: Path) -> None:
    file = tmp_path / "links.csv"
    file.write_text(f"{HEADER}\n0,9,1e9,inf,0.001\n9,1,20 Mbit/s,5e6,10 ms\n\n2,9,3,4,0\n")
    paths = read_graph(file, 2)
    assert paths.capacity_bps == {(0, 9): 1e9, (9, 0): math.inf, (9, 1): 2e7, (1, 9): 5e6, (2, 9): 3.0, (9, 2): 4.0}
    assert paths.path(1, 0) == ((1, 9), (9, 0))
    assert paths.latency_s(1, 0) == paths.latency_s(0, 1) == pytest.approx(0.011)
    for source, words in ((7, "device 6 "), (9, "a node that is no device "), (-1, "a node that is no device ")):
        with pytest.raises(ConfigError, match=rf"from {words}\(node {source}\) to device 7 \(node 8\)"):
            read_graph(file, 8).path(source, 8)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", r"line 1: the header must be a,b,bps_ab,bps_ba,latency_s, got ''"),
        ("a,b,bps\n", r"line 1: the header must be"),
        (f"{HEADER}\n0,1,1,1,0\n0,2,1,1\n", r"line 3: has not as many values as the header has names: 4, not 5"),
        (f"{HEADER}\n0,1,1,1,0,7\n", r"line 2: has not as many values as the header has names: 6, not 5"),
        (f"{HEADER}\n0,1.5,1,1,0\n", r"line 2: b must be a whole number"),
        (f"{HEADER}\n0,-1,1,1,0\n", r"line 2: b must be greater than or equal to 0, got -1"),
        (f"{HEADER}\n0,1,0,1,0\n", r"line 2: bps_ab must be above 0 bit/s, got 0"),
        (f"{HEADER}\n0,1,1,fast,0\n", r"line 2: bps_ba 'fast' "),
        (f"{HEADER}\n0,1,1,nan,0\n", r"line 2: bps_ba nan "),
        (f"{HEADER}\n0,1,1,1,-1\n", r"line 2: latency_s must be at least 0 s, got -1"),
        (f"{HEADER}\n0,1,1,1,inf\n", r"line 2: latency_s must be finite, got inf"),
        (f"{HEADER}\n3,3,1,1,0\n", r"line 2: a and b are one node, got 3 and 3"),
        (f"{HEADER}\n0,1,1,1,0\n\n1,0,1,1,0\n", r"line 4: a and b are wired already, got 1 and 0"),
        (f'{HEADER}\n0,"1,1,1,0\n', r"line 2: not valid CSV: "),
    ],
)
def test_bad_files_are_refused_by_line(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "links.csv"
    file.write_text(text)
    with pytest.raises(ConfigError, match=words) as refusal:
        read_graph(file, 2)
    assert str(refusal.value).startswith(str(file)) and "\n" not in str(refusal.value)


def test_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.csv: cannot be read: "):
        read_graph(tmp_path / "none.csv", 2)


def test_unknown_nodes_of_a_tree_are_refused() -> None:
    paths = TreePaths(access(3), key="topology.name")
    with pytest.raises(ConfigError, match=r"^topology\.name: no path .* \(node 9\) to the server \(node 0\)$"):
        paths.path(9, 0)
    for link in ((1, 2), (9, 4), (4, 4)):
        with pytest.raises(KeyError):
            paths.capacity_bps[link]
