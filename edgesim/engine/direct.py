"""Jobs over links of their own: all of a job is known when it starts, so it is one SimPy timeout."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import cast

import simpy

from edgesim.contracts import Job, Outcome
from edgesim.engine.batteries import FleetBatteries
from edgesim.engine.fate import Fate, first_end
from edgesim.engine.spending import Spending, joules_of, spent_alone
from edgesim.world.fleet import Fleet


class Direct:
    """Carries jobs; calls `arrive` when one is through and `fail` when one ends before its time."""

    def __init__(
        self,
        env: simpy.Environment,
        fleet: Fleet,
        batteries: FleetBatteries,
        arrive: Callable[[Job], None],
        fail: Callable[[Job, Outcome], None],
    ) -> None:
        self._env = env
        self._fleet = fleet
        self._batteries = batteries
        self._arrive = arrive
        self._fail = fail

    def start(self, job: Job, fate: Fate | None, battery_s: float) -> None:
        """Send a job off now."""
        length_s = job.due_s - job.sent_s
        if fate is not None or battery_s < inf:
            ends_s, outcome = first_end(job, fate or Fate(), battery_s)
            # a crash that rounding moves to the very end is still a crash; who leaves then has delivered
            if ends_s < length_s or (outcome == "crashed" and ends_s == length_s):
                job.due_s = inf
                self._env.timeout(ends_s, (job, outcome)).callbacks.append(self._ended)
                return
        self._env.timeout(length_s, job).callbacks.append(self._arrived)

    def settle(self, within_s: float) -> None:
        """Do nothing: jobs whose end is known need no settling."""

    def end(self, job: Job, through: bool) -> Spending:
        """Return what a job that is through, or was broken off now, has spent."""
        spent = spent_alone(job, inf if through else self._env.now - job.sent_s)
        if self._batteries:
            self._batteries.draw_job(job, spent, joules_of(job, spent, self._fleet))
        return spent

    def _arrived(self, event: simpy.Event) -> None:
        job = cast(Job, event.value)
        if not job.ended:  # an aborted job's timeout stays in SimPy's heap and means nothing any more
            self._arrive(job)

    def _ended(self, event: simpy.Event) -> None:
        job, outcome = cast(tuple[Job, Outcome], event.value)
        if not job.ended:
            self._fail(job, outcome)
