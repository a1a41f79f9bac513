"""Sessions as they run in their world, at once: each from its start until one of its stop rules ends it."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from functools import partial
from itertools import permutations
from typing import Any, Protocol

import numpy as np
import simpy

from edgesim.config.scenario import Stop
from edgesim.engine.accounting import Totals
from edgesim.engine.rounds import Rounds
from edgesim.engine.session import Session


class Beside(Protocol):
    """Activity beside the protocol of a session, such as edge servers."""

    def start(self, rounds: Rounds) -> list[simpy.Process]:
        """Start it; return its processes. `rounds`: of the session."""

    def stop(self) -> None:
        """Bring it to an end, as the session has ended."""


def introduce(sessions: Sequence[Session]) -> None:
    """Tell each session of a world with which others it shares devices."""
    for one, other in permutations(sessions, 2):
        if len(np.intersect1d(one.setting.ids, other.setting.ids)):
            one.rivals.append(other)


class SessionProcess:
    """A protocol at work in a session. When the session ends it is cut off, and leaves the world to the others."""

    def __init__(
        self,
        session: Session,
        rounds: Rounds,
        protocol: Any,
        stop: Stop,
        start_s: float = 0.0,
        beside: Beside | None = None,
    ) -> None:
        """`start_s`: when it starts, on the clock of the world. `beside`: None: there is nothing but the protocol."""
        self.session = session
        self.rounds = rounds
        self.ended_s: float | None = None  # None: it has not
        self.totals: Totals | None = None  # what had been spent by then
        self._protocol = protocol
        self._start_s = start_s
        self._beside = beside
        env = session.env
        rounds.ended.callbacks.append(lambda _: self._cut_off())
        self._processes = [] if beside is None else beside.start(rounds)
        self._process = env.process(self._run())
        self._processes.append(self._process)
        if stop.sim_time is not None:
            reason = f"{stop.sim_time:g} s simulated"
            timer = env.timeout(stop.sim_time)
            timer.callbacks.append(lambda _: None if rounds.stopped else rounds.end(reason))
        for milestone in stop.milestones if session.learner.trains else ():
            timer = env.timeout(milestone.sim_time)
            timer.callbacks.append(partial(rounds.look_at, milestone))

    @property
    def failure(self) -> BaseException | None:
        """Error raised by the protocol or by the activity beside it; None: none."""
        raised = (process.value for process in self._processes if process.triggered)
        return next((value for value in raised if isinstance(value, BaseException)), None)

    def _run(self) -> Generator[Any, Any, None]:
        try:
            if self._start_s > 0:
                yield self.session.env.timeout(self._start_s)
            yield from self._protocol.run(self.session, self.rounds)
        except simpy.Interrupt:  # the session has ended while the protocol waited
            return

    def _cut_off(self) -> None:
        """Charge the jobs in flight up to now."""
        self.rounds.settle()
        if self._beside is not None:
            self._beside.stop()
        self.session.wants_devices = False
        self.session.abort(list(self.session.running.values()), "stopped")
        self.rounds.write_rest_of_costs()
        self.ended_s, self.totals = self.session.now_s, self.session.totals()
        if self._process.is_alive:
            self._process.interrupt()


def run_all(processes: Sequence[SessionProcess]) -> None:
    """Run the world until all sessions in it have ended. Raises what a protocol raises."""
    try:
        for each in processes:
            each.session.env.run(until=each.rounds.ended)
    except BaseException:
        for each in processes:
            if each.failure is not None:  # SimPy raises a copy of it, or fails to make one
                raise each.failure from each.failure.__cause__
        raise
