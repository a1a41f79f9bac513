"""The seams of round protocols and of selection rules."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from edgesim.core.arrays import Ids
from edgesim.core.rng import Key


class Selection(Protocol):
    """Who is asked: a frozen dataclass, as those of `engine/selection/rules.py`.

    Rules that look at more than who is idle extend edgesim.core.selection.Informed.
    """

    def check(self, level: Ids) -> None:
        """Raise ConfigError if the rule does not fit devices of these levels, shape (devices,)."""

    def choose(self, idle: Ids, level: Ids, key: Key) -> Ids:
        """Return distinct ids of `idle`, ascending; a pure function of its arguments."""


class RoundProtocol(Protocol):
    """The protocol of a run as one SimPy process: a frozen dataclass. `engine/protocols/sync.py` is the shortest."""

    protocol: str  # by which methods say what they run on, in `Needs.protocols`
    deadline_s: float  # of a round; inf if there is none
    # `own_clocks`, if it is there and true: devices have no rounds, and the learner is a LearnerOfPeers
    # `with_fewer(updates, devices)`, if it is there: this protocol, or one that merges after so many updates at most,
    # and how many of its rounds make one of this protocol's; for trials of a run, which take long otherwise

    def check(self, devices: int, asked: int) -> None:
        """Raise ConfigError if it cannot work with a fleet of so many devices, of which so many are asked."""

    def run(self, session: Any, rounds: Any) -> Iterator[Any]:
        """Ask, wait and aggregate until `rounds` are stopped: a generator of the SimPy events that it waits for.

        `session`: an edgesim.engine.session.Session, which knows its learner; `rounds`: edgesim.engine.rounds.Rounds.
        """
