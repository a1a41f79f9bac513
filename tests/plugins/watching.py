"""Selections of a user's own that look at what is known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from edgesim.core.selection import Informed, Known

SEEN: list[Known] = []  # what the last runs of Watching were told, at every choice


@dataclass(frozen=True, kw_only=True)
class Watching(Informed):
    """All idle devices up to `count`, by id; remembers what it was told."""

    needs: ClassVar[Any] = frozenset({"reports", "channel", "battery", "labels"})

    def choose(self, idle: Any, known: Known, key: Any) -> Any:
        """Return the first idle devices."""
        SEEN.append(known)
        return idle[: self.count]


@dataclass(frozen=True, kw_only=True)
class Learning(Watching):
    """Counts the rounds in its state."""

    def start(self, known: Known) -> Any:
        """Return that there were none."""
        return ()

    def learn(self, known: Known) -> Any:
        """Return the rounds and who was asked in each."""
        return (*known.state, (known.round, tuple(known.last.tolist())))


@dataclass(frozen=True, kw_only=True)
class InCell(Watching):
    """Looks at the cell, and asks the devices in turn."""

    needs: ClassVar[Any] = frozenset({"channel", "cell"})

    def choose(self, idle: Any, known: Known, key: Any) -> Any:
        """Return the device whose turn it is."""
        SEEN.append(known)
        return idle[[known.round % len(idle)]]


@dataclass(frozen=True, kw_only=True)
class Odd(Watching):
    """Wants what no server knows."""

    needs: ClassVar[Any] = frozenset({"weather"})


@dataclass(frozen=True, kw_only=True)
class Halving(Informed):
    """Everybody, and an update of device k counts 1 / (k + 1)."""

    weighs: ClassVar[bool] = True

    def choose(self, idle: Any, known: Known, key: Any) -> Any:
        """Return all."""
        return idle

    def weights(self, idle: Any, known: Known) -> Any:
        """Return 1, 1/2, 1/3, ..."""
        return 1.0 / (1.0 + np.asarray(idle))


class Undecided(Informed):
    """A rule whose author forgot to say whom it chooses."""
