"""Trains devices together, as one stacked call: the fastest way on a GPU. Equal to serial but for rounding."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from edgesim.core.backend import Assignment, Result, Score
from edgesim.core.numbers import Count
from edgesim.core.update import ModelState
from edgesim.learning.train.cohort import Cohort
from edgesim.learning.train.torch_settings import check_device
from edgesim.learning.train.trainer import Trainer


class CohortBackend:
    """A cohort in this process."""

    trains: ClassVar[bool] = True

    def __init__(self, cohort: Cohort) -> None:
        self._cohort = cohort

    @property
    def alone(self) -> Sequence[str]:
        """Why jobs were trained one by one so far, a line for each reason."""
        return [f"backend.name: cohort trains one by one, as it cannot be stacked: {why}" for why in self._cohort.alone]

    def train(self, assignments: Sequence[Assignment]) -> Sequence[Result]:
        """Train assignments together where that can be."""
        return self._cohort.train(assignments)

    def evaluate(self, model: ModelState) -> Mapping[str, Score]:
        """Return mean loss and accuracy on the test set, summed in the order of its chunks."""
        return {"test": self._cohort.total(self._cohort.score(model))}

    def evaluate_personal(self, models: Mapping[int, ModelState]) -> Mapping[int, Score]:
        """Score models, several at a time."""
        return self._cohort.score_personal(models)

    def close(self) -> None:
        """End the threads."""
        self._cohort.close()


@dataclass(frozen=True, kw_only=True)
class CohortTraining:
    """Train devices together in stacked calls, on CPU or GPU; equal to serial within rounding, not to the last bit."""

    device: str = "cpu"  # or "cuda", "cuda:0", ... where torch has one
    size: Count = 100  # devices trained in one call at most; fewer where so many would not fit into memory
    threads: Count | None = None  # of a CPU, that share the devices out; None: as many as there are cores
    trains: ClassVar[bool] = True
    networks: ClassVar[bool] = False  # it stacks devices of one network

    def check(self) -> None:
        """Raise ConfigError if torch has no such device."""
        check_device(self.device)

    @property
    def _lanes(self) -> int:
        on_cpu = self.device == "cpu"
        return (self.threads or os.cpu_count() or 1) if on_cpu else 1

    @property
    def rounding(self) -> str:
        """What last bits of its values follow from: runs that differ in it share no answers."""
        return f"cohort on {self.device}, {self.size} in a call, {self._lanes} threads"

    def open(self, make_trainer: Callable[[str], Trainer]) -> CohortBackend:
        """Return the backend. Raises ConfigError if torch has no such device."""
        self.check()
        return CohortBackend(Cohort(make_trainer(self.device), self.size, self._lanes))


PLUGINS = {"cohort": CohortTraining}
