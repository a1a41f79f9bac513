"""Pairs by bandwidth: laws of matchings, the rule of the paper played again with networkx, and a run in seconds."""

from __future__ import annotations

import networkx
import numpy as np
import pytest

from edgesim.core.rng import Key
from edgesim.world.peers.matched import BandwidthMatch
from tests.contracts.support import mixed_scenario, run

KEY = Key(3).at(1)


def pairs_of(graph):
    """Return the pairs of a graph, the lower device first."""
    return {(int(a), int(b)) for a, b in zip(graph.targets, graph.sources, strict=True) if a < b}


def schedule(rates, rounds, online=None, **settings):
    """Return the pairs of rounds of devices with such rates up, and twice as much down."""
    rates = np.array(rates, dtype=float)
    peers = BandwidthMatch(**settings).on_links(rates, 2 * rates, KEY)
    online = np.ones(len(rates), dtype=bool) if online is None else np.array(online)
    return [pairs_of(peers.graph(online, round_, KEY.at(round_))) for round_ in range(rounds)]


@pytest.mark.parametrize("n", [2, 7, 10])
def test_a_round_is_pairs(n):
    """Each device has one peer, who hears it too; of an odd number one has none."""
    rates = np.random.default_rng(n).lognormal(0, 1, n)
    for pairs in schedule(rates, 20):
        assert len(pairs) == n // 2
        assert len({device for pair in pairs for device in pair}) == 2 * (n // 2)


def test_fast_links_first_and_then_who_has_not_met():
    """Where recent pairs connect all devices, more pairs than at random are of two fast devices.

    In all other rounds few pairs have met lately: those of devices left over. Who met when is counted here.
    """
    n, interval = 12, 3
    rates = np.arange(1, n + 1) * 1e6
    met, connected, apart = np.zeros((n, n)), 0, 0
    fast, lately = [], []
    for round_, pairs in enumerate(schedule(rates, 60, threshold=6.5e6, interval=interval)):
        recent = networkx.Graph()
        recent.add_nodes_from(range(n))
        recent.add_edges_from((a, b) for a in range(n) for b in range(a) if met[a, b] > round_ - interval)
        if networkx.is_connected(recent):
            connected += 1
            fast.append(sum(rates[a] > 6.5e6 and rates[b] > 6.5e6 for a, b in pairs))
        else:
            apart += 1
            lately.append(sum(met[a, b] >= round_ - interval for a, b in pairs))
        for a, b in pairs:
            met[a, b] = met[b, a] = round_
    assert connected >= interval
    assert np.mean(fast) >= 2  # of 6 fast devices; random pairs have 6 x 5 / (2 x 11) = 1.4
    assert np.mean(lately[3:]) < 1.5  # of 6 pairs
    assert apart > 0


def test_the_median_is_fast():
    """Devices of 1, 1, 5 and 5 bit/s have the median 3, above which are the pairs of the two fast ones alone.

    If no link is faster than another, all pairs are fast.
    """
    assert schedule([1, 1, 5, 5], 9) == schedule([1, 1, 5, 5], 9, threshold=4.0)
    assert schedule([1, 1, 5, 5], 9) != schedule([1, 1, 5, 5], 9, threshold=0.5)
    assert schedule([5] * 6, 9) == schedule([5] * 6, 9, threshold=4.0)


def test_who_lost_its_partner_finds_another():
    """Of four online devices of six all have a peer, whoever of the schedule is away."""
    for pairs in schedule(range(1, 7), 20, online=[True, False, True, True, False, True]):
        assert {device for pair in pairs for device in pair} == {0, 2, 3, 5}


def test_rounds_do_not_depend_on_what_was_asked_before():
    """The tenth round is the same whether the others were asked for or not."""
    peers, online = BandwidthMatch().on_links(np.arange(1.0, 9), np.arange(1.0, 9), KEY), np.ones(8, dtype=bool)
    assert pairs_of(peers.graph(online, 9, KEY.at(9))) == schedule(range(1, 9), 10)[9]


def test_before_links_are_known_pairs_are_random():
    """Checks of a method and of outages look at such a graph."""
    graph = BandwidthMatch().graph(np.ones(5, dtype=bool), 0, KEY)
    assert len(pairs_of(graph)) == 2


def test_gossip_over_fast_links_is_sooner():
    """A message passes at the slower end of its pair: with more pairs of two fast devices jobs take less on average."""
    means_s = []
    for peers in ({"name": "bandwidth_match", "interval": 20}, {"name": "gossip_match", "mode": "pair"}):
        links = [{"name": "fixed", "up": bps, "down": bps} for bps in ("8 Mbit/s", "50 kbit/s")]
        scenario = mixed_scenario(
            method="gossipfl",
            peers=peers,
            fleet=[{"count": 6, "cpu": {"flops_per_s": "1 GFLOP/s"}, "network": link} for link in links],
            backend="null",
            evaluation={"every": 40},
            stop={"rounds": 40},
        )
        jobs = run(scenario).tables["jobs"].frame()
        means_s.append((jobs["end_s"] - jobs["sent_s"]).mean())
    assert means_s[0] < 0.95 * means_s[1]
