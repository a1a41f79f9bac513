"""Train in this process, one job after another."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from edgesim.core.backend import Assignment, Backend, Classes, Result, Score
from edgesim.core.update import ModelState
from edgesim.execution.backends.compiling import Compiling, told

if TYPE_CHECKING:
    from edgesim.learning.train.trainer import Trainer


class SerialBackend(Backend):
    """One trainer in this process."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer

    @property
    def warnings(self) -> Sequence[str]:
        """Reasons why steps were not compiled so far, one line each."""
        return told(self._trainer)

    def train(self, assignments: Sequence[Assignment]) -> Sequence[Result]:
        """Train one assignment after another."""
        return [self._trainer.run(a) for a in assignments]

    def evaluate(self, model: ModelState, classes: Classes = None) -> Mapping[str, Score]:
        """Return mean loss and accuracy on the test set, chunk after chunk."""
        return self._trainer.scores(self._trainer.score_chunks(model, range(self._trainer.chunks()), classes))

    def evaluate_personal(self, models: Mapping[int, ModelState]) -> Mapping[int, Score]:
        """Score one model after another."""
        return {device: self._trainer.score_personal(device, model) for device, model in models.items()}

    def close(self) -> None:
        """Do nothing: there are no other processes."""


@dataclass(frozen=True, kw_only=True)
class Serial(Compiling):
    """Train in this process, one job after another."""

    runs_apps: ClassVar[bool] = True
    device: str = "cpu"  # or "cuda", "cuda:0", ... where torch has one

    def open(self, make_trainer: Callable[[str], Trainer]) -> SerialBackend:
        """Return the backend. Raises ConfigError as `check` does."""
        self.check()
        return SerialBackend(self.compiling(make_trainer(self.device)))


PLUGINS = {"serial": Serial}
