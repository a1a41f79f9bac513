"""Keys of a scenario about one training: how its numbers are written, when it is tested, and when it ends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeAlias

from annotated_types import Gt, Lt, MinLen
from pydantic import AfterValidator, BeforeValidator, FiniteFloat, GetCoreSchemaHandler, GetJsonSchemaHandler, Strict
from pydantic import model_validator as validator
from pydantic_core import CoreSchema, core_schema

from edgesim.config.money import Payment
from edgesim.config.plugin_fields import read_dataclass
from edgesim.config.strict_table import StrictTable
from edgesim.config.units import PositiveJoules, Seconds, refusal
from edgesim.core.encoding import FLOAT32, NAMED_BITS, Encoding
from edgesim.core.local_sgd import Training
from edgesim.core.metrics import ACCURACY
from edgesim.core.numbers import Count, PositiveShare


class _EncodingForm:
    """Marks an Encoding that a scenario may write as the name of its values, if that says all."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(self.read, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"anyOf": [{"enum": list(NAMED_BITS)}, handler(schema)]}

    @staticmethod
    def read(given: Any) -> Encoding:
        """Return the encoding that a table or a bare name stands for. Raises ValidationError at the key at fault."""
        if isinstance(given, Encoding):
            return given
        table = {"values": given} if isinstance(given, str) else given
        value: Encoding = read_dataclass(Encoding, table)[0]
        return value


class Encodings(StrictTable):
    """How payloads are written that their method leaves to the scenario: `up` from devices, `down` from the server."""

    up: Annotated[Encoding, _EncodingForm()] = FLOAT32
    down: Annotated[Encoding, _EncodingForm()] = FLOAT32


def _ascending(targets: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(sorted(set(targets)))


class _OrByMetric:
    """Marks a key that may also be a table, of metrics and their values."""

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        number = {"type": "number"}
        values = {"anyOf": [number, {"type": "array", "items": number}]}
        return {"anyOf": [handler(schema), {"type": "object", "additionalProperties": values}]}


def _one_or_more(given: Any) -> Any:
    return given if isinstance(given, list | tuple) else [given]


_Values: TypeAlias = Annotated[
    tuple[FiniteFloat, ...], Strict(False), MinLen(1), BeforeValidator(_one_or_more), AfterValidator(_ascending)
]


class Evaluation(StrictTable):
    """Test the global model every `every` rounds; `targets` are accuracies whose first reach is reported.

    `last`: and after each of so many last rounds, where `stop.rounds` says which these are; at least after the last.
    `personal`: also test what each device would use itself, on a test set with the class mix of its training data.
    `metrics`: of the objective, to write beside loss and accuracy; unset: its usual ones. Targets of metrics are a
    table, `targets = { perplexity = 3.0 }`.
    """

    every: Count = 1
    last: Count = 1
    personal: bool = False
    metrics: Annotated[tuple[str, ...], Strict(False)] | None = None
    targets: Annotated[
        tuple[Annotated[float, Gt(0), Lt(1)], ...], Strict(False), AfterValidator(_ascending), _OrByMetric()
    ] = ()
    metric_targets: dict[str, _Values] = {}  # those of `targets` that are no accuracies, by metric

    @validator(mode="before")
    @classmethod
    def _by_metric(cls, given: Any) -> Any:
        """Keep accuracies apart from other targets, where `targets` is a table."""
        targets = given.get("targets") if isinstance(given, Mapping) else None
        if not isinstance(targets, Mapping):
            return given
        others = {name: value for name, value in targets.items() if name != ACCURACY}
        own = _one_or_more(targets[ACCURACY]) if ACCURACY in targets else ()
        return {**given, "targets": own, "metric_targets": {**given.get("metric_targets", {}), **others}}

    @property
    def targets_by_metric(self) -> dict[str, tuple[float, ...]]:
        """All targets by metric, accuracies among them."""
        return {**({ACCURACY: self.targets} if self.targets else {}), **self.metric_targets}


class Milestone(StrictTable):
    """A test accuracy that the global model must have had by a simulated time, else the run ends then."""

    sim_time: Seconds  # when it is looked at
    accuracy: PositiveShare  # the least that the best evaluation so far must have


class Stop(StrictTable):
    """A run ends when the first of these is reached: rounds, test accuracy or metric, simulated seconds, joules, money.

    It also ends at a milestone that it has missed; they need one of the others beside them.
    """

    rounds: Count | None = None  # so many rounds
    accuracy: PositiveShare | None = None  # test accuracy of the global model, a share
    metric: dict[str, FiniteFloat] | None = None  # metrics of the objective by name, such as { perplexity = 3.0 }
    sim_time: Seconds | None = None  # simulated time
    energy: PositiveJoules | None = None  # joules of the devices, idle power included
    cost: Payment | None = None  # what everything has cost, by the section prices, such as "5 EUR"
    milestones: Annotated[tuple[Milestone, ...], Strict(False)] = ()  # accuracies by simulated times

    @validator(mode="after")
    def _at_least_one(self) -> Stop:
        ends = [name for name in type(self).model_fields if name != "milestones"]
        if all(getattr(self, name) is None for name in ends):
            raise refusal(f"needs at least one of {', '.join(ends)}")
        return self


def _read_training(given: Any) -> Training:
    value: Training = given if isinstance(given, Training) else read_dataclass(Training, given)[0]
    return value


LocalTraining: TypeAlias = Annotated[Training, BeforeValidator(_read_training)]
