"""Abstract class of controllers: after each round they choose the work of the rounds to come."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from math import isfinite
from numbers import Integral, Real
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias

from edgesim.core.errors import ConfigError, ContractError
from edgesim.core.view import Setting

ChoiceField: TypeAlias = Literal["local_steps", "participants", "deadline_s", "frequency"]
ResultKind: TypeAlias = Literal["losses", "estimates"]


class Choice(NamedTuple):
    """Work of the rounds to come. None: as the scenario has it."""

    local_steps: int | None = None  # of local SGD in each job, at least 1
    participants: int | None = None  # devices that a round asks, at least 1
    deadline_s: float | None = None  # of a round, above 0
    frequency: float | None = None  # share of the highest frequency of each device, above 0 and at most 1
    state: Any = None  # whatever the controller keeps for its next call


class ClosedRound(NamedTuple):
    """Costs and results of a closed round. A loss or metric that no test or method gave is NaN or missing."""

    choice: Choice  # in force during the round
    seconds: float
    joules: float  # of all devices, idle power included
    idle_joules: float  # of these, idle and sleeping power
    device_joules: float  # by how much those of the device that has spent the most grew; 0 without such a budget
    bytes: int
    cost: float  # 0 without prices
    asked: int
    used: int
    late: int
    compute_s: float  # longest computation of a job that was used
    compute_j: float  # joules of the computations of jobs that were used, above idle power
    loss: float  # of the global model on the test set
    metrics: Mapping[str, float]  # of the aggregation that are single numbers


class RoundHistory(NamedTuple):
    """Knowledge of a controller. Budgets are by the names of their keys in the section `stop`."""

    setting: Setting  # as chosen last; `setting.training` has the local steps
    rounds: Sequence[ClosedRound]  # the newest last
    now_s: float
    spent: Mapping[str, float]  # of each budget of the scenario
    left: Mapping[str, float]  # of each budget of the scenario, at least 0
    state: Any  # of the newest choice; None: there is none


class Controller(ABC):
    """A rule that adapts local steps, participants, deadline or frequency: a frozen dataclass of pure functions."""

    sets: ClassVar[frozenset[ChoiceField]]  # fields of a Choice that it may set
    needs: ClassVar[frozenset[ResultKind]] = (
        frozenset()
    )  # results that each call waits for; others are not in the history

    def check(self, setting: Setting, budgets: Mapping[str, float]) -> None:
        """Raise ConfigError if the controller does not fit the setting or the budgets of the run."""

    @abstractmethod
    def adapt(self, history: RoundHistory) -> Choice:
        """Return the choice for the next rounds, before the first round and after each: a pure function."""


def checked(controller: Controller, found: Any, devices: int) -> Choice:
    """Return the choice that `adapt` returned. Raises ContractError unless it is a Choice of allowed values."""
    name = f"{type(controller).__name__}.adapt()"
    if not isinstance(found, Choice):
        raise ContractError(f"{name} must return a Choice, got {type(found).__name__}")
    for field, kind, most in (
        ("local_steps", Integral, None),
        ("participants", Integral, devices),
        ("deadline_s", Real, None),
        ("frequency", Real, 1),
    ):
        value = found._asdict()[field]
        if value is None:
            continue
        if field not in controller.sets:
            raise ContractError(f"{name} set {field}, which is not in its `sets`")
        least = "at least 1" if kind is Integral else "above 0"
        what = "a whole number" if kind is Integral else "a number"
        is_number = isinstance(value, kind) and not isinstance(value, bool) and isfinite(value)
        if not is_number or value <= 0 or (most is not None and value > most):
            bound = "" if most is None else f" and at most {most}"
            raise ContractError(f"{name} must set {field} to {what} {least}{bound}, got {value!r}")
    return found


def check_budgets(name: str, budgets: Mapping[str, float], known: Sequence[str]) -> None:
    """Raise ConfigError unless the run has a budget, and only budgets of which a controller knows the costs."""
    if not budgets:
        raise ConfigError(f"controller.name: {name} needs a budget: give stop one of {', '.join(known)}")
    for key in budgets:
        if key not in known:
            raise ConfigError(f"stop.{key}: {name} has budgets of {', '.join(known)} alone; leave it out")
