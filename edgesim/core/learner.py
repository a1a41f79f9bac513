"""The seam between protocols and learning: method, backend and state of a run, as the engine sees them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from edgesim.core.backend import Reports, Score
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
        """Hand jobs to the backend; nothing is trained yet."""

    def cancel(self, completions: Sequence[Completion]) -> None:
        """Forget jobs that did not deliver; train only what a device's memory depends on."""

    def on_exchange(self, completions: Sequence[Completion], view: View) -> None:
        """Show the method what an exchange delivered, if another one of the same round follows."""

    def aggregate(self, completions: Sequence[Completion], view: View) -> ServerStep:
        """Train the completions that delivered, and aggregate their updates."""

    def evaluate(self, model: ModelRef) -> Answer[Mapping[str, Score]]:
        """Score a global model."""

    def evaluate_personal(self) -> Answer[Mapping[int, Score]]:
        """Score the model that each device would use now on the device's own test set."""

    @property
    def rounds_ahead(self) -> int:
        """How many rounds a protocol may go on without the answers of earlier ones."""

    def save(self, settle: Callable[[], Any]) -> None:
        """Save the run, if it is time to; `settle` asks for all outstanding answers, which has to be before."""


class LearnerOfPeers(Learner, Protocol):
    """A learner of devices on their own clocks, as protocols with `own_clocks` see it."""

    def next_order(self, turn: Turn) -> Order:
        """Ask the method for the next job of a device."""

    def finish(self, completions: Sequence[Completion]) -> None:
        """Let jobs take effect now, in this order, on what devices keep."""


class Answer(Protocol[_Value]):
    """What a learner was asked for, which may still be computed. Answers are got in the order of the questions."""

    @property
    def is_ready(self) -> bool:
        """Whether nobody has to wait for it."""

    def get(self) -> _Value:
        """Return it. Raises what computing it raised."""


class Ready(Generic[_Ready]):
    """An answer that is there."""

    is_ready = True

    def __init__(self, value: _Ready) -> None:
        self._value = value

    def get(self) -> _Ready:
        """Return it."""
        return self._value


NO_REPORTS = Reports.of({})


class AggregationFacts(NamedTuple):
    """What is known of an aggregation without its model: whether it made one, and what it says of itself."""

    made_model: bool = True
    server_flops: float = 0.0
    metrics: Mapping[str, Any] = {}


class ServerStep(NamedTuple):
    """The global model after a merge; the server work it took, and what the method wants to be seen."""

    model: ModelRef
    facts: Answer[AggregationFacts] = Ready(AggregationFacts())
    reports: Answer[Reports] = Ready(NO_REPORTS)  # of the devices whose updates were aggregated, if anybody asks
