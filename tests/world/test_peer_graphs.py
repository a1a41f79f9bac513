"""Who hears whom: drawings done by hand, the laws of what is drawn at random, and the refusals of bad settings."""

from __future__ import annotations

from collections import Counter
from math import comb
from pathlib import Path
from typing import Any

import networkx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError
from scipy.stats import chi2

from edgesim.core.errors import ConfigError
from edgesim.core.peer_graph import PeerGraph, awaited, cliques, from_edges, priors, reuse_order
from edgesim.core.rng import Key
from edgesim.world.peers.drawn import GossipMatch, Random
from edgesim.world.peers.listed import ListedPeers
from edgesim.world.peers.regular import Expander, Exponential, Full, Ring, StarOfStars
from tests.sizes import examples, spread

KEY = Key(3).at(1)
# Each has a graph of 8 devices.
PLUGINS = [
    Random(degree=3), Random(degree=7), GossipMatch(size=3), GossipMatch(mode="pair"), Ring(), Full(),
    Expander(degree=4), Exponential(), Exponential(one_peer=True), StarOfStars(hubs=3), StarOfStars(hubs=1),
]  # fmt: skip
SYMMETRIC = (GossipMatch, Ring, Full, Expander, StarOfStars)
every_part = pytest.mark.parametrize("plugin", PLUGINS, ids=str)


def draw(plugin: Any, n: int, round: int = 0, key: Key = KEY) -> PeerGraph:
    """Return the graph of a part when all of n devices are online."""
    plugin.check(n)
    return plugin.graph(np.ones(n, dtype=bool), round, key)


def heard(graph: PeerGraph) -> list[set[int]]:
    """Return the in-neighbours of every device."""
    return [set(graph.of(device).tolist()) for device in range(graph.devices)]


def given_by(*neighbours: set[int]) -> PeerGraph:
    """Return the graph with these in-neighbours."""
    edges = [(source, target) for target, sources in enumerate(neighbours) for source in sources]
    sources, targets = np.array(edges, dtype=np.int64).reshape(-1, 2).T
    return from_edges(len(neighbours), sources, targets)


def assert_fits(counts: Any, expected: Any) -> None:
    """Assert counts of k cells against expected counts: Pearson's statistic exceeds the bound once in a million."""
    counts, expected = np.asarray(counts, dtype=float), np.asarray(expected, dtype=float)
    assert counts.sum() == pytest.approx(expected.sum())
    assert ((counts - expected) ** 2 / expected).sum() < chi2.ppf(1 - 1e-6, len(counts) - 1)


# --- graphs of edges --------------------------------------------------------------------------------------------


def test_edges_in_any_order() -> None:
    graph = from_edges(4, np.array([3, 1, 0, 2]), np.array([0, 2, 2, 0]))
    assert graph.first.tolist() == [0, 2, 2, 4, 4]
    assert graph.sources.tolist() == [2, 3, 0, 1]
    assert graph.targets.tolist() == [0, 0, 2, 2]
    assert graph.degree.tolist() == [2, 0, 2, 0]
    assert not (graph.first.flags.writeable or graph.sources.flags.writeable or graph.of(0).flags.writeable)


def test_cliques() -> None:
    assert heard(cliques(np.array([5, -1, 2, 5, 9, 2, 5]))) == [{3, 6}, set(), {5}, {0, 6}, set(), {2}, {0, 3}]
    assert heard(cliques(np.array([-1, -1]))) == [set(), set()]


def test_symmetric() -> None:
    assert given_by({1}, {0, 2}, {1}).symmetric
    assert not given_by({1}, {2}, {0}).symmetric
    assert given_by(set(), set()).symmetric


def test_uniform_weights() -> None:
    weights, own = given_by({1, 2, 3}, set(), {0}, {0}).uniform(0)
    assert weights.tolist() == [0.25, 0.25, 0.25] and own == 0.25
    weights, own = given_by({1}, set()).uniform(1)
    assert weights.tolist() == [] and own == 1.0


def test_metropolis_mixes_a_path() -> None:
    """On the path 0-1-2 the weights are 1/3 along it and 2/3, 1/3, 2/3 at home: x = (0, 3, 6) becomes (1, 3, 5)."""
    graph, x = given_by({1}, {0, 2}, {1}), np.array([0.0, 3.0, 6.0])
    mixed = []
    for device in range(3):
        weights, own = graph.metropolis(device)
        mixed.append(weights @ x[graph.of(device)] + own * x[device])
    assert mixed == pytest.approx([1.0, 3.0, 5.0])


def test_metropolis_is_doubly_stochastic() -> None:
    graph = draw(StarOfStars(hubs=3), 10)
    matrix = np.zeros((10, 10))
    for device in range(10):
        weights, matrix[device, device] = graph.metropolis(device)
        matrix[device, graph.of(device)] = weights
    assert (matrix >= 0).all() and np.array_equal(matrix, matrix.T)
    assert matrix.sum(axis=0) == pytest.approx(np.ones(10))
    with pytest.raises(ValueError, match="need a symmetric graph"):
        given_by({1}, set()).metropolis(0)


# --- what every part promises -----------------------------------------------------------------------------------


@every_part
@settings(max_examples=examples(40), deadline=None)
@given(online=st.lists(st.booleans(), min_size=8, max_size=8), round=st.integers(0, 20), seed=st.integers(0, 99))
def test_the_offline_are_left_alone(plugin: Any, online: list[bool], round: int, seed: int) -> None:
    """Neighbours are online, distinct, ascending, and nobody is its own."""
    graph = plugin.graph(np.array(online), round, Key(seed))
    assert graph.devices == 8
    assert graph.first[0] == 0 and graph.first[-1] == len(graph.sources)
    for device in range(8):
        peers = graph.of(device).tolist()
        assert peers == sorted(set(peers)) and device not in peers
        assert all(online[peer] for peer in peers) and (online[device] or not peers)
    if isinstance(plugin, SYMMETRIC):
        assert graph.symmetric


@every_part
def test_a_graph_depends_on_the_key_alone_or_not_at_all(plugin: Any) -> None:
    graphs = [heard(draw(plugin, 8, 2, key)) for key in (KEY, KEY, *(KEY.at(i) for i in range(9)))]
    assert graphs[0] == graphs[1]
    drawn = isinstance(plugin, Random | GossipMatch) and plugin != Random(degree=7)  # 7 others of 8 are the same ones
    assert (len({str(graph) for graph in graphs}) > 1) == drawn


@pytest.mark.parametrize("plugin", [plugin for plugin in PLUGINS if not plugin.redrawn], ids=str)
def test_a_static_graph_stays_and_loses_what_is_offline(plugin: Any) -> None:
    online = np.arange(8) % 3 > 0
    whole, left = heard(draw(plugin, 8)), plugin.graph(online, 7, KEY.at(5))
    there = set(np.flatnonzero(online).tolist())
    assert heard(draw(plugin, 8, 7, KEY.at(5))) == whole
    assert heard(left) == [whole[device] & there if device in there else set() for device in range(8)]


def test_who_is_redrawn() -> None:
    assert Random.redrawn and GossipMatch.redrawn and Exponential(one_peer=True).redrawn
    assert not any(plugin.redrawn for plugin in (Ring(), Full(), Expander(), Exponential(), StarOfStars(hubs=1)))


@pytest.mark.parametrize("plugin", [Random(degree=1), GossipMatch(size=2), Ring(), Full(), Exponential(), Expander()])
def test_one_device_cannot_exchange(plugin: Any) -> None:
    with pytest.raises(ConfigError, match=r"peers: an exchange among devices needs at least 2 of them, got 1"):
        plugin.check(1)


# --- graphs that follow from the numbers of the devices ---------------------------------------------------------


def test_ring() -> None:
    assert draw(Ring(), 2).sources.tolist() == [1, 0]  # once, though it is before and after
    assert heard(draw(Ring(), 3)) == [{1, 2}, {0, 2}, {0, 1}]
    assert heard(draw(Ring(), 5)) == [{4, 1}, {0, 2}, {1, 3}, {2, 4}, {3, 0}]


def test_full() -> None:
    assert heard(draw(Full(), 2)) == [{1}, {0}]
    assert heard(draw(Full(), 4)) == [{1, 2, 3}, {0, 2, 3}, {0, 1, 3}, {0, 1, 2}]


def test_expander_is_a_circulant_graph() -> None:
    expected = networkx.circulant_graph(13, range(1, 6))
    assert heard(draw(Expander(), 13)) == [set(expected[device]) for device in range(13)]
    assert heard(draw(Expander(degree=4), 5)) == heard(draw(Full(), 5))
    with pytest.raises(ConfigError, match=r"peers\.degree: must be below the 4 devices, got 4; all others: use full"):
        Expander(degree=4).check(4)
    with pytest.raises(ValidationError, match="multiple of 2"):
        TypeAdapter(Expander).validate_python({"degree": 3})


def test_exponential() -> None:
    assert heard(draw(Exponential(), 2)) == [{1}, {0}]
    graph = heard(draw(Exponential(), 6))  # 1, 2 and 4 before
    assert graph[0] == {5, 4, 2} and graph[5] == {4, 3, 1}
    # up to 8 before: 16 is below 17 only
    assert heard(draw(Exponential(), 16))[0] == {15, 14, 12, 8}
    assert heard(draw(Exponential(), 17))[0] == {16, 15, 13, 9, 1}


def test_one_peer_exponential_takes_turns() -> None:
    rounds = [heard(draw(Exponential(one_peer=True), 6, round)) for round in range(4)]
    assert [graph[0] for graph in rounds] == [{5}, {4}, {2}, {5}]
    assert [graph[5] for graph in rounds] == [{4}, {3}, {1}, {4}]


def test_star_of_stars() -> None:
    # hubs 0, 1, 2; the others 3 to 7 hang on hubs j * 3 // 5 = 0, 0, 1, 1, 2
    expected = [{1, 2, 3, 4}, {0, 2, 5, 6}, {0, 1, 7}, {0}, {0}, {1}, {1}, {2}]
    assert heard(draw(StarOfStars(hubs=3), 8)) == expected
    assert heard(draw(StarOfStars(hubs=1), 3)) == [{1, 2}, {0}, {0}]
    assert heard(draw(StarOfStars(hubs=3), 4)) == [{1, 2, 3}, {0, 2}, {0, 1}, {0}]
    with pytest.raises(ConfigError, match=r"peers\.hubs: must be below the 3 devices, got 3"):
        StarOfStars(hubs=3).check(3)


# --- graphs drawn at random -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "degree"), spread([(6, 2), (6, 3), (6, 4), (9, 4)], 1))
def test_random_sets_are_equally_likely(n: int, degree: int) -> None:
    """Of every device; 3 of 5 and 4 of 5 are drawn by what is left out, 4 of 8 with many repeats."""
    draws = 2000
    counts: list[Counter[frozenset[int]]] = [Counter() for _ in range(n)]
    for i in range(draws):
        for device, peers in enumerate(heard(draw(Random(degree=degree), n, key=KEY.at(i)))):
            counts[device][frozenset(peers)] += 1
    sets = comb(n - 1, degree)
    for count in counts:
        assert all(len(peers) == degree for peers in count)
        assert len(count) == sets
        assert_fits(list(count.values()), np.full(sets, draws / sets))


def test_random_sets_of_two_devices_are_independent() -> None:
    both = Counter(str(heard(draw(Random(degree=1), 4, key=KEY.at(i)))[:2]) for i in range(1800))
    assert len(both) == 9
    assert_fits(list(both.values()), np.full(9, 200.0))


def test_random_takes_whoever_is_online() -> None:
    online = np.array([True, False, True, True, False, True])
    assert heard(Random(degree=4).graph(online, 0, KEY)) == [{2, 3, 5}, set(), {0, 3, 5}, {0, 2, 5}, set(), {0, 2, 3}]
    assert not Random(degree=3).graph(np.arange(6) == 2, 0, KEY).sources.size
    graph = Random().graph(np.arange(3000) % 3 > 0, 0, KEY)
    assert graph.degree.tolist() == [0, 10, 10] * 1000
    with pytest.raises(ConfigError, match=r"peers\.degree: must be below the 10 devices, got 10; all others: use full"):
        Random().check(10)


def test_groups_take_in_who_is_left_over() -> None:
    """Of 100 devices in groups of 11, one joins one of the nine groups: 8 * 11 devices hear 10, 12 hear 11."""
    graph = draw(GossipMatch(), 100)
    assert Counter(graph.degree.tolist()) == {10: 88, 11: 12}
    groups = {frozenset(peers | {device}) for device, peers in enumerate(heard(graph))}
    assert len(groups) == 9 and sum(map(len, groups)) == 100
    few = GossipMatch().graph(np.arange(20) < 5, 0, KEY)
    assert few.degree.tolist() == [4] * 5 + [0] * 15
    with pytest.raises(ConfigError, match=r"peers\.size: must be at most the 10 devices, got 11"):
        GossipMatch().check(10)


def test_groups_left_over_join_any_group() -> None:
    """Of five devices in pairs, one joins one of two: each is in the group of three with probability 3/5."""
    degrees = sum(draw(GossipMatch(size=2), 5, key=KEY.at(i)).degree - 1 for i in range(1000))
    assert degrees == pytest.approx(np.full(5, 600.0), abs=5 * np.sqrt(1000 * 0.6 * 0.4))
    # of eight in threes, two choose among two groups on their own: the same one every other time
    largest = [draw(GossipMatch(size=3), 8, key=KEY.at(i)).degree.max() for i in range(1000)]
    assert_fits([largest.count(3), largest.count(4)], [500, 500])


def test_pairs() -> None:
    assert draw(GossipMatch(mode="pair"), 10).degree.tolist() == [1] * 10
    assert Counter(draw(GossipMatch(mode="pair"), 11).degree.tolist()) == {1: 10, 0: 1}
    matchings = Counter(str(heard(draw(GossipMatch(mode="pair"), 4, key=KEY.at(i)))) for i in range(900))
    assert len(matchings) == 3
    assert_fits(list(matchings.values()), np.full(3, 300.0))


# --- graphs of a file -------------------------------------------------------------------------------------------


def from_text(folder: Path, text: str) -> ListedPeers:
    """Return the part that reads this text."""
    (folder / "peers.csv").write_text(text, encoding="utf-8")
    return TypeAdapter(ListedPeers).validate_python({"file": folder / "peers.csv"})


def test_file(tmp_path: Path) -> None:
    plugin = from_text(tmp_path, "source,target\n2,0\n1,0\n0,1\n1,2\n")
    assert heard(draw(plugin, 3)) == [{1, 2}, {0}, {1}]
    assert heard(plugin.graph(np.array([True, False, True]), 0, KEY)) == [{2}, set(), set()]
    assert not plugin.redrawn


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("source,target\n1,0\n0,3\n", r"line 3: unknown device 3; those of the fleet are 0 to 2"),
        ("source,target\n1,1\n", r"line 2: source and target are one device, got 1"),
        ("source,target\n1,0\n0,1\n1,0\n", r"line 4: source 1, target 0 stands in line 2 already"),
        ("source,target\n1,0\n2,1\n", r"leaves device 2 alone"),
        ("source,target\n", r"leaves device 0 alone"),
        ("source,target\n1,-1\n", r"line 2: must be two device numbers, got '1,-1'"),
        ("source,target\n1,0,4\n", r"line 2: must be two device numbers, got '1,0,4'"),
        ("a,b\n1,0\n", r"line 1: the header must be source,target, got 'a,b'"),
        ("", r"line 1: the header must be source,target, got ''"),
        ('source,target\n"1,0\n', r"line 2: not valid CSV: unexpected end of data"),
    ],
)
def test_bad_file(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=rf"peers\.csv.*{message}"):
        from_text(tmp_path, text).check(3)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.csv: cannot be read: .*No such file"):
        ListedPeers(file=tmp_path / "none.csv").check(3)


# --- reuse within a round ---------------------------------------------------------------------------------------

# DA-DPFL paper, Fig. 1, with devices counted from 0: six devices with two neighbours each, in the order of their ids.
FIGURE = given_by({1, 4}, {2, 3}, {1, 5}, {4, 5}, {0, 5}, {0, 4})
NOBODY: list[set[int]] = [set()] * 6


def test_awaited_of_the_figure() -> None:
    rank = np.arange(6)
    before = [set(), set(), {1}, set(), {0}, {0, 4}]
    assert heard(priors(FIGURE, rank)) == before
    assert heard(awaited(FIGURE, rank, None)) == heard(awaited(FIGURE, rank, 2)) == before
    assert heard(awaited(FIGURE, rank, 1)) == [set(), set(), {1}, set(), {0}, {0}]
    assert heard(awaited(FIGURE, rank, 0)) == NOBODY


def test_awaited_are_the_first_in_the_order() -> None:
    """Not the first by number: with the order 5, 4, ..., 0 device 0 comes last, and of its priors 5 comes first."""
    full = draw(Full(), 6)
    rank = np.arange(6)[::-1]
    assert heard(awaited(full, rank, 2)) == [{4, 5}, {4, 5}, {4, 5}, {4, 5}, {5}, set()]
    # the closed form of the full graph: min(place, cap)
    assert awaited(full, rank, 3).degree.tolist() == [3, 3, 3, 2, 1, 0]
    # device 4 is offline, and neither waits nor is waited for, whatever the graph says
    rank = np.array([3, 0, 4, 2, -1, 1])
    assert heard(priors(FIGURE, rank)) == [{1}, set(), {1, 5}, {5}, set(), set()]
    assert heard(awaited(FIGURE, rank, 1)) == [{1}, set(), {1}, {5}, set(), set()]


@settings(max_examples=examples(60), deadline=None)
@given(online=st.lists(st.booleans(), min_size=8, max_size=8), cap=st.integers(0, 8), seed=st.integers(0, 999))
def test_awaited_against_its_definition(online: list[bool], cap: int, seed: int) -> None:
    graph = Random(degree=5).graph(np.array(online), 0, Key(seed))
    rank = reuse_order(np.flatnonzero(online), 8, Key(seed).at(1))
    assert sorted(rank[online]) == list(range(sum(online))) and (rank[np.logical_not(online)] == -1).all()
    waits = awaited(graph, rank, cap)
    for device in range(8):
        before = sorted((j for j in graph.of(device) if rank[j] < rank[device]), key=lambda j: rank[j])
        assert set(waits.of(device)) == set(before[:cap])


def test_orders_are_equally_likely() -> None:
    online = np.array([0, 2, 3])
    orders = [reuse_order(online, 5, KEY.at(i)) for i in range(1200)]
    assert orders[0].tolist() == reuse_order(online, 5, KEY.at(0)).tolist()
    assert all(order[1] == order[4] == -1 for order in orders)
    counts = Counter(tuple(order[online].tolist()) for order in orders)
    assert len(counts) == 6
    assert_fits(list(counts.values()), np.full(6, 200.0))


def test_number_of_priors_is_hypergeometric() -> None:
    """M of the K - 1 others are heard, k - 1 of which come before the device in place k; K = 6, M = 2."""
    rounds, counts = 2000, np.zeros((6, 3))
    for i in range(rounds):
        rank = reuse_order(np.arange(6), 6, KEY.at(i, 0))
        before = priors(draw(Random(degree=2), 6, key=KEY.at(i, 1)), rank)
        np.add.at(counts, (rank, before.degree), 1)
    table = [(1, 0, 0), (0.6, 0.4, 0), (0.3, 0.6, 0.1), (0.1, 0.6, 0.3), (0, 0.4, 0.6), (0, 0, 1)]
    for k, (found, law) in enumerate(zip(counts, table, strict=True), start=1):
        # the table is the closed form
        assert law == pytest.approx([comb(k - 1, m) * comb(6 - k, 2 - m) / comb(5, 2) for m in range(3)])
        possible = np.array(law) > 0
        assert not found[~possible].any()
        assert found.sum() == rounds
        if possible.sum() > 1:
            assert_fits(found[possible], rounds * np.array(law)[possible])


def test_who_starts_at_once_among_many() -> None:
    """K = 100, M = 10: 1 / (M + 1) of all devices have no priors; in place 50 there are M * 49 / 99 on average."""
    rounds, none, fiftieth = 200, 0, []
    for i in range(rounds):
        rank = reuse_order(np.arange(100), 100, KEY.at(i, 0))
        degree = priors(draw(Random(), 100, key=KEY.at(i, 1)), rank).degree
        none += np.count_nonzero(degree == 0)
        fiftieth.append(degree[rank == 49].item())
    # given their places devices are independent, so that the binomial deviation is an upper bound
    share = 1 / 11
    assert none / (100 * rounds) == pytest.approx(share, abs=4 * np.sqrt(share * (1 - share) / (100 * rounds)))
    # mean and variance of the hypergeometric law
    mean = 10 * 49 / 99
    variance = mean * (1 - 49 / 99) * (99 - 10) / 98
    assert np.mean(fiftieth) == pytest.approx(mean, abs=4 * np.sqrt(variance / rounds))
