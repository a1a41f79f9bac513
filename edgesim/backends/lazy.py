"""What the training backends share: assignments wait until they are collected; evaluation in fixed chunks."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

from edgesim.contracts import Assignment, Bundle, Result, Score
from edgesim.learning.trainer import ChunkScore


class LazyBackend(ABC):
    """Trains only what is collected, so a cancelled straggler costs no training."""

    trains: ClassVar[bool] = True

    def __init__(self) -> None:
        self._waiting: dict[int, Assignment] = {}

    def submit(self, assignment: Assignment) -> None:
        """Remember an assignment, untrained."""
        self._waiting[assignment.job] = assignment

    def collect(self, jobs: Sequence[int]) -> Sequence[Result]:
        """Train the assignments of these jobs, in any inner order; return them in the order asked."""
        return self._run([self._waiting.pop(job) for job in jobs])

    def cancel(self, jobs: Sequence[int]) -> None:
        """Forget the assignments of these jobs."""
        for job in jobs:
            del self._waiting[job]

    def evaluate(self, model: Bundle) -> Mapping[str, Score]:
        """Return mean loss and accuracy on the test set, summed in chunk order whoever computed the chunks."""
        chunks = self._score(model)
        samples = sum(c.samples for c in chunks)
        loss = math.fsum(c.loss for c in chunks) / samples
        return {"test": Score(loss, sum(c.correct for c in chunks) / samples, samples)}

    def close(self) -> None:
        """Release processes and memory. May be called twice."""
        self._waiting.clear()

    @abstractmethod
    def _run(self, assignments: Sequence[Assignment]) -> Sequence[Result]:
        """Train assignments; return their results in the same order."""

    @abstractmethod
    def _score(self, model: Bundle) -> Sequence[ChunkScore]:
        """Score a model on every chunk of the test set; return them in chunk order."""
