"""A protocol of its own, as FedAT's: devices of one speed are a tier that works in rounds, and no tier waits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from edgesim.core.errors import ConfigError
from edgesim.core.job import DELIVERED, Completion
from edgesim.core.protocol import RoundProtocol


@dataclass(frozen=True, kw_only=True)
class Tiers(RoundProtocol):
    """Devices of a level are a tier. A tier's updates are merged when all of its devices have answered."""

    protocol: ClassVar[str] = "buffered"  # methods that merge updates of different ages work on it
    a: float = 0.5  # an update counts (staleness + 1)^-a

    def check(self, devices: int, asked: int) -> None:
        """Raise ConfigError if the weight of an update would grow with its staleness."""
        if self.a < 0:
            raise ConfigError(f"protocol.a: must be at least 0, found {self.a}")

    def run(self, session: Any, rounds: Any) -> Iterator[Any]:
        """Ask every tier that has no jobs, and merge what the next tier that is done has sent."""
        level = session.setting.level
        inboxes = {int(tier): session.new_inbox() for tier in np.unique(level)}
        at_work: dict[int, list[Any]] = {}
        while not rounds.stopped:
            for tier in sorted(inboxes.keys() - at_work.keys()):
                view = session.view(hidden=tuple(np.flatnonzero(level != tier).tolist()))
                if len(view.idle):
                    at_work[tier] = session.dispatch(session.learner.plan(view), to=inboxes[tier])
                    session.learner.start(at_work[tier])
            if not at_work:
                return rounds.end("no device can be asked")
            yield session.env.any_of([inboxes[tier].until(len(jobs)) for tier, jobs in at_work.items()])
            for tier in sorted(at_work):
                if len(inboxes[tier]) == len(at_work[tier]) and not rounds.stopped:
                    del at_work[tier]
                    ended = [self.weighted(session, each) for each in inboxes[tier].take()]
                    session.learner.cancel([each for each in ended if each.outcome not in DELIVERED])
                    result = session.learner.aggregate(ended, session.view())
                    session.server_buffer.release(ended)
                    yield from rounds.close(result, ended, "updates")

    def weighted(self, session: Any, completion: Completion) -> Completion:
        """Return a completion with its staleness and weight as of now."""
        staleness = session.staleness(completion.job)
        return completion._replace(staleness=staleness, weight=(staleness + 1.0) ** -self.a)
