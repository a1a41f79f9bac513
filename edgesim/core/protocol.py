"""Abstract class of round protocols."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from math import inf
from typing import Any, ClassVar, Self


class RoundProtocol(ABC):
    """Protocol of a run as one SimPy process: a frozen dataclass. `engine/protocols/sync.py` is the shortest."""

    protocol: ClassVar[str]  # name by which methods list their protocols in `Needs.protocols`
    own_clocks: ClassVar[bool] = False  # True: devices have no rounds, so the learner is a LearnerOfPeers

    @property
    def deadline_s(self) -> float:
        """Deadline of a round; inf if it has none."""
        return inf

    @property
    def tiers(self) -> int:
        """Number of equally large groups of devices by expected seconds, in `Setting.tier`; 0: there are none."""
        return 0

    def check(self, devices: int, asked: int) -> None:
        """Raise ConfigError if the protocol cannot work with `devices` devices, of which `asked` are selected."""

    def with_fewer(self, updates: int, devices: int) -> tuple[Self, float]:
        """Return this protocol, or one that aggregates after at most `updates` updates, for shorter trials of a run.

        The number says how many of its rounds make one round of this protocol.
        """
        return self, 1.0

    @abstractmethod
    def run(self, session: Any, rounds: Any) -> Iterator[Any]:
        """Send orders, wait and aggregate until `rounds` are stopped: a generator of the SimPy events to wait for.

        `session`: an edgesim.engine.session.Session, which knows its learner; `rounds`: edgesim.engine.rounds.Rounds.
        """
