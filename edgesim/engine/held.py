"""Updates that the server has received and not merged yet: a restart of the server loses them.

What arrives at the very instant of a restart survives it, in whatever order SimPy has the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import simpy

from edgesim.contracts import Arrival, Job
from edgesim.records.table import Table
from edgesim.world.failure import Failure


class Held:
    """The jobs behind un-merged updates, by their rows in the jobs table."""

    def __init__(self, env: simpy.Environment, jobs: Table, failures: Failure | None) -> None:
        self._env = env
        self._table = jobs
        self._failures = failures
        self._rows: dict[int, tuple[int, float]] = {}  # job -> row, and when its update arrived
        self.losses = 0  # restarts of the server so far
        self._lost: set[int] = set()
        self._armed = False  # a restart lies ahead that somebody waits for

    def add(self, job: Job, row: int) -> None:
        """Hold the update of a job."""
        self._rows[job.id] = (row, self._env.now)
        self._arm()

    def release(self, arrivals: Sequence[Arrival], outcome: str | None = None) -> None:
        """Hold these no longer, as they are merged, or discarded with another outcome."""
        for arrival in arrivals:
            held = self._rows.pop(arrival.job.id, None)
            if outcome is not None and held is not None:
                self._table.amend(held[0], "outcome", outcome)

    def look(self, arrivals: list[Arrival]) -> list[Arrival]:
        """Return these arrivals as they are now: those that the server lost have the outcome "lost"."""
        if not self._lost:
            return arrivals
        return [a._replace(outcome="lost") if a.job.id in self._lost else a for a in arrivals]

    def lost(self, jobs: Sequence[Job]) -> int:
        """Return how many of these jobs delivered an update that the server then lost."""
        return sum(job.id in self._lost for job in jobs) if self._lost else 0

    def _arm(self) -> None:
        """Wait for the next restart if it has anything to lose: there may be millions between two jobs."""
        if self._armed or not self._rows or self._failures is None:
            return
        at_s = self._failures.next_restart_s(self._env.now)
        if at_s < inf:
            self._armed = True
            restart = self._env.event()
            restart.callbacks.append(lambda _: self._restart())
            restart._ok, restart._value = True, None
            # before all that happens at its instant, whenever that was scheduled
            self._env.schedule(restart, priority=simpy.events.URGENT, delay=at_s - self._env.now)

    def _restart(self) -> None:
        self.losses += 1
        self._armed = False
        for job, (row, since_s) in list(self._rows.items()):
            if since_s < self._env.now:
                self._table.amend(row, "outcome", "lost")
                self._lost.add(job)
                del self._rows[job]
        self._arm()
