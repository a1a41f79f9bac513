"""The seam of backends: what local training depends on, what it gives, and who carries it out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol, TypeAlias, TypeGuard

import numpy as np

from edgesim.core.rng import Key
from edgesim.core.task import Task
from edgesim.core.update import ModelState, Update


class Score(NamedTuple):
    """Mean loss and accuracy over `samples` test samples, and the metrics of the objective by name.

    `accuracy`: NaN where the objective has none. `merit`: what the best model is chosen by, more is better; None: the
    accuracy.
    """

    loss: float
    accuracy: float
    samples: int
    metrics: Mapping[str, float] = {}
    merit: float | None = None

    @property
    def rank(self) -> float:
        """The number by which models are compared, more is better."""
        return self.accuracy if self.merit is None else self.merit


class Assignment(NamedTuple):
    """All that local training depends on."""

    job: int
    device: int
    task: Task
    key: Key
    global_model: ModelState  # as the device received it; among peers the model that all started from
    device_state: ModelState | None  # what the device kept
    received: Sequence[Update] = ()  # of peers
    steps: int | None = None  # SGD steps after which the device stops; None: all

    def left_after(self, steps: int) -> int | None:
        """Return how many SGD steps the device still takes after so many; None: all that remain."""
        return None if self.steps is None else max(0, self.steps - steps)


class Report(NamedTuple):
    """How a device's training went, over the samples that it met, each as often as it was met."""

    loss: float  # mean loss, of the weights as they were when the sample was met
    square_loss: float  # mean of its square, sample by sample
    accuracy: float  # share of them that were hits; NaN: the objective has none
    norm: float  # of how far training moved the parameters, as one vector


REPORT_NUMBERS = Report._fields
REPORT_BYTES = 4 * len(REPORT_NUMBERS)  # on the link, beside the update


class Reports(NamedTuple):
    """Reports of several devices: arrays of shape (k,), named as those of a report."""

    device: np.ndarray  # int64, distinct
    loss: np.ndarray
    square_loss: np.ndarray
    accuracy: np.ndarray
    norm: np.ndarray

    @classmethod
    def of(cls, reports: Mapping[int, Report]) -> Reports:
        """Return the reports of devices."""
        numbers = np.array(list(reports.values()), dtype=np.float64).reshape(len(reports), len(REPORT_NUMBERS))
        return cls(np.array(list(reports), dtype=np.int64), *numbers.T.copy())


class Result(NamedTuple):
    """What local training gave."""

    body: ModelState  # collections and layers of the task's `up` payload
    new_device_state: ModelState | None  # None: the old one stays
    statistics: Mapping[str, Any]
    steps: int
    own_model: ModelState | None = None  # the device's model, where its body is something else
    report: Report | None = None  # None: nobody asked for one, or nothing was trained


class Backend(Protocol):
    """Trains what it is given; the learner asks for nothing that is not needed."""

    trains: ClassVar[bool]  # False: timing only, no tensors exist

    def train(self, assignments: Sequence[Assignment]) -> Sequence[Result]:
        """Carry out assignments, in any inner order; return their results in the order given."""

    def evaluate(self, model: ModelState) -> Mapping[str, Score]:
        """Return the scores of a global model by split name."""

    def evaluate_personal(self, models: Mapping[int, ModelState]) -> Mapping[int, Score]:
        """Return the score of each device's model on the device's own test set."""

    def close(self) -> None:
        """Release processes and memory. May be called twice."""


class Training(NamedTuple):
    """A piece of work: an assignment. `turn`: what has a lower one is needed earlier."""

    assignment: Assignment
    turn: int = 0


class Scoring(NamedTuple):
    """A piece of work: the scores of a global model by split name."""

    model: ModelState


class PersonalScoring(NamedTuple):
    """A piece of work: the score of each device's model on the device's own test set."""

    models: Mapping[int, ModelState]


Work: TypeAlias = Training | Scoring | PersonalScoring


class FuturesBackend(Backend, Protocol):
    """A backend that works on while its caller goes on.

    `rounds_ahead`: of how many rounds at most the answers may be outstanding.
    """

    rounds_ahead: int

    def submit(self, number: int, work: Work) -> None:
        """Take a piece of work; `number`: what it is called by, higher for what was wanted later."""

    def collect(self, wait: bool) -> Sequence[tuple[int, Any]]:
        """Return what is done by now, by number: what the work gives, or the error that it raised.

        `wait`: until there is something. Raises EdgesimError if it can do no more, such as when a process has died.
        """


def works_ahead(backend: Backend) -> TypeGuard[FuturesBackend]:
    """Return whether a backend works on while its caller goes on."""
    return hasattr(backend, "submit")
