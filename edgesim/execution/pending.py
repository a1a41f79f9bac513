"""Jobs that may still be used, and the order in which they build on each other."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

from edgesim.core.job import Job
from edgesim.core.update import ModelRef
from edgesim.execution.graph import Node, levels


class Pending:
    """Jobs in flight or delivered but not yet merged.

    A job builds on the messages that it received and, if devices keep states (`keeps`), on its device's job before it.
    """

    def __init__(self, keeps: bool) -> None:
        self._keeps = keeps
        self._jobs: dict[int, Job] = {}
        self.results: dict[int, Node] = {}  # of jobs that are certainly used, by id
        self._chains: dict[int, list[int]] = {}  # device -> ids of its jobs, ascending; empty if devices keep nothing

    def __len__(self) -> int:
        return len(self._jobs)

    def add(self, job: Job) -> None:
        """Add a job; jobs of a device must be added in the order of their ids."""
        self._jobs[job.id] = job
        if self._keeps:
            self._chains.setdefault(job.device, []).append(job.id)

    def drop(self, job: Job) -> None:
        """Remove a job that was merged or never will be."""
        del self._jobs[job.id]
        self.results.pop(job.id, None)
        if self._keeps:
            chain = self._chains[job.device]
            chain.remove(job.id)  # the job after it then builds on the job before it
            if not chain:
                del self._chains[job.device]

    def finish(self, job: Job, result: Node) -> None:
        """Store the node of a job's training result."""
        self.results[job.id] = result

    def result(self, job: Job) -> Node:
        """Return the node of a job's training result. Raises KeyError if it has none yet."""
        return self.results[job.id]

    def received(self) -> set[ModelRef]:
        """Return the messages from which jobs start."""
        return {ref for job in self._jobs.values() for ref in job.received}

    def batches(self, jobs: Sequence[Job]) -> Iterator[list[Job]]:
        """Yield lists of jobs, together with the jobs without a node on which they build, in order of dependence.

        Jobs of one list do not build on each other.
        """

        def unsettled_below(id_: int) -> list[int]:
            job = self._jobs[id_]
            chain = self._chains.get(job.device, [])
            place = bisect_left(chain, id_)
            candidates = [
                *(ref.version for ref in job.received),
                *chain[place - 1 : place],
            ]  # the first has none before
            return [other for other in candidates if other in self._jobs and other not in self.results]

        wanted = [job.id for job in jobs if job.id not in self.results]
        for level in levels(wanted, unsettled_below):
            yield [self._jobs[id_] for id_ in sorted(level)]
