"""Shared parts of protocols without rounds: jobs end one by one, and tables call a number of updates a round."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from math import inf
from typing import Any

import simpy

from edgesim.core.job import Completion
from edgesim.engine.rounds import Rounds
from edgesim.engine.session import Session
from edgesim.engine.watchdog import Watchdog


class WithoutRounds:
    """Queue of ended jobs, and updates since the last aggregation; subclasses decide which devices begin jobs."""

    def __init__(self, session: Session, rounds: Rounds) -> None:
        self.session = session
        self.rounds = rounds
        self.watchdog = Watchdog(rounds.give_up)
        self.inbox = session.new_inbox()
        self.queue: deque[Completion] = deque()  # ended jobs that have had no effect yet
        self.ended: list[Completion] = []  # jobs since the last aggregation

    def wait(self, *, is_free: bool = True, is_failing: bool) -> simpy.Event | None:
        """Return an event that fires when a job ends or a device arrives, or None if neither will happen.

        `is_free`: whether an arriving device could begin a job. `is_failing`: whether devices are left alone because
        they failed at the instant of being asked; without them None ends the run.
        """
        session, now_s = self.session, self.session.now_s
        running = len(session.running)
        arrives_s = session.presence.wait_s(now_s) if is_free else inf  # until a device comes that is away now
        others = is_free and session.others_at_work  # on devices that this session may ask afterwards
        self.watchdog.look(running > 0 or others)
        if self.rounds.stopped:
            return None
        if others:
            session.wants_devices = True
            ends = session.below.any_end()  # of jobs of this session, too
            return ends if arrives_s == inf else session.env.any_of([session.env.timeout(arrives_s), ends])
        if running or arrives_s < inf:
            return self.inbox.until(1, within_s=arrives_s)
        self.watchdog.nobody_comes(failing=is_failing)
        return None

    def aggregate(self, closed_by: str) -> Generator[Any, Any, None]:
        """Aggregate what has ended, and close the round; `closed_by`: as in edgesim.records.schema.CLOSED_BY."""
        ended, self.ended = self.ended, []
        self.watchdog.buffer_emptied()
        result = self.session.learner.aggregate(ended, self.session.view())
        self.session.server_buffer.release(ended)
        yield from self.rounds.close(result, ended, closed_by)
