"""Peer graphs: the devices whose models each device receives, and the devices that it waits for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from edgesim.core.arrays import Arr, Ids
from edgesim.core.errors import ConfigError
from edgesim.core.limits import check_memory
from edgesim.core.rng import Key

_EDGE_BYTES = 72  # memory per edge while a graph is made: nine arrays of its edges


@dataclass(frozen=True, eq=False)
class PeerGraph:
    """In-neighbours of n devices: a device receives ("hears") the models of its in-neighbours.

    In-neighbours of device k are sources[first[k]:first[k + 1]], ascending and distinct, without k.
    """

    first: Ids  # shape (n + 1,)
    sources: Ids

    def __post_init__(self) -> None:
        self.first.setflags(write=False)
        self.sources.setflags(write=False)

    @property
    def devices(self) -> int:
        """Number of devices n, including devices without neighbours."""
        return len(self.first) - 1

    @property
    def degree(self) -> Ids:
        """Number of in-neighbours of every device, shape (n,)."""
        return np.diff(self.first)

    @property
    def targets(self) -> Ids:
        """Receiver of each of `sources`, ascending, of the same shape."""
        return np.repeat(np.arange(self.devices), self.degree)

    @cached_property
    def symmetric(self) -> bool:
        """True if every device is heard by exactly the devices that it hears."""
        heard = self.targets * self.devices + self.sources
        hearing = self.sources * self.devices + self.targets
        return np.array_equal(heard, np.sort(hearing))

    def of(self, device: int) -> Ids:
        """Return the in-neighbours of a device, ascending, read-only."""
        return self.sources[self.first[device] : self.first[device + 1]]

    def uniform(self, device: int) -> tuple[Arr, float]:
        """Return the weights of a device's in-neighbours and its own: 1 / (1 + M) each for M in-neighbours."""
        peers = len(self.of(device))
        return np.full(peers, 1.0 / (1 + peers)), 1.0 / (1 + peers)

    def metropolis(self, device: int) -> tuple[Arr, float]:
        """Return the weights of a device's in-neighbours and its own, from a doubly stochastic matrix.

        Neighbours i and j give each other 1 / (1 + max(degree of i, degree of j)). The weights sum to 1 with a device's
        own. Raises ValueError if the graph is not symmetric.
        Source: Metropolis weights; Xiao, Boyd and Lall, "A scheme for robust distributed sensor fusion based on
        average consensus" (IPSN 2005).
        """
        if not self.symmetric:
            raise ValueError("Metropolis weights need a symmetric graph: a device is not heard by one that it hears")
        larger = np.maximum(self.degree[self.of(device)], self.degree[device])
        weights: Arr = 1.0 / (1.0 + larger)
        return weights, 1.0 - float(weights.sum())

    def among(self, online: np.ndarray) -> PeerGraph:
        """Return this graph without the edges of devices that are not online. `online`: bool, shape (n,)."""
        return self.kept(online[self.sources] & online[self.targets])

    def placed(self, ids: Ids, n: int) -> PeerGraph:
        """Return this graph in a larger fleet of n devices, where its devices have the ids `ids`, ascending."""
        return PeerGraph(_first(ids[self.targets], n), ids[self.sources])

    def kept(self, edges: np.ndarray) -> PeerGraph:
        """Return the graph with some of the edges. `edges`: bool, of the shape of `sources`."""
        return PeerGraph(_first(self.targets[edges], self.devices), self.sources[edges])


class Peers(ABC):
    """Peer graphs of all rounds as a scenario names them: a frozen dataclass."""

    @property
    def redrawn(self) -> bool:
        """True if the graph changes from round to round even if the same devices are online."""
        return False

    def check(self, n: int) -> None:
        """Raise ConfigError if no such graph of n devices exists or a device would never hear another one."""

    def on_links(self, up_bps: Arr, down_bps: Arr, key: Key) -> Peers:
        """Return the same graphs for devices whose links have these nominal rates, shape (n,), for one run.

        `key`: key of the run. Graphs that do not depend on links return themselves.
        """
        return self

    @abstractmethod
    def graph(self, online: np.ndarray, round: int, key: Key) -> PeerGraph:
        """Return the graph of a round, counted from 0. Devices that are not `online` have no edges.

        `online`: bool, shape (n,). `key`: key of the round if the graph is redrawn, else key of the run.
        """


# --- graphs of edges --------------------------------------------------------------------------------------------


def from_edges(n: int, sources: Ids, targets: Ids) -> PeerGraph:
    """Return the graph of n devices in which targets[i] hears sources[i]. Pairs are distinct."""
    edges = np.sort(targets * n + sources)
    return PeerGraph(_first(edges // n, n), edges % n)


def cliques(group: Ids) -> PeerGraph:
    """Return the graph in which devices of one group hear each other. A negative group means no group."""
    members = np.argsort(group, kind="stable")[np.count_nonzero(group < 0) :]
    _, start, size = np.unique(group[members], return_index=True, return_counts=True)
    start, size = np.repeat(start, size), np.repeat(size, size)  # of the group of each member
    within = np.arange(size.sum()) - np.repeat(np.cumsum(size) - size, size)
    sources, targets = members[np.repeat(start, size) + within], np.repeat(members, size)
    others = sources != targets
    return from_edges(len(group), sources[others], targets[others])


def check_company(n: int, degree: float) -> None:
    """Raise ConfigError if there are fewer than two devices, or too many for memory.

    `degree`: mean number of devices that a device hears.
    """
    if n < 2:
        raise ConfigError(f"peers: an exchange among devices needs at least 2 of them, got {n}")
    check_memory(
        "peers.name", n * degree * _EDGE_BYTES, f"a graph of {n:,} devices that hear {degree:,.0f} others each"
    )


def _first(targets: Ids, n: int) -> Ids:
    return np.concatenate([[0], np.cumsum(np.bincount(targets, minlength=n))])


# --- reuse within a round ---------------------------------------------------------------------------------------


def reuse_order(online_ids: Ids, n: int, key: Key) -> Ids:
    """Return the place of every device in one random order of the online devices, from 0, -1 offline, shape (n,).

    All devices share one order. With orders of their own, two devices could wait for each other.
    Source: DA-DPFL paper, reuse indices that are reassigned every round.
    """
    rank = np.full(n, -1)
    rank[online_ids] = key.numpy().permutation(len(online_ids))
    return rank


def priors(graph: PeerGraph, rank: Ids) -> PeerGraph:
    """Return the graph of the in-neighbours that come before a device in the order `rank`, shape (n,).

    Source: DA-DPFL paper, prior sets.
    """
    before = rank[graph.sources]
    return graph.kept((before >= 0) & (before < rank[graph.targets]))


def awaited(graph: PeerGraph, rank: Ids, cap: int | None) -> PeerGraph:
    """Return the graph of the devices whose new models a device waits for: the first `cap` of its priors in the order.

    `cap` None: all priors. Devices that wait only for earlier devices cannot wait in a circle.
    Source: DA-DPFL paper, at most N awaited neighbours.
    """
    before = priors(graph, rank)
    if cap is None:
        return before
    targets = before.targets
    by_rank = np.lexsort((rank[before.sources], targets))
    place = np.empty_like(by_rank)
    place[by_rank] = np.arange(len(by_rank)) - before.first[targets]
    return before.kept(place < cap)
