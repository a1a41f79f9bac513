"""Abstract class of mobility: when devices move to which edge server."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import NamedTuple

from edgesim.core.arrays import Ids
from edgesim.core.rng import Key


class Move(NamedTuple):
    """A device comes to an edge server."""

    at_s: float
    device: int
    edge: int


class Mobility(ABC):
    """A mobility as a scenario names it: a frozen dataclass."""

    @abstractmethod
    def moves(self, edge: Ids, edges: int, key: Key) -> Iterator[Move]:
        """Yield moves in the order of time, then device; `edge`: where devices are at first, shape (devices,).

        There may be no end of them. Raises DataError if a file does not fit so many devices and edge servers.
        """
