"""Interfaces of round protocols and of selection rules."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from edgesim.core.arrays import Ids
from edgesim.core.rng import Key


class Selection(Protocol):
    """A rule that chooses devices: a frozen dataclass, as in `engine/selection/rules.py`.

    Rules that use more than the set of idle devices extend edgesim.core.selection.Informed.
    """

    def check(self, level: Ids) -> None:
        """Raise ConfigError if the rule does not fit devices of these levels, shape (devices,)."""

    def choose(self, idle: Ids, level: Ids, key: Key) -> Ids:
        """Return distinct ids of `idle`, ascending, a pure function of its arguments."""


class RoundProtocol(Protocol):
    """Protocol of a run as one SimPy process: a frozen dataclass. `engine/protocols/sync.py` is the shortest."""

    protocol: str  # name by which methods list their protocols in `Needs.protocols`
    deadline_s: float  # deadline of a round; inf if it has none
    # Optional `own_clocks`: true if devices have no rounds, so that the learner is a LearnerOfPeers.
    # Optional `with_fewer(updates, devices)`, for shorter trials of a run: this protocol, or one that merges after at
    # most `updates` updates, and the number of its rounds that make one round of this protocol.

    def check(self, devices: int, asked: int) -> None:
        """Raise ConfigError if the protocol cannot work with `devices` devices, of which `asked` are selected."""

    def run(self, session: Any, rounds: Any) -> Iterator[Any]:
        """Send orders, wait and aggregate until `rounds` are stopped: a generator of the SimPy events to wait for.

        `session`: an edgesim.engine.session.Session, which knows its learner; `rounds`: edgesim.engine.rounds.Rounds.
        """
