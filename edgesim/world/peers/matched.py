"""Pairs of devices by the speed of their links, among which models still spread.

Source: Tang et al., "GossipFL: A Decentralized Federated Learning Framework with Sparsified and Adaptive Communication"
(IEEE TPDS 2023), with the authors' code (github.com/wizard1203/GossipFL).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.sparse.csgraph import connected_components

from edgesim.config.units import BitsPerSecond
from edgesim.core.arrays import Arr, Ids
from edgesim.core.limits import Count
from edgesim.core.peer_graph import PeerGraph, Peers, check_company, cliques
from edgesim.core.rng import Key

_SCHEDULE, _LEFT = 2**32 - 1, 2**32 - 2  # streams below the key of the run, above all rounds; never renumber


@dataclass(frozen=True, kw_only=True)
class BandwidthMatch(Peers):
    """Pairs over fast links; once devices have been apart for too long, pairs that have not met lately.

    A pair is as fast as the slowest of its four links, up and down, at nominal rates. If the pairs of the
    last `interval` rounds connect all devices, pairs faster than `threshold` are matched, else pairs that have not met
    in these rounds: as many as one random half of the devices finds in the other half, at random. Those left over are
    matched at random, and of an odd number one is left out. At the start all pairs count as met in round 0. Pairs of
    few rounds seldom connect many devices: the default of `interval`, from the authors' code, looks at speed in few
    rounds, and a larger one in more.
    Differs: by default pairs are fast if both devices have at least the median speed of all (ours), as the threshold 3
    of the authors' code has no unit. The schedule has all devices; if the partner of a device is offline, it is
    matched at random among those like it.
    """

    redrawn: ClassVar[bool] = True

    threshold: BitsPerSecond | None = None  # B_thres; None: the median of devices, which is fast itself
    interval: Count = 3  # T_thres

    def check(self, n: int) -> None:
        """Raise ConfigError if there is one device only, or so many that their pairs do not fit into memory."""
        check_company(n, max(1.0, n / 4))

    def on_links(self, up_bps: Arr, down_bps: Arr, key: Key) -> Peers:
        """Return the pairs of a run."""
        return _Schedule(np.minimum(up_bps, down_bps), self.threshold, self.interval, key)

    def graph(self, online: np.ndarray, round: int, key: Key) -> PeerGraph:
        """Return random pairs, as no links are known."""
        return cliques(_paired(np.full(len(online), -1), np.flatnonzero(online), key.numpy()))


class _Schedule(Peers):
    """Pairs of one run. Those of a round depend on no more than the rounds before it."""

    redrawn: ClassVar[bool] = True

    def __init__(self, slower_bps: Arr, threshold_bps: float | None, interval: int, key: Key) -> None:
        """`slower_bps`: rate of the slower direction of each device's link."""
        n = len(slower_bps)
        speeds = np.minimum(slower_bps[:, None], slower_bps[None, :])
        others = ~np.eye(n, dtype=bool)
        if threshold_bps is None:
            self._fast = others & (speeds >= np.median(slower_bps))
        else:
            self._fast = others & (speeds > threshold_bps)
        self._others = others
        self._met = np.zeros((n, n), dtype=np.int64)  # round of the last meeting
        self._interval = interval
        self._key = key
        self._rounds: list[Ids] = []  # pair of each device, by its number

    def graph(self, online: np.ndarray, round: int, key: Key) -> PeerGraph:
        """Return the graph of a round; symmetric."""
        while len(self._rounds) <= round:
            self._rounds.append(self._next(len(self._rounds)))
        pair = np.where(online, self._rounds[round], -1)
        alone = (pair >= 0) & (np.bincount(pair[pair >= 0], minlength=len(pair))[pair] == 1)
        left = np.flatnonzero(online & (alone | (pair < 0)))
        pair[left] = -1
        return cliques(_paired(pair, left, self._key.at(_LEFT, round).numpy()))

    def _next(self, round_: int) -> Ids:
        """Return the pairs of the next round, if all devices are online, shape (n,)."""
        rng, n = self._key.at(_SCHEDULE, round_).numpy(), len(self._met)
        recent = self._met > round_ - self._interval
        apart = connected_components(recent & self._others, directed=False)[0] > 1
        allowed = self._others & (self._met < round_ - self._interval) if apart else self._fast
        order = rng.permutation(n)
        half, other = order[: n // 2], order[n // 2 :]
        wish = allowed[np.ix_(half, other)]
        # each pair is worth more than all random parts together, so that there are as many as can be
        rows, columns = linear_sum_assignment(wish * (1.0 + rng.random(wish.shape) / n), maximize=True)
        found = wish[rows, columns]
        one, two = half[rows[found]], other[columns[found]]
        pair = np.full(n, -1)
        pair[one] = pair[two] = np.arange(len(one))
        pair = _paired(pair, np.flatnonzero(pair < 0), rng)
        met = (pair[:, None] == pair[None, :]) & self._others & (pair >= 0)
        self._met[met] = round_
        return pair


def _paired(pair: Ids, left: Ids, rng: np.random.Generator) -> Ids:
    """Return the pairs with random ones of the devices `left`; of an odd number one stays alone, in no pair."""
    left = rng.permutation(left)[: len(left) // 2 * 2]
    numbers = pair.max(initial=-1) + 1 + np.arange(len(left)) // 2
    found = pair.copy()
    found[left] = numbers
    return found


PLUGINS = {"bandwidth_match": BandwidthMatch}
