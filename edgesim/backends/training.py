"""What the training backends share: evaluation in fixed chunks."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

from edgesim.contracts import Assignment, Bundle, Result, Score
from edgesim.learning.trainer import ChunkScore


class TrainingBackend(ABC):
    """Carries out assignments and scores models."""

    trains: ClassVar[bool] = True

    @abstractmethod
    def train(self, assignments: Sequence[Assignment]) -> Sequence[Result]:
        """Carry out assignments, in any inner order; return their results in the order given."""

    def evaluate(self, model: Bundle) -> Mapping[str, Score]:
        """Return mean loss and accuracy on the test set, summed in chunk order whoever computed the chunks."""
        chunks = self._score(model)
        samples = sum(c.samples for c in chunks)
        loss = math.fsum(c.loss for c in chunks) / samples
        return {"test": Score(loss, sum(c.correct for c in chunks) / samples, samples)}

    @abstractmethod
    def evaluate_personal(self, models: Mapping[int, Bundle]) -> Mapping[int, Score]:
        """Return the score of each device's model on the device's own test set."""

    @abstractmethod
    def close(self) -> None:
        """Release processes and memory. May be called twice."""

    @abstractmethod
    def _score(self, model: Bundle) -> Sequence[ChunkScore]:
        """Score a model on every chunk of the test set; return them in chunk order."""
