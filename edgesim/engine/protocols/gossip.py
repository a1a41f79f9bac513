"""Asynchronous protocol of peers: every device begins its next job as soon as one has ended."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, cast

import numpy as np

from edgesim.core.job import DELIVERED, Completion
from edgesim.core.learner import LearnerOfPeers
from edgesim.core.limits import MOST_JOBS, Count, check_steps
from edgesim.core.protocol import RoundProtocol
from edgesim.core.task import Plan
from edgesim.core.view import Turn
from edgesim.engine.protocols.without_rounds import WithoutRounds
from edgesim.engine.rounds import Rounds
from edgesim.engine.session import Session


@dataclass(frozen=True, kw_only=True)
class Gossip(RoundProtocol):
    """Peers on their own clocks: no device waits for a round, and every reachable device works all the time.

    Tables, evaluations and stop rules call `every` completed updates a round: by default as many as there are devices.
    A round closes at the instant of its last update. Devices do not notice, except for a learning rate that
    changes from round to round. The evaluated model is what the method makes of the models of all devices at that
    instant. The staleness of an update is the number of times that other devices have changed its device's model, by
    trades, while the update was computed. Neighbours are those of the graph of the round, without devices that cannot
    be reached. A graph that is drawn anew every round is drawn among all devices; it holds for jobs that begin in the
    round. Jobs that end at one instant take effect in the order of their devices, before any job begins. A device that
    fails at the very instant of beginning is left alone until the round closes.
    Source: Lian et al., "Asynchronous Decentralized Parallel Stochastic Gradient Descent" (ICML 2018), algorithm 1.
    """

    protocol: ClassVar[str] = "gossip"
    own_clocks: ClassVar[bool] = True
    every: Count | None = None  # completed updates that make a round; unset: as many as there are devices

    def check(self, devices: int, asked: int) -> None:
        """Raise ConfigError if a round would have more updates than a run can have jobs."""
        check_steps("protocol.every", self.every or devices, "a round of so many updates", most=MOST_JOBS)

    def with_fewer(self, updates: int, devices: int) -> tuple[Gossip, float]:
        """Return this protocol with rounds of at most `updates`, and how many of them make one of this."""
        every = self.every or devices
        fewer = min(every, updates)
        return replace(self, every=fewer), every / fewer

    def run(self, session: Session, rounds: Rounds) -> Generator[Any, Any, None]:
        """Run until stopped; one SimPy process for the whole fleet."""
        return _Run(self.every or session.setting.devices, session, rounds).run()


class _Run(WithoutRounds):
    """One run of the protocol: updates of the round, and how often the model of each device was changed by others."""

    def __init__(self, every: int, session: Session, rounds: Rounds) -> None:
        super().__init__(session, rounds)
        devices = len(session.world.fleet)
        self._every = every
        self._learner = cast(LearnerOfPeers, session.learner)
        self._updates = 0  # of the round
        self._nth = [0] * devices  # jobs that each device has begun
        self._changes = [0] * devices  # times that others have changed a device's model
        self._changes_before: dict[int, int] = {}  # by job: the same when it began
        self._failed_at_once = np.zeros(devices, dtype=bool)
        self._may_ask = np.ones(devices, dtype=bool) if session.members is None else session.members
        self._graphs = session.view().graphs
        self._graph, self._drawn_in = self._graphs.of_round(np.ones(devices, dtype=bool), 0), 0  # newest, its round

    def run(self) -> Generator[Any, Any, None]:
        """Let ended jobs take effect, begin the jobs that can begin, and wait; until stopped."""
        session = self.session
        while not self.rounds.stopped:
            yield from session.turn()
            self.queue.extend(self.inbox.take())
            while self.queue and not self.rounds.stopped:
                self._take(self.queue.popleft())
                if self._updates >= self._every:
                    self._updates = 0
                    yield from self.aggregate("updates")
                    self._failed_at_once[:] = False
            if self.rounds.stopped:
                return
            self._begin_jobs()
            if len(self.inbox):  # a job has ended at once
                continue
            event = self.wait(is_failing=bool(self._failed_at_once.any()))
            if event is None:
                if not self.rounds.stopped:
                    self._failed_at_once[:] = False
                continue
            since_s = session.now_s
            yield event
            if session.now_s > since_s:
                self.watchdog.time_passed()

    def _begin_jobs(self) -> None:
        """Let all reachable devices without a job begin one."""
        session = self.session
        if self._graphs.peers.redrawn and self._drawn_in < session.round:
            self._drawn_in = session.round
            self._graph = self._graphs.of_round(np.ones(len(self._nth), dtype=bool), session.round)
        session.presence.new_occasion()
        there = session.presence.reachable(session.now_s)
        for device in np.flatnonzero(there & self._may_ask & ~session.below.busy & ~self._failed_at_once).tolist():
            neighbours = self._graph.of(device)
            if not session.presence.everybody:
                neighbours = neighbours[there[neighbours]]
            turn = Turn(session.setting, device, self._nth[device], neighbours, session.round)
            self._nth[device] += 1
            jobs = session.dispatch(Plan((self._learner.next_order(turn),)), to=self.inbox)
            session.learner.start(jobs)
            self._changes_before[jobs[0].id] = self._changes[device]
            self.watchdog.check_memory(session.nobody_fits)

    def _take(self, completion: Completion) -> None:
        """Let an ended job take effect."""
        job = completion.job
        changes = self._changes[job.device] - self._changes_before.pop(job.id)
        completion = completion._replace(staleness=changes)
        took_time = completion.ended_s > job.sent_s
        if job.partner is not None:
            self._changes[job.partner] += 1
        self._learner.finish([completion])
        self.ended.append(completion)
        if completion.outcome in DELIVERED:
            self._updates += 1
        elif not took_time:
            self._failed_at_once[job.device] = True
        self.watchdog.take_job(took_time, max(self._every, len(self._nth)), self._updates >= self._every)


PLUGINS = {"gossip": Gossip}
