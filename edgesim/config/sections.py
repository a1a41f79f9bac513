"""Sections of a scenario: training, edge servers, and sessions, which override keys of their scenario."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Annotated, Any, Literal, Self, TypeAlias

from annotated_types import Ge, Gt, Le, Lt, MinLen
from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    FiniteFloat,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    Strict,
    StringConstraints,
)
from pydantic import model_validator as validator
from pydantic_core import CoreSchema, core_schema

from edgesim.config.plugin_fields import Chosen, PartOf, check_keys, read_dataclass, refusal_at
from edgesim.config.plugins import APP
from edgesim.config.prices import Payment
from edgesim.config.strict_table import StrictTable
from edgesim.config.toml_file import merged
from edgesim.config.units import (
    BitsPerSecondOrInf,
    Delay,
    FlopsPerSecondOrInf,
    JoulesPerBit,
    Memory,
    PositiveJoules,
    Seconds,
    Watts,
    refusal,
)
from edgesim.core.encoding import FLOAT32, NAMED_BITS, Encoding
from edgesim.core.errors import ConfigError
from edgesim.core.job import SESSION_NAME
from edgesim.core.limits import Count, PositiveShare, Share
from edgesim.core.local_sgd import Training
from edgesim.core.metrics import ACCURACY
from edgesim.files.reading import quoted

REPLACED_BY_APP = ("partition", "model", "method", "protocol")  # sections of which an app has its own
LONGEST_APP_S = 1e9  # simulated seconds after which an app without a stop rule ends


class _EncodingForm:
    """Marks an Encoding that a scenario may write as the name of its values alone."""

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
    """Encoding of payloads where the method leaves it to the scenario: `up` from devices, `down` from the server.

    `base`: how devices get the frozen parameters of their network, which are never sent back and keep their types.
    "preloaded": devices have them from the start. "once": the first download of each device brings them too.
    """

    up: Annotated[Encoding, _EncodingForm()] = FLOAT32
    down: Annotated[Encoding, _EncodingForm()] = FLOAT32
    base: Literal["preloaded", "once"] = "preloaded"


def _ascending(targets: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(sorted(set(targets)))


class _OrByMetric:
    """Marks a key that may also be a table of metrics and their values."""

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
    """Tests of the global model: their rounds, their data, their metrics and the targets to reach.

    `every`: number of rounds from one test to the next. `targets`: accuracies, for each of which the run reports when
    the model first reached it. `last`: number of final rounds, at least the very last, after each of which the model is
    also tested, where `stop.rounds` tells which rounds these are. `personal`: also test the model that each device
    would use itself, on a test set with the class mix of its training data. `metrics`: metrics of the objective to
    write beside loss and accuracy, unset for its usual metrics. Targets of metrics are a table, such as
    `targets = { perplexity = 3.0 }`. `on_devices`: number of devices (an integer) or their share (such as 0.5 or 1.0)
    that test the model on their own samples after each such test, before the next round. They take seconds, bytes and
    joules for it, and are drawn among those that are idle. `current`: also test on the classes alone of which some
    device has had a sample by then (split "current"), where `arrival.class_every` lets classes appear one by one.
    """

    every: Count = 1
    last: Count = 1
    personal: bool = False
    current: bool = False
    on_devices: Count | PositiveShare | None = None
    metrics: Annotated[tuple[str, ...], Strict(False)] | None = None
    targets: Annotated[
        tuple[Annotated[float, Gt(0), Lt(1)], ...], Strict(False), AfterValidator(_ascending), _OrByMetric()
    ] = ()
    metric_targets: dict[str, _Values] = {}  # the values of `targets` for metrics other than accuracy, by metric

    @validator(mode="before")
    @classmethod
    def _by_metric(cls, given: Any) -> Any:
        """Separate accuracies from other targets, where `targets` is a table."""
        targets = given.get("targets") if isinstance(given, Mapping) else None
        if not isinstance(targets, Mapping):
            return given
        others = {name: value for name, value in targets.items() if name != ACCURACY}
        own = _one_or_more(targets[ACCURACY]) if ACCURACY in targets else ()
        return {**given, "targets": own, "metric_targets": {**given.get("metric_targets", {}), **others}}

    @property
    def targets_by_metric(self) -> dict[str, tuple[float, ...]]:
        """All targets by metric, including accuracies."""
        return {**({ACCURACY: self.targets} if self.targets else {}), **self.metric_targets}


class Milestone(StrictTable):
    """A test accuracy that the global model must have reached by a simulated time, else the run ends at that time."""

    sim_time: Seconds  # simulated time of the check
    accuracy: PositiveShare  # least accuracy that the best evaluation so far must have


class Stop(StrictTable):
    """Limits of a run, which ends when the first of them is reached: what it must achieve, and its budgets.

    Budgets are simulated seconds, joules, money and bytes. A controller sees what is left of them. Seconds are looked
    at all the time, the other budgets after each round. A run also ends at a missed milestone. Milestones need one of
    the other limits beside them.
    """

    rounds: Count | None = None  # number of rounds
    accuracy: PositiveShare | None = None  # test accuracy of the global model, a share
    metric: dict[str, FiniteFloat] | None = None  # metrics of the objective by name, such as { perplexity = 3.0 }
    sim_time: Seconds | None = None  # simulated time
    energy: PositiveJoules | None = None  # joules of the devices, idle power included
    device_energy: PositiveJoules | None = None  # joules of the device that has spent the most, idle power included
    cost: Payment | None = None  # total cost by the section prices, such as "5 EUR"
    bytes: Memory | None = None  # bytes of all transfers of this training, down and up
    milestones: Annotated[tuple[Milestone, ...], Strict(False)] = ()  # accuracies that must be reached by given times

    @property
    def budgets(self) -> dict[str, float]:
        """Budgets that are given, by key, in SI units."""
        given = {
            "sim_time": self.sim_time,
            "energy": self.energy,
            "device_energy": self.device_energy,
            "cost": None if self.cost is None else self.cost.values[1],
            "bytes": self.bytes,
        }
        return {key: float(limit) for key, limit in given.items() if limit is not None}

    @validator(mode="after")
    def _at_least_one(self) -> Stop:
        ends = {name: limit for name, limit in self if name != "milestones"}
        if all(limit is None for limit in ends.values()):
            raise refusal(f"needs at least one of {', '.join(ends)}")
        return self


def _read_training(given: Any) -> Training:
    value: Training = given if isinstance(given, Training) else read_dataclass(Training, given)[0]
    return value


LocalTraining: TypeAlias = Annotated[Training, BeforeValidator(_read_training)]


Assignment: TypeAlias = Literal["neighbours", "column", "nearest", "balanced", "labels"]
Handover: TypeAlias = Literal["old", "new", "lost"]


_Failures: TypeAlias = Annotated[
    tuple[Annotated[Chosen, PartOf("failure")], ...], Strict(False), BeforeValidator(_one_or_more)
]
_Point: TypeAlias = Annotated[tuple[float, float], Strict(False)]


class ServerTier(StrictTable):
    """Aggregators of one tier between devices and server: rounds, speed and power of each."""

    rounds: Annotated[Count, Le(1_000)] = 1  # rounds of each before it sends its model: kappa_2, ... of HierFAVG
    protocol: Annotated[Chosen, PartOf("protocol")] = Field(  # protocol between each and those that it asks
        default="sync", validate_default=True
    )
    asked: Annotated[Chosen, PartOf("selection")] = Field(  # selection of this tier's servers for a round above
        default="all", validate_default=True
    )
    flops_per_s: FlopsPerSecondOrInf = float("inf")  # speed of each; inf: its work takes no time
    workers: Count = 1  # workers of each, all with this speed, that share the updates of an aggregation
    idle: Watts = 0.0  # power of each at all times
    busy: Watts = 0.0  # power while it computes
    energy_per_bit: JoulesPerBit = 0.0  # energy of data between this tier and the one that asks it
    failures: _Failures = ()  # failures of each: restarts

    @validator(mode="after")
    def _busy_is_more(self) -> Self:
        if self.flops_per_s < float("inf") and self.busy < self.idle:  # with infinite speed it is never busy
            raise refusal_at("busy", f"must be at least idle, {self.idle:g} W, got {self.busy:g} W", self.busy)
        return self


class Arrival(StrictTable):
    """Samples that come to the devices while the run goes on.

    A share `start` of a device's samples is there from the beginning, at least one of them, and the others come at
    uniform times within `over`. With `class_every` the classes appear one after another, class k at k times this: a
    sample that came before its class did is used from then on. A job trains with what has arrived when it is sent.
    """

    over: Seconds  # all samples have arrived by then, unless their classes appear later
    start: Share = 0.0  # share of a device's samples that is there from the beginning
    class_every: Seconds | None = None  # time between two classes; None: all are there from the beginning


class UpperTier(ServerTier):
    """Servers that ask the servers of the tier below, neighbours together, such as regions above edge servers."""

    servers: Count  # number of servers
    up: BitsPerSecondOrInf = float("inf")  # rate of each server's link, towards the tier above
    down: BitsPerSecondOrInf = float("inf")  # rate of each server's link, from the tier above
    latency: Delay = 0.0  # latency of each server's link, in each direction


class Edges(ServerTier):
    """Edge servers of `topology = tree`, each of which trains its devices in rounds of its own.

    The scenario's `selection` chooses the devices of each edge server's round, and the scenario's `protocol` is the
    server's way of waiting for the highest tier. The weight of a model is the number of samples behind it.
    """

    assignment: Assignment = "neighbours"  # rule that assigns devices to edge servers
    positions: Annotated[tuple[_Point, ...], Strict(False), MinLen(1)] | None = None  # of edge servers, for "nearest"
    mobility: Annotated[Chosen, PartOf("mobility")] | None = None  # None: devices do not move
    handover: Handover = "old"  # edge server that gets the update of a device that has moved since
    above: Annotated[tuple[UpperTier, ...], Strict(False), BeforeValidator(_one_or_more)] = ()  # tiers, from below

    @validator(mode="after")
    def _positions_where_needed(self) -> Edges:
        if (self.positions is None) == (self.assignment == "nearest"):
            needs = "needs positions" if self.positions is None else "alone takes positions"
            raise refusal_at("positions", f"assignment 'nearest' {needs}, assignment is {self.assignment!r}", None)
        return self

    @property
    def tiers(self) -> tuple[tuple[str, ServerTier], ...]:
        """Tiers of aggregators below the server, from below, each with its key in the scenario."""
        return (("edges", self), *((f"edges.above.{place}", tier) for place, tier in enumerate(self.above)))


# Keys of a scenario that all sessions share, because they belong to the world, the host or the run folder.
OF_THE_WORLD = frozenset(
    {
        *("seed", "backend", "fleet", "network", "energy", "slowdown", "availability", "failures", "topology"),
        *("server", "prices", "weights", "edges", "session", "extends", "clock_error", "app", "resources", "arrival"),
    }
)
OWN = ("name", "devices", "start")  # keys of a session that no scenario has

_LATEST_S = 1e9  # thirty years: much later, floats could not distinguish the ends of short jobs

Block: TypeAlias = tuple[str, int]  # name and count of a fleet block


def _listed(given: Any) -> Any:
    """Return the devices of a session as a list. A single block needs no brackets."""
    given = [given] if isinstance(given, str) else given
    if not isinstance(given, list | tuple) or not given:
        raise refusal(f"must be a list of names of fleet blocks and of pairs [first, last], got {quoted(given)}")
    for each in given:
        if not isinstance(each, str | list | tuple):
            raise refusal(
                f"must be the name of a fleet block or a pair [first, last] of device ids, got {quoted(each)}"
            )
    return given


_Id: TypeAlias = Annotated[int, Ge(0)]
_Devices: TypeAlias = Annotated[
    tuple[str | Annotated[tuple[_Id, _Id], Strict(False)], ...], Strict(False), BeforeValidator(_listed)
]
_SessionName: TypeAlias = Annotated[str, StringConstraints(pattern=SESSION_NAME)]


class SessionTable(StrictTable):
    """One of several trainings on the fleet. Keys that it does not set are those of the scenario."""

    name: _SessionName  # name in tables and files, of letters, digits, _ and -; session1, ... unless given
    devices: _Devices | None = None  # its devices: fleet blocks by name, and pairs [first, last] of ids; None: all
    start: Annotated[Delay, Le(_LATEST_S)] = 0.0  # start on the clock of the world, at most 1e9 s
    data: Annotated[Chosen, PartOf("data")] | None = None
    partition: Annotated[Chosen, PartOf("partition")] | None = None  # partition over the session's devices
    data_seed: Annotated[int, Ge(0)] | None = None
    model: Annotated[Chosen, PartOf("model")] | None = None
    training: LocalTraining | None = None
    cost: Annotated[Chosen, PartOf("cost")] | None = None
    selection: Annotated[Chosen, PartOf("selection")] | None = None
    method: Annotated[Chosen, PartOf("method")] | None = None
    objective: Annotated[Chosen, PartOf("objective")] | None = None
    server_optimizer: Annotated[Chosen, PartOf("server_optimizer")] | None = None
    protocol: Annotated[Chosen, PartOf("protocol")] | None = None
    controller: Annotated[Chosen, PartOf("controller")] | None = None
    peers: Annotated[Chosen, PartOf("peers")] | None = None
    encoding: Encodings | None = None
    evaluation: Evaluation | None = None
    stop: Stop | None = None  # end of this session; joules and money are the totals of the whole world

    @validator(mode="before")
    @classmethod
    def _known_keys(cls, given: Any) -> Any:
        if not isinstance(given, Mapping | cls):
            raise refusal(f"must be a table, got {quoted(given)}")
        if isinstance(given, Mapping):
            for key in given:
                if key in OF_THE_WORLD:
                    allowed = ", ".join(cls.model_fields)
                    raise refusal_at(
                        key,
                        f"belongs to the scenario, whose world all sessions share (allowed here: {allowed})",
                        given[key],
                    )
            check_keys(given, cls.model_fields, "edgesim schema")
        return given

    @property
    def overrides(self) -> dict[str, Any]:
        """Values that replace those of the scenario, by key of the scenario."""
        return {key: value for key, value in self if key not in OWN and value is not None}

    @property
    def word(self) -> int:
        """Number below 2**31 that follows from the name, and names the random streams of the session."""
        return word_of(self.name)

    def spans(self, blocks: Sequence[Block]) -> list[tuple[int, int]] | None:
        """Return first and last ids of the session's devices, by the blocks of the fleet. None: all devices.

        Raises ConfigError for a block that does not exist, and for ids that no device has.
        """
        if self.devices is None:
            return None
        lasts = [sum(count for _, count in blocks[: i + 1]) - 1 for i in range(len(blocks))]
        found: list[tuple[int, int]] = []
        for wanted in self.devices:
            if isinstance(wanted, str):
                spans = [
                    (last - count + 1, last)
                    for (name, count), last in zip(blocks, lasts, strict=True)
                    if name == wanted
                ]
                if not spans:
                    names = ", ".join(dict.fromkeys(name for name, _ in blocks))
                    raise ConfigError(f"no fleet block is called {quoted(wanted)} (there are {names})")
                found += spans
            elif not wanted[0] <= wanted[1] <= lasts[-1]:
                raise ConfigError(f"must be first and last of the ids 0 to {lasts[-1]}, got {list(wanted)}")
            else:
                found.append(wanted)
        return found


def word_of(name: str) -> int:
    """Return a number below 2**31 that follows from a name."""
    return int.from_bytes(sha256(name.encode()).digest()[:4]) >> 1


def with_app(given: Any) -> Any:
    """Return the table of a scenario whose app, if it has one, stands for the parts that it replaces.

    An app ends by itself, so it needs no stop rule.
    """
    if not isinstance(given, Mapping) or given.get("app") is None:
        return given
    return {**dict.fromkeys(REPLACED_BY_APP, APP), "stop": {"sim_time": LONGEST_APP_S}, **given}


def with_sessions(given: Any) -> Any:
    """Return the table of a scenario in which each session has a name, and its sections include the scenario's keys.

    A session overrides keys of its scenario, as a file with `extends` does.
    """
    tables = given.get("session") if isinstance(given, Mapping) else None
    if not isinstance(tables, list | tuple):
        return given
    sessions: list[Any] = []
    for place, table in enumerate(tables):
        if not isinstance(table, Mapping):
            sessions.append(table)
            continue
        own = {key: value for key, value in table.items() if value is not None}
        shared = [key for key in own if key not in OWN and key in given]
        whole = merged({key: given[key] for key in shared}, {key: own[key] for key in shared})
        sessions.append({"name": f"session{place + 1}", **own, **whole})
    return {**given, "session": sessions}
