"""Server work on a merge: updates that wait in its buffer, and the workers that take merges from a queue.

A restart of the server loses the updates in its buffer.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from heapq import heapify, heapreplace
from math import inf
from typing import Any

import simpy

from edgesim.core.job import DELIVERED, Completion, Job
from edgesim.core.learner import ServerStep
from edgesim.core.limits import check_amount
from edgesim.core.view import Setting
from edgesim.engine.pricing import averaging_flops
from edgesim.engine.world import Merge, World
from edgesim.records.table import Table
from edgesim.world.failures.base import Failure


class Merges:
    """Merges of a server or an edge server, one at a time, which take time and energy."""

    def __init__(
        self, world: World, setting: Setting, flops_per_s: float, workers: int, key: str, edge: int | None = None,
        *, per_byte_s: float = 0.0, test_samples: int = 0,
    ) -> None:  # fmt: skip
        """`key`: section of the scenario that errors name; `edge`: place of the edge server; None: the server.

        `per_byte_s`: seconds of a worker for each byte of an update; `test_samples`: for each test of the
        model, with every network that it holds.
        """
        self._world = world
        self._setting = setting
        self._flops_per_s = flops_per_s
        self._workers = workers
        self._key = key
        self._edge = edge
        self._per_byte_s = per_byte_s
        self._test_flops = test_samples * setting.cost_profile.forward_flops() if test_samples else 0.0
        self._merge: Merge | None = None  # at work

    def run(
        self, result: ServerStep, completions: Sequence[Completion], tests: bool = False
    ) -> Generator[simpy.Event, Any, float]:
        """Work on a merge, and charge it; return its seconds. Updates that come meanwhile wait in their inbox.

        `tests`: the new model is tested, too. Raises ConfigError that names the key if that is too much.
        """
        if self._flops_per_s == inf and not self._per_byte_s:
            return 0.0
        jobs = [each.job for each in completions if each.outcome in DELIVERED]
        updates_flops = averaging_flops(jobs, self._setting)
        own_flops = result.facts.get().server_flops + (self._test_flops if tests else 0.0)
        if self._per_byte_s:
            pairs = zip(jobs, updates_flops, strict=True)
            updates_s = [flops / self._flops_per_s + job.prices.up_bytes * self._per_byte_s for job, flops in pairs]
            workers_s = shared_work(updates_s, own_flops / self._flops_per_s, self._workers)
        else:
            flops = shared_work(updates_flops, own_flops, self._workers)
            workers_s = [each / self._flops_per_s for each in flops]
        merge_s = max(workers_s)
        check_merge_s(f"{self._key}.{'per_byte' if self._flops_per_s == inf else 'flops_per_s'}", merge_s)
        if merge_s > 0:
            self._merge = self._world.begin_merge(workers_s, self._edge)
            yield self._world.env.timeout(merge_s)
            if self._merge is not None:  # else the run has ended at this very instant
                self._world.end_merge(self._merge, through=True)
                self._merge = None
        return merge_s

    def stop(self) -> None:
        """Charge what has been done of the merge at work, as the run has ended."""
        if self._merge is not None:
            self._world.end_merge(self._merge, through=False)
            self._merge = None


def check_merge_s(key: str, merge_s: float) -> None:
    """Raise ConfigError that names the key if a merge takes too many seconds."""
    who = "the server" if key.startswith("server.") else "an edge server"
    check_amount(key, f"a merge of {who}", merge_s, "s")


def shared_work(updates: Sequence[float], own: float, workers: int) -> list[float]:
    """Return the FLOPs, or the seconds, of each worker in a merge, shape (workers,); all begin together, none pauses.

    Updates are taken in their order by the worker that is free first, of several the one of the lowest number; one is
    worked on by one worker. `own`: what the method does beside averaging, when all updates are through; the
    worker that was busy last goes on with it alone. So the merge takes as long as its longest worker.
    Source: Graham, "Bounds on Multiprocessing Timing Anomalies", SIAM J. Appl. Math. 17 (1969), list scheduling.
    """
    if workers == 1:
        return [own + sum(updates)]
    free = [(0.0, worker) for worker in range(workers)]
    heapify(free)
    for work in updates:
        done, worker = free[0]
        heapreplace(free, (done + work, worker))
    loads = [done for done, _ in sorted(free, key=lambda each: each[1])]
    last = loads.index(max(loads))
    loads[last] += own
    return loads


class ServerBuffer:
    """Jobs whose updates the server holds, by their rows in the jobs table."""

    def __init__(self, env: simpy.Environment, jobs: Table, failures: Failure | None) -> None:
        self._env = env
        self._table = jobs
        self._failures = failures
        self._rows: dict[int, tuple[int, float]] = {}  # job -> row, and when its update arrived
        self.losses = 0  # restarts of the server so far
        self._lost: set[int] = set()
        self._armed = False  # a timer for the next restart is set

    @property
    def first_row(self) -> int | None:
        """The first row of the jobs table that may still be amended, of those that there are; None: none of them."""
        return next((row for row, _ in self._rows.values()), None)  # updates come in the order of their rows

    def add(self, job: Job, row: int) -> None:
        """Take the update of a job into the buffer."""
        self._rows[job.id] = (row, self._env.now)
        self._arm()

    def release(self, completions: Sequence[Completion], outcome: str | None = None) -> None:
        """Take these out of the buffer, as they are aggregated, or discarded with another outcome."""
        for completion in completions:
            held = self._rows.pop(completion.job.id, None)
            if outcome is not None and held is not None:
                self._table.amend(held[0], "outcome", outcome)

    def with_losses(self, completions: list[Completion]) -> list[Completion]:
        """Return the completions with the outcome "lost" where the server lost the update since."""
        if not self._lost:
            return completions
        return [each._replace(outcome="lost") if each.job.id in self._lost else each for each in completions]

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
