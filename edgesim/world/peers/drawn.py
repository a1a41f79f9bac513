"""Graphs drawn anew every round, among the devices that are online."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
from annotated_types import Ge, Le

from edgesim.core.arrays import Ids
from edgesim.core.errors import ConfigError
from edgesim.core.limits import MOST_COUNT, Count
from edgesim.core.peer_graph import PeerGraph, Peers, check_company, cliques, from_edges
from edgesim.core.rng import Key


@dataclass(frozen=True, kw_only=True)
class Random(Peers):
    """Every device hears `degree` others, each set of them equally likely, whoever else hears them.

    If fewer others are online it hears them all. How many hear a device differs.
    Source: DA-DPFL paper, 10 random neighbours redrawn each round.
    """

    redrawn: ClassVar[bool] = True
    degree: Count = 10

    def check(self, n: int) -> None:
        """Raise ConfigError unless there are more than `degree` devices."""
        check_company(n, min(self.degree, n))
        if self.degree >= n:
            raise ConfigError(f"peers.degree: must be below the {n} devices, got {self.degree}; all others: use full")

    def graph(self, online: np.ndarray, round: int, key: Key) -> PeerGraph:
        """Return the graph of a round; directed."""
        ids = np.flatnonzero(online)
        others = max(0, len(ids) - 1)
        hearer, other = _subsets(len(ids), min(self.degree, others), others, key.numpy())
        # the others of the device in place p are those before it and those after it
        heard = other + (other >= hearer)
        return from_edges(len(online), ids[heard], ids[hearer])


@dataclass(frozen=True, kw_only=True)
class GossipMatch(Peers):
    """Random groups whose members all hear each other.

    Mode "group": as many groups of `size` as there are, and each device left over joins a random one. Mode "pair":
    pairs, whatever the size; of an odd number of devices one hears nobody in that round.
    Source: GossipFL paper, one peer a round from a matching; DA-DPFL paper, groups of 11 in its comparison.
    """

    redrawn: ClassVar[bool] = True
    mode: Literal["group", "pair"] = "group"  # groups, or pairs
    size: Annotated[int, Ge(2), Le(MOST_COUNT)] = 11  # as many neighbours as the usual degree of `random`

    def check(self, n: int) -> None:
        """Raise ConfigError if there are not enough devices for one group."""
        check_company(n, min(self.size, n) if self.mode == "group" else 1)
        if self.mode == "group" and self.size > n:
            raise ConfigError(f"peers.size: must be at most the {n} devices, got {self.size}")

    def graph(self, online: np.ndarray, round: int, key: Key) -> PeerGraph:
        """Return the graph of a round; symmetric."""
        ids, rng = np.flatnonzero(online), key.numpy()
        size = self.size if self.mode == "group" else 2
        place = np.arange(len(ids)) // size
        if self.mode == "group":
            groups = max(1, len(ids) // size)
            left_over = place >= groups
            place[left_over] = rng.integers(groups, size=left_over.sum())
        group = np.full(len(online), -1)
        group[rng.permutation(ids)] = place
        return cliques(group)


def _subsets(rows: int, size: int, below: int, rng: np.random.Generator) -> tuple[Ids, Ids]:
    """Return rows and members of as many independent random sets of `size` distinct numbers below `below`."""
    if 2 * size <= below:
        return np.repeat(np.arange(rows), size), _distinct(rows, size, below, rng).ravel()
    # what is left out is the smaller part, and as random
    member = np.ones((rows, below), dtype=bool)
    np.put_along_axis(member, _distinct(rows, below - size, below, rng), False, axis=1)
    row, number = np.nonzero(member)
    return row, number


def _distinct(rows: int, size: int, below: int, rng: np.random.Generator) -> Ids:
    """Return rows of distinct numbers, every set equally likely, int64, shape (rows, size).

    Whatever a row holds twice is drawn again. Which numbers these are plays no part in it, so that no set is favoured.
    """
    drawn = rng.integers(below, size=(rows, size))
    while True:
        drawn.sort(axis=1)
        row, column = np.nonzero(drawn[:, 1:] == drawn[:, :-1])
        if not len(row):
            return drawn
        drawn[row, column] = rng.integers(below, size=len(row))


PLUGINS = {"random": Random, "gossip_match": GossipMatch}
