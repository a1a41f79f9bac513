"""Jobs over links of their own: all of a job is known when it starts, so it is one SimPy timeout."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import cast

import numpy as np
import simpy

from edgesim.contracts import Job, Outcome
from edgesim.engine.batteries import FleetBatteries
from edgesim.engine.fate import Fate, first_end
from edgesim.engine.spending import Spending, joules_of, spent_alone
from edgesim.engine.transfers import ON_TIME_S
from edgesim.world.fleet import Fleet
from edgesim.world.onoff import OnOff


class Direct:
    """Carries jobs; calls `arrive` when one is through and `fail` when one ends before its time."""

    def __init__(
        self,
        env: simpy.Environment,
        fleet: Fleet,
        batteries: FleetBatteries,
        links_up: OnOff | None,
        arrive: Callable[[Job], None],
        fail: Callable[[Job, Outcome], None],
    ) -> None:
        self._env = env
        self._fleet = fleet
        self._batteries = batteries
        self._links_up = links_up  # None: links never fail
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
        spent = spent_alone(job, inf) if through else self.so_far(job)
        if self._batteries:
            self._batteries.draw_job(job, spent, joules_of(job, spent, self._fleet))
        return spent

    def so_far(self, job: Job) -> Spending:
        """Return what a job has spent that is broken off now; asking changes nothing."""
        in_time = job.due_s - self._env.now <= ON_TIME_S
        spent = spent_alone(job, inf if in_time else self._env.now - job.sent_s)
        if self._links_up is not None:
            spent = spent._replace(shares=self._flowed(job, spent.shares, self._links_up))
        return spent

    def _flowed(self, job: Job, shares: tuple[float, float, float], links_up: OnOff) -> tuple[float, float, float]:
        """Return the shares of a job broken off now: nothing flows in the seconds in which its link is down."""
        row, (down, compute, up) = np.array([job.device]), shares

        def flowed(share: float, begins_s: float, ends_s: float) -> float:
            if not 0 < share < 1:
                return share
            so_far_s, all_s = (links_up.on_s(row, until_s, begins_s)[0] for until_s in (self._env.now, ends_s))
            return min(1.0, float(so_far_s / all_s)) if all_s > 0 else 0.0

        computes_s = job.sent_s + job.down_s
        sends_s = computes_s + job.compute_s
        down = flowed(down, job.sent_s + job.down_latency_s, computes_s)
        return down, compute, flowed(up, sends_s + job.up_latency_s, sends_s + job.up_s)

    def _arrived(self, event: simpy.Event) -> None:
        job = cast(Job, event.value)
        if not job.ended:  # an aborted job's timeout stays in SimPy's heap and means nothing any more
            self._arrive(job)

    def _ended(self, event: simpy.Event) -> None:
        job, outcome = cast(tuple[Job, Outcome], event.value)
        if not job.ended:
            self._fail(job, outcome)
