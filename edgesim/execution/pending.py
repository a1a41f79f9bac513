"""Jobs of which it is not certain yet whether they count, and on which others they build once they do."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

from edgesim.core.job import Job
from edgesim.core.update import ModelRef
from edgesim.execution.graph import Node, levels


class Pending:
    """Jobs in flight or delivered but not yet merged.

    A job builds on the messages that it received and, if devices keep something (`keeps`), on the job that its device
    did before.
    """

    def __init__(self, keeps: bool) -> None:
        self._keeps = keeps
        self._jobs: dict[int, Job] = {}
        self.results: dict[int, Node] = {}  # of the jobs that are certain, by id
        self._chains: dict[int, list[int]] = {}  # device -> its jobs, ascending; empty if devices keep nothing

    def __len__(self) -> int:
        return len(self._jobs)

    def add(self, job: Job) -> None:
        """Remember a job; those of a device are added in the order of their ids."""
        self._jobs[job.id] = job
        if self._keeps:
            self._chains.setdefault(job.device, []).append(job.id)

    def drop(self, job: Job) -> None:
        """Forget a job: it was merged, or it will never be."""
        del self._jobs[job.id]
        self.results.pop(job.id, None)
        if self._keeps:
            chain = self._chains[job.device]
            chain.remove(job.id)  # whoever came after it builds on who came before it
            if not chain:
                del self._chains[job.device]

    def finish(self, job: Job, result: Node) -> None:
        """Remember the node of what training a job gives."""
        self.results[job.id] = result

    def result(self, job: Job) -> Node:
        """Return the node of what training a job gives. Raises KeyError if it has none yet."""
        return self.results[job.id]

    def received(self) -> set[ModelRef]:
        """Return the messages that jobs start from."""
        return {ref for job in self._jobs.values() for ref in job.received}

    def batches(self, jobs: Sequence[Job]) -> Iterator[list[Job]]:
        """Yield jobs, and those without a node that they build on, in order: lists in which none builds on another."""
        wanted = [job.id for job in jobs if job.id not in self.results]
        for level in levels(wanted, self._unsettled_below):
            yield [self._jobs[id_] for id_ in sorted(level)]

    def _unsettled_below(self, id_: int) -> list[int]:
        job = self._jobs[id_]
        chain = self._chains.get(job.device, [])
        place = bisect_left(chain, id_)
        candidates = [*(ref.version for ref in job.received), *chain[place - 1 : place]]  # the first has none before
        return [other for other in candidates if other in self._jobs and other not in self.results]
