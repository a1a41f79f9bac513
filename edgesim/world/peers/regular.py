"""Graphs that follow from the numbers of the devices. Devices that are offline take their edges with them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from annotated_types import Ge, MultipleOf

from edgesim.core.arrays import Ids
from edgesim.core.errors import ConfigError
from edgesim.core.limits import Count
from edgesim.core.peer_graph import PeerGraph, Peers, check_company, cliques, from_edges
from edgesim.core.rng import Key


@dataclass(frozen=True, kw_only=True)
class Ring(Peers):
    """Devices in a circle: each hears the one before and the one after it."""

    def check(self, n: int) -> None:
        """Raise ConfigError if there is one device only."""
        check_company(n, 2)

    def graph(self, online: np.ndarray, round: int, key: Key) -> PeerGraph:
        """Return the graph of a round; symmetric."""
        return _circle(online, np.array([-1, 1]))


@dataclass(frozen=True, kw_only=True)
class Full(Peers):
    """Every device hears every other device."""

    def check(self, n: int) -> None:
        """Raise ConfigError if there is one device only."""
        check_company(n, n - 1)

    def graph(self, online: np.ndarray, round: int, key: Key) -> PeerGraph:
        """Return the graph of a round; symmetric."""
        return cliques(np.where(online, 0, -1))


@dataclass(frozen=True, kw_only=True)
class Expander(Peers):
    """Devices in a circle: each hears `degree` / 2 on either side.

    Source: BEER as compared in the DA-DPFL paper: degree 10.
    """

    degree: Annotated[int, Ge(2), MultipleOf(2)] = 10

    def check(self, n: int) -> None:
        """Raise ConfigError unless there are more than `degree` devices."""
        check_company(n, min(self.degree, n))
        if self.degree >= n:
            raise ConfigError(f"peers.degree: must be below the {n} devices, got {self.degree}; all others: use full")

    def graph(self, online: np.ndarray, round: int, key: Key) -> PeerGraph:
        """Return the graph of a round; symmetric."""
        steps = np.arange(1, self.degree // 2 + 1)
        return _circle(online, np.concatenate([-steps, steps]))


@dataclass(frozen=True, kw_only=True)
class Exponential(Peers):
    """Device k of n hears those 1, 2, 4, 8, ... before it in the circle, as far as these are below n.

    With `one_peer` it hears one of them a round, in turn: in round t the one 2^(t mod their number) before it.
    Source: Ying et al., "Exponential graph is provably efficient for decentralized deep training" (NeurIPS 2021).
    """

    one_peer: bool = False

    @property
    def redrawn(self) -> bool:
        """True if the graph changes from round to round."""
        return self.one_peer

    def check(self, n: int) -> None:
        """Raise ConfigError if there is one device only."""
        check_company(n, math.log2(max(n, 2)))

    def graph(self, online: np.ndarray, round: int, key: Key) -> PeerGraph:
        """Return the graph of a round; directed."""
        # the powers of 2 below n, counted exactly where a logarithm may round
        count = (len(online) - 1).bit_length()
        steps = 2 ** np.arange(count)
        return _circle(online, -steps[[round % count]] if self.one_peer else -steps)


@dataclass(frozen=True, kw_only=True)
class StarOfStars(Peers):
    """The first `hubs` devices hear each other; every other device is linked to one of them, neighbours to the same.

    Other device j of m, counted from 0, hangs on hub j * hubs // m.
    """

    hubs: Count

    def check(self, n: int) -> None:
        """Raise ConfigError unless some devices are no hubs."""
        check_company(n, 2 + min(self.hubs, n) ** 2 / n)
        if self.hubs >= n:
            raise ConfigError(f"peers.hubs: must be below the {n} devices, got {self.hubs}; all others: use full")

    def graph(self, online: np.ndarray, round: int, key: Key) -> PeerGraph:
        """Return the graph of a round; symmetric."""
        a, b = np.nonzero(~np.eye(self.hubs, dtype=bool))
        outer = np.arange(len(online) - self.hubs)
        hub, leaf = outer * self.hubs // len(outer), self.hubs + outer
        whole = from_edges(len(online), np.concatenate([a, hub, leaf]), np.concatenate([b, leaf, hub]))
        return whole.among(online)


def _circle(online: np.ndarray, steps: Ids) -> PeerGraph:
    """Return the graph in which device k of a circle of n hears those `steps` after it, none a multiple of n."""
    n = len(online)
    ways = np.unique(steps % n)  # in a circle of two, one before is one after
    targets = np.repeat(np.arange(n), len(ways))
    sources = (targets + np.tile(ways, n)) % n
    return from_edges(n, sources, targets).among(online)


PLUGINS = {"ring": Ring, "full": Full, "expander": Expander, "exponential": Exponential, "star_of_stars": StarOfStars}
