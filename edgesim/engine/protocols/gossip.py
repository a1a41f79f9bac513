"""The protocol of peers without rounds: every device goes on with its next job as soon as one has ended."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from dataclasses import dataclass, replace
from math import inf
from typing import Any, ClassVar, cast

import numpy as np
import simpy

from edgesim.core.arrays import Ids
from edgesim.core.job import DELIVERED, Completion
from edgesim.core.learner import LearnerOfPeers
from edgesim.core.limits import MOST_JOBS, Count, check_steps
from edgesim.core.task import Plan
from edgesim.core.view import Turn
from edgesim.engine.inbox import Inbox
from edgesim.engine.rounds import Rounds
from edgesim.engine.session import Session
from edgesim.engine.watchdog import Watchdog


@dataclass(frozen=True, kw_only=True)
class Gossip:
    """Peers on their own clocks: nobody waits for a round, and all who are there are at work all the time.

    What tables, evaluations and stop rules call a round is `every` completed updates, whoever's they are: as many as
    there are devices, unless it is given. A round closes at the instant of its last update, and no device takes notice
    of it but for the learning rate, where that changes from round to round. The model that is evaluated is what the
    method makes of the models of all devices at that instant. The staleness of an update is how often others have
    changed its device's model, by trades, while it was computed. Who hears whom is fixed; devices that are not there
    are left out. Jobs that end at one instant take effect in the order of their devices, before any begins. Who fails
    at the very instant of beginning is left alone until the round closes.
    Source: Lian et al., "Asynchronous Decentralized Parallel Stochastic Gradient Descent" (ICML 2018), algorithm 1.
    """

    protocol: ClassVar[str] = "gossip"
    own_clocks: ClassVar[bool] = True
    deadline_s: ClassVar[float] = inf
    every: Count | None = None  # completed updates that make a round; unset: as many as there are devices

    def check(self, devices: int, asked: int) -> None:
        """Raise ConfigError if a round would have more updates than a run can have jobs."""
        check_steps("protocol.every", self.every or devices, "a round of so many updates", most=MOST_JOBS)

    def with_fewer(self, updates: int, devices: int) -> tuple[Gossip, float]:
        """Return this protocol with rounds of so many updates at most, and how many of these make one of its own."""
        every = self.every or devices
        fewer = min(every, updates)
        return replace(self, every=fewer), every / fewer

    def run(self, session: Session, rounds: Rounds) -> Generator[Any, Any, None]:
        """Run until stopped; one SimPy process for the whole fleet."""
        return _Run(self.every or session.setting.devices, session, rounds).run()


class _Run:
    """One run of the protocol: which jobs have ended since the last round, and how often each model was changed."""

    def __init__(self, every: int, session: Session, rounds: Rounds) -> None:
        devices = len(session.world.fleet)
        self._every = every
        self._session = session
        self._learner = cast(LearnerOfPeers, session.learner)
        self._rounds = rounds
        self._watchdog = Watchdog(rounds.end)
        self._most_places = max(every, devices)
        self._inbox: Inbox = session.new_inbox()
        self._queue: deque[Completion] = deque()  # ended, and without effect so far
        self._ended: list[Completion] = []  # since the last round
        self._updates = 0  # among them
        self._nth = [0] * devices  # jobs that each device has begun
        self._changes = [0] * devices  # times that others have changed a device's model
        self._changes_before: dict[int, int] = {}  # a job began, by job
        self._failed_at_once = np.zeros(devices, dtype=bool)
        self._may_ask = np.ones(devices, dtype=bool) if session.members is None else session.members
        self._graph = session.view().graphs.of_round(np.ones(devices, dtype=bool), 0)

    def run(self) -> Generator[Any, Any, None]:
        """Let what has ended take effect, then begin what can begin, then wait; until stopped."""
        while not self._rounds.stopped:
            yield from self._session.turn()
            self._queue.extend(self._inbox.take())
            while self._queue and not self._rounds.stopped:
                self._take(self._queue.popleft())
                if self._updates >= self._every:
                    yield from self._close()
            if not self._rounds.stopped and not self._begin_jobs() and (event := self._wait()) is not None:
                since_s = self._session.now_s
                yield event
                self._after_waiting(since_s)

    def _begin_jobs(self) -> bool:
        """Let all devices begin that are there and have nothing to do; return whether a job has ended at once."""
        session = self._session
        session.presence.new_occasion()
        there = session.presence.reachable(session.now_s)
        for device in np.flatnonzero(there & self._may_ask & ~session.world.busy & ~self._failed_at_once).tolist():
            turn = Turn(session.setting, device, self._nth[device], self._neighbours(device, there), session.round)
            self._nth[device] += 1
            jobs = session.dispatch(Plan((self._learner.next_order(turn),)), to=self._inbox)
            session.learner.start(jobs)
            self._changes_before[jobs[0].id] = self._changes[device]
            self._watchdog.check_memory(session.nobody_fits)
        return len(self._inbox) > 0

    def _neighbours(self, device: int, there: np.ndarray) -> Ids:
        heard = self._graph.of(device)
        return heard if self._session.presence.everybody else heard[there[heard]]

    def _wait(self) -> simpy.Event | None:
        """Return an event that fires when a job ends or a device comes; None: neither will."""
        session, now_s = self._session, self._session.now_s
        running = len(session.running)
        comes_s = session.presence.wait_s(now_s)
        others = session.others_at_work  # on devices that are to begin when they are done
        self._watchdog.look(running > 0 or others)
        if self._rounds.stopped:
            return None
        if others:
            session.wants_devices = True
            ends = session.world.any_end()  # of jobs of this session too
            return ends if comes_s == inf else session.env.any_of([session.env.timeout(comes_s), ends])
        if running or comes_s < inf:
            return self._inbox.until(1, within_s=comes_s)
        self._watchdog.nobody_comes(failing=bool(self._failed_at_once.any()))
        self._failed_at_once[:] = False
        return None

    def _after_waiting(self, since_s: float) -> None:
        if self._session.now_s > since_s:
            self._watchdog.time_passed()

    def _take(self, completion: Completion) -> None:
        """Let a job take effect that has ended."""
        job, now_s = completion.job, completion.ended_s
        changes = self._changes[job.device] - self._changes_before.pop(job.id)
        completion = completion._replace(staleness=changes)
        took_time = now_s > job.sent_s
        if job.partner is not None:
            self._changes[job.partner] += 1
        self._learner.finish([completion])
        self._ended.append(completion)
        if completion.outcome in DELIVERED:
            self._updates += 1
        elif not took_time:
            self._failed_at_once[job.device] = True
        self._watchdog.take_job(took_time, self._most_places, self._updates >= self._every)

    def _close(self) -> Generator[Any, Any, None]:
        """Close a round of updates."""
        session = self._session
        ended, self._ended, self._updates = self._ended, [], 0
        self._watchdog.buffer_emptied()
        result = session.learner.aggregate(ended, session.view())
        session.server_buffer.release(ended)
        yield from self._rounds.close(result, ended, "updates")
        self._failed_at_once[:] = False


PLUGINS = {"gossip": Gossip}
