"""Asynchronous tiers: devices of like speed work in rounds, and no tier waits for another."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from edgesim.core.errors import ConfigError
from edgesim.core.job import DELIVERED, Completion
from edgesim.core.limits import Count
from edgesim.core.protocol import RoundProtocol
from edgesim.engine.protocols.without_rounds import WithoutRounds
from edgesim.engine.rounds import Rounds
from edgesim.engine.session import Session


@dataclass(frozen=True, kw_only=True)
class Tiers(RoundProtocol):
    """Devices are divided into `tiers` of like speed. Each tier works in synchronous rounds, and no tier waits.

    Tiers are equally large, by the seconds that the server expects of an undisturbed job. They stay for the whole run.
    The scenario's selection chooses among the devices of one tier. When all of them have ended their jobs, the server
    aggregates their updates and asks the tier again. Tables call each aggregation a round. The staleness of an update
    is the number of aggregations since its device got the model. Tiers that end at one instant are aggregated one after
    the other, the fastest first. A tier whose jobs all fail at the instant of being asked is left alone until the next
    aggregation.
    Source: Chai et al., "FedAT: A High-Performance and Communication-Efficient Federated Learning System with
    Asynchronous Tiers" (SC 2021). It measures latencies in a profiling phase, here they are expected ones.
    """

    protocol: ClassVar[str] = "tiers"
    tiers: Count = 5  # groups of devices; with 1 it is "sync"

    def check(self, devices: int, asked: int) -> None:
        """Raise ConfigError if there are more tiers than devices."""
        if self.tiers > devices:
            raise ConfigError(f"protocol.tiers: must be at most the {devices} devices, found {self.tiers}")

    def run(self, session: Session, rounds: Rounds) -> Generator[Any, Any, None]:
        """Run until stopped; one SimPy process for the whole fleet."""
        return _Run(session, rounds).run()


class _Run(WithoutRounds):
    """One run of the protocol: jobs asked of each tier at work, and the jobs of these that have ended."""

    def __init__(self, session: Session, rounds: Rounds) -> None:
        super().__init__(session, rounds)
        assert session.setting.tier is not None
        self._tier = session.setting.tier
        self._others = [tuple(np.flatnonzero(self._tier != m).tolist()) for m in range(int(self._tier.max()) + 1)]
        self._asked: dict[int, int] = {}
        self._came: dict[int, list[Completion]] = {}
        self._failed_at_once: set[int] = set()  # tiers left alone until the next aggregation

    def run(self) -> Generator[Any, Any, None]:
        """Ask tiers without jobs, aggregate a tier that is done, or wait; until stopped."""
        session = self.session
        while not self.rounds.stopped:
            yield from session.turn()
            self._ask()
            for each in self.inbox.take():
                self._came[int(self._tier[each.job.device])].append(each)
            done = [m for m, jobs in self._asked.items() if len(self._came[m]) == jobs]
            if done and not self.rounds.stopped:
                yield from self._close(min(done, key=lambda m: (self._came[m][-1].ended_s, m)))
            if done or self.rounds.stopped:
                continue
            event = self.wait(is_free=len(self._asked) < len(self._others), is_failing=bool(self._failed_at_once))
            if event is None:
                self._failed_at_once.clear()
                continue
            since_s = session.now_s
            yield event
            if session.now_s > since_s:
                self.watchdog.time_passed()

    def _ask(self) -> None:
        """Ask the devices that the selection chooses of each tier without jobs."""
        session = self.session
        session.presence.new_occasion()
        for m, others in enumerate(self._others):
            view = session.view(hidden=others)
            if self.rounds.stopped or m in self._asked or m in self._failed_at_once or not len(view.idle):
                continue
            jobs = session.dispatch(session.learner.plan(view), to=self.inbox)
            session.learner.start(jobs)
            session.exchange += 1
            self.watchdog.check_memory(session.nobody_fits)
            self._asked[m], self._came[m] = len(jobs), []

    def _close(self, m: int) -> Generator[Any, Any, None]:
        """Aggregate the updates of a tier. Jobs that all failed at once are counted in the next aggregation."""
        session, jobs = self.session, self._asked.pop(m)
        ended = session.server_buffer.with_losses(self._came.pop(m))
        ended = [each._replace(staleness=session.staleness(each.job)) for each in ended]
        lost = [each for each in ended if each.outcome not in DELIVERED]
        session.learner.cancel(lost)
        self.ended += ended
        if len(lost) == jobs and all(each.ended_s == each.job.sent_s for each in lost):
            self._failed_at_once.add(m)
            return
        used = self.ended
        yield from self.aggregate("tier")
        self.watchdog.close_round(session.now_s, used)
        self._failed_at_once.clear()


PLUGINS = {"tiers": Tiers}
