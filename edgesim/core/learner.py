"""Interface between protocols and learning: method, backend and state of a run, as the engine sees them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from edgesim.core.backend import Classes, Reports, Score
from edgesim.core.job import Completion, Job
from edgesim.core.task import Order, Plan
from edgesim.core.update import ModelRef
from edgesim.core.view import Turn, View

_Value = TypeVar("_Value", covariant=True)
_Ready = TypeVar("_Ready")


class Learner(Protocol):
    """Method, backend and state of a run, as the protocols see them."""

    trains: bool

    def plan(self, view: View) -> Plan:
        """Ask the method for the orders of the next exchange."""

    def start(self, jobs: Sequence[Job]) -> None:
        """Hand jobs to the backend. Nothing is trained yet."""

    def cancel(self, completions: Sequence[Completion]) -> None:
        """Forget jobs that did not deliver. Train them only where the kept state of a device depends on them."""

    def on_exchange(self, completions: Sequence[Completion], view: View) -> None:
        """Show the method the updates of an exchange that another exchange of the same round follows."""

    def aggregate(self, completions: Sequence[Completion], view: View) -> ServerStep:
        """Train the completions that delivered, and aggregate their updates."""

    def evaluate(self, model: ModelRef, classes: Classes = None) -> Answer[Mapping[str, Score]]:
        """Score a global model on test samples of these classes."""

    def evaluate_personal(self) -> Answer[Mapping[int, Score]]:
        """Score the model that each device would use now on the device's own test set."""

    @property
    def rounds_ahead(self) -> int:
        """Number of rounds that a protocol may run ahead of the results of earlier rounds."""

    def save(self, settle: Callable[[], Any]) -> None:
        """Save the run if a checkpoint is due. `settle` waits for all outstanding results before the save."""


class LearnerOfPeers(Learner, Protocol):
    """A learner of devices on their own clocks, as protocols with `own_clocks` see it."""

    def next_order(self, turn: Turn) -> Order:
        """Ask the method for the next job of a device."""

    def finish(self, completions: Sequence[Completion]) -> None:
        """Apply jobs now, in this order, to the kept states of the devices."""


class Answer(Protocol[_Value]):
    """A requested result, which may still be in computation. Results are read in the order of the requests."""

    @property
    def is_ready(self) -> bool:
        """True if `get` returns at once."""

    def get(self) -> _Value:
        """Return the result. Raises the error that its computation raised."""


class Ready(Generic[_Ready]):
    """A result that is already known."""

    is_ready = True

    def __init__(self, value: _Ready) -> None:
        self._value = value

    def get(self) -> _Ready:
        """Return the result."""
        return self._value


NO_REPORTS = Reports.of({})


class AggregationFacts(NamedTuple):
    """Facts of an aggregation without the model: whether it made one, its server work and its metrics."""

    made_model: bool = True
    server_flops: float = 0.0
    metrics: Mapping[str, Any] = {}


class ServerStep(NamedTuple):
    """Global model after a merge, with the server work and the metrics of the merge."""

    model: ModelRef
    facts: Answer[AggregationFacts] = Ready(AggregationFacts())
    reports: Answer[Reports] = Ready(NO_REPORTS)  # of the devices whose updates were aggregated, if requested
