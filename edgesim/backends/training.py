"""What the training backends share: one thread a process, and evaluation in fixed chunks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import ClassVar

from edgesim.contracts import Assignment, Bundle, Result, Score
from edgesim.learning.device import one_thread
from edgesim.learning.trainer import ChunkScore, total


class TrainingBackend(ABC):
    """Carries out assignments and scores models.

    Until it is closed this process computes on one thread, merges too: sums must not depend on how many there are.
    """

    trains: ClassVar[bool] = True

    def __init__(self) -> None:
        self._open = ExitStack()
        self._open.enter_context(one_thread())

    @abstractmethod
    def train(self, assignments: Sequence[Assignment]) -> Sequence[Result]:
        """Carry out assignments, in any inner order; return their results in the order given."""

    def evaluate(self, model: Bundle) -> Mapping[str, Score]:
        """Return mean loss and accuracy on the test set, summed in chunk order whoever computed the chunks."""
        return {"test": total(self._score(model))}

    @abstractmethod
    def evaluate_personal(self, models: Mapping[int, Bundle]) -> Mapping[int, Score]:
        """Return the score of each device's model on the device's own test set."""

    def close(self) -> None:
        """Release processes and memory, and give this process its threads back. May be called twice."""
        self._open.close()

    @abstractmethod
    def _score(self, model: Bundle) -> Sequence[ChunkScore]:
        """Score a model on every chunk of the test set; return them in chunk order."""
