"""Jobs over dedicated links: all of a job is known when it starts, so it is one SimPy timeout."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import cast

import numpy as np
import simpy

from edgesim.core.job import ON_TIME_S, Job, Outcome
from edgesim.engine.accounting import Usage, dedicated_usage, joules_of
from edgesim.engine.batteries import FleetBatteries
from edgesim.engine.interruptions import Interruption, first_end
from edgesim.world.fleet import Fleet
from edgesim.world.processes.on_off import OnOff


class DedicatedLinks:
    """Transports jobs of the server; calls `arrive` when one is through and `fail` when one ends before its time."""

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

    def start(self, job: Job, interruption: Interruption | None, battery_s: float) -> None:
        """Send a job off now."""
        length_s = job.due_s - job.sent_s
        if interruption is not None or battery_s < inf:
            ends_s, outcome = first_end(job, interruption or Interruption(), battery_s)
            # a crash that rounding moves to the very end is still a crash; who leaves then has delivered
            if ends_s < length_s or (outcome == "crashed" and ends_s == length_s):
                job.due_s = inf
                self._env.timeout(ends_s, (job, outcome)).callbacks.append(self._ended)
                return
        self._env.timeout(length_s, job).callbacks.append(self._arrived)

    def settle(self, within_s: float) -> None:
        """Do nothing: jobs whose end is known need no settling."""

    def end(self, job: Job, through: bool) -> Usage:
        """Return the usage of a job that is complete, or that ends early now."""
        usage = dedicated_usage(job, inf) if through else self.so_far(job)
        if self._batteries:
            self._batteries.draw_job(job, usage, joules_of(job, usage, self._fleet))
        return usage

    def so_far(self, job: Job) -> Usage:
        """Return the usage of a job if it ended now, without side effects."""
        in_time = job.due_s - self._env.now <= ON_TIME_S
        usage = dedicated_usage(job, inf if in_time else self._env.now - job.sent_s)
        if self._links_up is not None:
            usage = usage._replace(shares=self._flowed(job, usage.shares, self._links_up))
        return usage

    def _flowed(self, job: Job, shares: tuple[float, float, float], links_up: OnOff) -> tuple[float, float, float]:
        """Return the shares of a job broken off now: nothing flows in the seconds in which its link is down."""
        row, (down, compute, up) = np.array([job.device]), shares

        def flowed(share: float, begins_s: float, ends_s: float) -> float:
            if not 0 < share < 1:
                return share
            so_far_s, all_s = (links_up.on_s(row, until_s, begins_s)[0] for until_s in (self._env.now, ends_s))
            return min(1.0, float(so_far_s / all_s)) if all_s > 0 else 0.0

        computes_s = job.sent_s + job.prices.down_s
        sends_s = computes_s + job.prices.compute_s
        down = flowed(down, job.sent_s + job.prices.down_latency_s, computes_s)
        return down, compute, flowed(up, sends_s + job.prices.up_latency_s, sends_s + job.prices.up_s)

    def _arrived(self, event: simpy.Event) -> None:
        job = cast(Job, event.value)
        if not job.ended:  # an aborted job's timeout stays in SimPy's heap and means nothing any more
            self._arrive(job)

    def _ended(self, event: simpy.Event) -> None:
        job, outcome = cast(tuple[Job, Outcome], event.value)
        if not job.ended:
            self._fail(job, outcome)
