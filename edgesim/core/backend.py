"""Abstract classes of backends, the inputs of local training and its results."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, TypeAlias

import numpy as np

from edgesim.core.rng import Key
from edgesim.core.task import Task
from edgesim.core.update import ModelState, Update

CHUNK = 100  # test samples evaluated at once: fits the cache. Fixed, because sums must be equal on every backend


class Score(NamedTuple):
    """Mean loss and accuracy over `samples` test samples, and the metrics of the objective by name.

    `accuracy`: NaN where the objective has none. `merit`: number by which the best model is chosen, more is better.
    None: the accuracy.
    """

    loss: float
    accuracy: float
    samples: int
    metrics: Mapping[str, float] = {}
    merit: float | None = None
    has_loss: bool = True  # False: an app names none, so that NaN tells nothing

    @property
    def rank(self) -> float:
        """Number by which models are compared, more is better."""
        return self.accuracy if self.merit is None else self.merit


class Assignment(NamedTuple):
    """All inputs of local training."""

    job: int
    device: int
    task: Task
    key: Key
    global_model: ModelState  # as the device received it; among peers the first model, which all start from
    device_state: ModelState | None  # state that the device kept
    received: Sequence[Update] = ()  # updates of peers
    steps: int | None = None  # SGD steps after which the device stops; None: all
    samples: int | None = None  # first samples of the device, with which it trains; None: all

    def left_after(self, steps: int) -> int | None:
        """Return the number of SGD steps that remain after `steps` of them. None: no limit."""
        return None if self.steps is None else max(0, self.steps - steps)


class Report(NamedTuple):
    """Training statistics of a device over the samples that it used, each counted as often as it was used."""

    loss: float  # mean loss, each sample with the weights at the time of its use
    square_loss: float  # mean of the squared loss of each sample
    accuracy: float  # share of hits; NaN: the objective has none
    norm: float  # norm of the change of all parameters as one vector


REPORT_NUMBERS = Report._fields
REPORT_BYTES = 4 * len(REPORT_NUMBERS)  # on the link, beside the update


class Reports(NamedTuple):
    """Reports of several devices: arrays of shape (k,), named like the fields of Report."""

    device: np.ndarray  # int64, distinct
    loss: np.ndarray
    square_loss: np.ndarray
    accuracy: np.ndarray
    norm: np.ndarray

    @classmethod
    def of(cls, reports: Mapping[int, Report]) -> Reports:
        """Return the reports by device as arrays."""
        numbers = np.array(list(reports.values()), dtype=np.float64).reshape(len(reports), len(REPORT_NUMBERS))
        return cls(np.array(list(reports), dtype=np.int64), *numbers.T.copy())


class Result(NamedTuple):
    """Result of local training."""

    body: ModelState  # collections and layers of the task's `up` payload
    new_device_state: ModelState | None  # None: the device keeps its old state
    statistics: Mapping[str, Any]
    steps: int
    own_model: ModelState | None = None  # the device's model, where the body is something else
    report: Report | None = None  # None: not requested, or nothing was trained


Classes: TypeAlias = tuple[int, ...] | None  # ascending; None: all


class Backend(ABC):
    """Carries out local training and evaluation. The learner requests only results that are needed."""

    trains: ClassVar[bool] = True  # False: timing only, no tensors exist

    @property
    def warnings(self) -> Sequence[str]:
        """Warnings about the jobs so far, a line each, such as why they were trained one by one."""
        return ()

    @abstractmethod
    def train(self, assignments: Sequence[Assignment]) -> Sequence[Result]:
        """Carry out assignments in any order, and return their results in the order of `assignments`."""

    @abstractmethod
    def evaluate(self, model: ModelState, classes: Classes = None) -> Mapping[str, Score]:
        """Return the scores of a global model by split name, on test samples of these classes."""

    @abstractmethod
    def evaluate_personal(self, models: Mapping[int, ModelState]) -> Mapping[int, Score]:
        """Return the score of each device's model on the device's own test set."""

    @abstractmethod
    def close(self) -> None:
        """Release processes and memory. May be called twice."""


class LocalTraining(NamedTuple):
    """A piece of work: an assignment. `turn`: work with a lower turn is needed earlier."""

    assignment: Assignment
    turn: int = 0


class Scoring(NamedTuple):
    """A piece of work: the scores of a global model by split name, on test samples of these classes."""

    model: ModelState
    classes: Classes = None


class PersonalScoring(NamedTuple):
    """A piece of work: the score of each device's model on the device's own test set."""

    models: Mapping[int, ModelState]


Work: TypeAlias = LocalTraining | Scoring | PersonalScoring


class FuturesBackend(Backend):
    """A backend that works while its caller continues.

    `rounds_ahead`: largest number of rounds whose results may be outstanding.
    """

    rounds_ahead: int

    @abstractmethod
    def submit(self, number: int, work: Work) -> None:
        """Take a piece of work. `number`: its identifier, higher for later submissions."""

    @abstractmethod
    def collect(self, wait: bool) -> Sequence[tuple[int, Any]]:
        """Return the finished work by number: each result, or the error that the work raised.

        `wait`: block until at least one piece is finished. Raises EdgesimError if the backend cannot go on, such as
        when a process has died.
        """


class BackendPart(ABC):
    """A backend as a scenario names it: a frozen dataclass."""

    trains: ClassVar[bool] = True  # False: timing only, no tensors exist
    networks: ClassVar[bool] = True  # False: it trains devices of one network alone
    stacks: ClassVar[bool] = False  # True: it trains several jobs in one call
    runs_apps: ClassVar[bool] = False  # True: in this process or in `processes` of this machine
    device: str = "cpu"  # torch device on which it trains

    @property
    def processes(self) -> int:
        """Number of training processes beside this one; 0: this process trains."""
        return 0

    @property
    def rounding(self) -> str:
        """Facts that decide the last bits of results: runs that differ in them share no cached answers."""
        return ""

    def check(self) -> None:
        """Raise ConfigError if this machine cannot run the backend."""

    def prepare(self) -> None:
        """Begin slow preparations, such as starting processes. Called before the trainer exists."""

    def alone(self) -> dict[str, Any] | None:
        """Return the table of a backend that gives the same results in this process only. None: the backend itself."""
        return None

    @abstractmethod
    def open(self, make_trainer: Callable[[str], Any]) -> Backend:
        """Return the opened backend. `make_trainer`: gives a trainer whose network is on a torch device."""
