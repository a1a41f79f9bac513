"""A scenario: all settings that decide the results of a run, validated, in SI units."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias

from annotated_types import Ge, Le, MinLen
from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    Strict,
    field_validator,
)
from pydantic import model_validator as validator
from pydantic_core import CoreSchema, core_schema

from edgesim.config.device_profiles import with_profile
from edgesim.config.plugin_fields import Chosen, Foreign, PartOf, plain, refusal_at, refusal_in
from edgesim.config.prices import PricesTable
from edgesim.config.sections import (
    Arrival,
    Edges,
    Encodings,
    Evaluation,
    LocalTraining,
    Milestone,
    SessionTable,
    Stop,
    with_app,
    with_sessions,
)
from edgesim.config.strict_table import StrictTable
from edgesim.config.units import (
    Delay,
    FlopsPerSecond,
    FlopsPerSecondOrInf,
    Hertz,
    Memory,
    PerDevice,
    Watts,
    refusal,
)
from edgesim.config.validate import sections
from edgesim.core.errors import ConfigError
from edgesim.core.job import ONE_SESSION
from edgesim.core.limits import Count, CountOrZero, NonNegativeNumber, PositiveNumber, PositiveShare
from edgesim.core.local_sgd import Training
from edgesim.files.reading import quoted

__all__ = [
    "Chosen",
    "Cpu",
    "Encodings",
    "Evaluation",
    "FleetBlock",
    "Foreign",
    "Milestone",
    "Scenario",
    "Server",
    "SessionTable",
    "Stop",
]


_LONGEST_NAME = 1000


def _printable(name: str) -> str:
    if not name.isprintable():  # control characters and changes of direction would hide what a name says
        raise refusal(f"must be of printable characters, got {quoted(name)}")
    if len(name) > _LONGEST_NAME:
        raise refusal(f"must have at most {_LONGEST_NAME} characters, got {quoted(name)}, {len(name)}")
    return name


_Name: TypeAlias = Annotated[str, AfterValidator(_printable)]
_Label: TypeAlias = Annotated[_Name, MinLen(1)]


class Cpu(StrictTable):
    """Speed of a device: the attained speed, or frequency x flops_per_cycle x cores x efficiency.

    That speed is the whole clock of a device unless `clock` chooses another one, such as seconds for each kind of work.
    All speeds and seconds are those of the highest frequency. A network that runs in bfloat16 (`training.precision`)
    is charged 1 / `bfloat16_speedup` of its FLOPs, and all other work as in float32.
    """

    frequency: PerDevice[Hertz] | None = None  # highest clock frequency
    cores: Count = 1  # number of cores, all of which work while the device trains
    flops_per_cycle: PositiveNumber | None = None  # FLOPs per cycle of one core
    efficiency: PerDevice[PositiveShare] = 1.0  # share of the peak speed that training attains
    flops_per_s: PerDevice[FlopsPerSecond] | None = None  # speed that training attains
    clock: Annotated[Chosen, PartOf("clock")] = Field(default="flops", validate_default=True)  # seconds of its work
    bfloat16_speedup: PositiveNumber | None = None  # speed in bfloat16 over speed in float32; None: unknown, equal
    per_byte: PerDevice[Delay] = 0.0  # time to encode or decode one byte that it sends or receives
    spread: NonNegativeNumber = 0.0  # standard deviation of ln(true / predicted seconds); `clock_error` draws from it
    board: _Label | None = None  # kind of device, of which all have one clock error; None: the name of the block
    min_frequency: Hertz | None = None  # lowest frequency that a governor may choose; None: the highest one
    governor: Annotated[Chosen, PartOf("governor")] = Field(default="max", validate_default=True)  # sets the frequency

    @validator(mode="after")
    def _one_speed(self) -> Cpu:
        if self.flops_per_s is None and (self.frequency is None or self.flops_per_cycle is None):
            raise refusal("needs flops_per_s, or frequency and flops_per_cycle")
        if self.flops_per_s is not None and (self.flops_per_cycle is not None or self.efficiency != 1.0):
            raise refusal("flops_per_s is the speed attained; flops_per_cycle and efficiency do not go with it")
        return self


_MOST = 100_000_000  # devices of a block, and levels: a large machine has memory for a few columns of that length


class FleetBlock(StrictTable):
    """Devices of one kind. `model`, `network`, `energy` and `slowdown` replace those of the scenario."""

    count: Annotated[int, Ge(1), Le(_MOST)] = 1  # number of devices
    name: Annotated[_Name, MinLen(1)] = "block"  # name of the block; blocks without a name are numbered
    level: Annotated[int, Ge(1), Le(_MOST)] = 1  # level of capability, 1 is the weakest
    cpu: Cpu  # computing speed
    model: Annotated[Chosen, PartOf("model")] | None = None  # network to train; None: the model of the scenario
    network: Annotated[Chosen, PartOf("network")] | None = None
    energy: Annotated[Chosen, PartOf("energy")] | None = None
    slowdown: Annotated[Chosen, PartOf("slowdown")] | None = None
    memory: Memory | None = None  # memory for training; None: never too small
    battery: Annotated[Chosen, PartOf("battery", "rechargeable")] | None = None  # None, "none": it never empties
    zone: _Label | None = None  # zone of the devices, which decides their electricity and carbon prices
    edge: CountOrZero | None = None  # number of their edge server, where `edges.assignment` is "column"
    x: PerDevice[float] = 0.0  # horizontal position, in the unit of `edges.positions`
    y: PerDevice[float] = 0.0  # vertical position, in the unit of `edges.positions`
    link: _Label | None = None  # kind of their link, which decides their price of data; None: name of their network

    @field_validator("name")
    @classmethod
    def _not_the_server(cls, name: str) -> str:
        if name == "server":
            raise refusal("is the name of the server in tables; use another one")
        return name


class Server(StrictTable):
    """Workers of the server, their speed (inf: the work takes no time), and the power of the server idle and at work.

    The updates of a merge wait in a queue for the `workers`, each of which averages one update after the other. Other
    computations of a method follow when all updates are averaged, on one worker, and then the test of the model. A
    session has at most one merge in progress.
    """

    flops_per_s: FlopsPerSecondOrInf = float("inf")  # speed of each worker; inf: the work takes no time
    workers: Count = 1  # number of workers that take updates from the queue at the same time
    per_byte: Delay = 0.0  # seconds in which a worker reads, decodes and adds one byte of an update
    test_samples: CountOrZero = 0  # samples of each test of the model by a worker, at flops_per_s
    round_overhead: Delay = 0.0  # time that the framework adds after each merge, during which no worker is busy
    first_round_overhead: Delay = 0.0  # time that the framework adds to the first round, in addition
    idle: Watts = 0.0  # power at all times
    busy: Watts = 0.0  # power while one worker computes; each further worker adds busy - idle

    @validator(mode="after")
    def _tests_take_time(self) -> Server:
        if self.test_samples and self.flops_per_s == float("inf"):
            raise refusal_at("test_samples", "needs flops_per_s, as tests at infinite speed take no time", "inf")
        return self

    @validator(mode="after")
    def _busy_is_more(self) -> Server:
        if (
            self.flops_per_s < float("inf") or self.per_byte
        ) and self.busy < self.idle:  # with infinite speed it is never busy
            raise refusal_at("busy", f"must be at least idle, {self.idle:g} W, got {self.busy:g} W", self.busy)
        return self


def _part(name: str) -> Any:
    return Field(default=name, validate_default=True)


class _OneOrMore:
    """Marks a tuple of parts. A single part needs no brackets."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(self.listed, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        array = handler.resolve_ref_schema(handler(schema))
        return {"anyOf": [*array["items"]["anyOf"], array]}

    @staticmethod
    def listed(given: Any) -> Any:
        """Return a list of parts."""
        return given if isinstance(given, list | tuple) else [given]


_Availabilities: TypeAlias = Annotated[
    tuple[Annotated[Chosen, PartOf("availability")], ...], Strict(False), _OneOrMore()
]
_Failures: TypeAlias = Annotated[tuple[Annotated[Chosen, PartOf("failure")], ...], Strict(False), _OneOrMore()]


def _draw_of_clocks(given: Any) -> Any:
    is_draw = isinstance(given, int) and not isinstance(given, bool) and given >= 0
    if not (is_draw or given in ("none", "drawn")):
        raise refusal(f'must be "none", "drawn" or the number of a draw, at least 0, got {quoted(given)}')
    return given


_ClockError: TypeAlias = Annotated[Literal["none", "drawn"] | int, BeforeValidator(_draw_of_clocks)]


class Scenario(StrictTable):
    """All settings of a run. Plug-ins are held as Chosen, and blocks of the fleet in the order of the device ids."""

    seed: Annotated[int, Ge(0)] = 1  # seed of everything random
    name: _Name | None = None  # name of the scenario, kept in the manifest
    app: Annotated[Chosen, PartOf("app")] | None = None  # program that takes the place of data, model, method and more
    data: Annotated[Chosen, PartOf("data")] | None = None  # data set; None: timing only
    data_seed: Annotated[int, Ge(0)] | None = None  # seed of the partition alone; None: seed
    partition: Annotated[Chosen, PartOf("partition")]  # distribution of the samples over the devices
    arrival: Arrival | None = None  # samples that come while the run goes on; None: all are there from the start
    model: Annotated[Chosen, PartOf("model")]  # neural network to train
    training: LocalTraining = Training()  # local training of a device
    cost: Annotated[Chosen, PartOf("cost")] = _part("measured")  # model of the FLOPs of a job
    network: Annotated[Chosen, PartOf("network")] = _part("ideal")  # links of the devices
    clock_error: _ClockError = "none"  # error of the devices' clocks: "none", "drawn" for each seed, or a draw's number
    energy: Annotated[Chosen, PartOf("energy")] = _part("none")  # power of the devices
    slowdown: Annotated[Chosen, PartOf("slowdown")] = _part("none")  # causes of slower computing
    resources: Annotated[Chosen, PartOf("resources")] | None = (
        None  # joint choice of frequency, power and bandwidth of a round; None: governor, network and allocator choose
    )
    selection: Annotated[Chosen, PartOf("selection")] = _part("all")  # choice of the devices of a round
    method: Annotated[Chosen, PartOf("method")]  # federated method: the work of devices and server
    objective: Annotated[Chosen, PartOf("objective")] = _part("classification")  # loss, labels and metrics
    server_optimizer: Annotated[Chosen, PartOf("server_optimizer")] | None = (
        None  # step of the server from the old model to the new mean; None: the whole way
    )
    protocol: Annotated[Chosen, PartOf("protocol")] = _part("sync")  # protocol of the rounds
    controller: Annotated[Chosen, PartOf("controller")] | None = (
        None  # adapts local steps, participants, deadline or frequency from round to round; None: they stay
    )
    backend: Annotated[Chosen, PartOf("backend")] = _part("serial")  # where training runs: this process, workers or not
    availability: _Availabilities = _part("always")  # presence of devices; of several models, all must hold
    failures: _Failures = ()  # failures, which act together
    peers: Annotated[Chosen, PartOf("peers")] | None = None  # exchange between devices; None: no exchange
    topology: Annotated[Chosen, PartOf("topology")] = _part("star")  # links beyond the devices' own links
    edges: Edges | None = None  # edge servers between devices and server; None: no edge servers
    encoding: Encodings = Encodings()  # encoding of the numbers of a payload
    server: Server = Server()  # speed and power of the server
    prices: PricesTable | None = None  # prices in money and carbon; None: costs are not computed
    evaluation: Evaluation = Evaluation()  # tests of the model
    stop: Stop  # end of the run
    weights: Literal["both", "final", "best", "none"] = "both"  # models to keep in the run folder: final, best or both
    fleet: Annotated[tuple[FleetBlock, ...], Strict(False)]  # one block for each kind of device, or a CSV file
    session: Annotated[tuple[SessionTable, ...], Strict(False)] = ()  # several trainings; none: the scenario is the one

    @validator(mode="before")
    @classmethod
    def _overlay(cls, given: Any) -> Any:
        return with_sessions(with_app(given))

    @field_validator("session", mode="before")
    @classmethod
    def _tables(cls, given: Any) -> Any:
        if not isinstance(given, list | tuple):
            raise refusal(f"must be a list of tables, each headed [[session]], got {quoted(given)}")
        return given

    @field_validator("fleet", mode="before")
    @classmethod
    def _name_blocks(cls, given: Any) -> Any:
        if not isinstance(given, list | tuple):
            raise refusal(f"must be a list of tables or the name of a CSV file, got {quoted(given)}")
        if not given:
            raise refusal("needs at least one block of devices")
        blocks = [with_profile(block) for block in given]
        return [{"name": f"block{i}", **b} if isinstance(b, Mapping) else b for i, b in enumerate(blocks)]

    @validator(mode="after")
    def _sections_fit(self) -> Scenario:
        for key, words in sections(self):
            raise refusal_in(tuple(int(word) if word.isdecimal() else word for word in key.split(".")), words)
        blocks = [(block.name, block.count) for block in self.fleet]
        names = [each.name for each in self.session]
        for place, each in enumerate(self.session):
            if each.name in names[:place]:
                raise refusal_in(("session", place, "name"), f"{quoted(each.name)} is the name of another session")
            try:
                each.spans(blocks)
            except ConfigError as error:
                raise refusal_in(("session", place, "devices"), str(error)) from error
        return self

    @property
    def models(self) -> tuple[Chosen, ...]:
        """Distinct models of devices, in the order of the fleet's blocks."""
        found: list[Chosen] = []
        for block in self.fleet:
            model = self.model if block.model is None else block.model
            if model not in found:
                found.append(model)
        return tuple(found)

    @property
    def needs_kinds(self) -> bool:
        """True if the clock of some device looks at kinds of work beside FLOPs, which then have to be measured."""
        return any(block.cpu.clock.value.needs_kinds for block in self.fleet)

    @property
    def disciplines(self) -> tuple[Chosen | None, ...]:
        """Sharing of links by transfers, by fleet block. None: each device has a link of its own.

        A topology with links beyond constant ones is shared fairly, unless the network names a discipline.
        """
        networks = [(block.network or self.network).value for block in self.fleet]
        beyond = not self.topology.value.only_access
        fair = PartOf("discipline").read("fair") if beyond else None
        return tuple(
            fair if network.discipline is None and network.constant_rates else network.discipline
            for network in networks
        )

    @property
    def clock_draw(self) -> int | None:
        """Number of the draw of the devices' clock errors: the seed if it is "drawn"; None: no errors."""
        if isinstance(self.clock_error, int):
            return self.clock_error
        return self.seed if self.clock_error == "drawn" else None

    def network_of(self, block: FleetBlock) -> str:
        """Return the name of the network that the devices of a block train."""
        return (self.model if block.model is None else block.model).name

    @property
    def trainings(self) -> tuple[Scenario, ...]:
        """Scenario of each training as if it were alone in the world. A scenario without sessions is its own training.

        Each of the others is a scenario of one session, with the session's sections in their usual places too.
        """
        alone = (self.model_copy(update={**each.overrides, "session": (each,)}) for each in self.session)
        return tuple(alone) or (self,)

    @property
    def session_name(self) -> str:
        """Name of the first training."""
        return self.session[0].name if self.session else ONE_SESSION

    def canonical(self) -> dict[str, Any]:
        """Return the scenario as JSON, defaults explicit, in SI. `load_scenario` turns it into an equal scenario."""
        table: dict[str, Any] = plain(self.model_dump())
        sessions = [{k: v for k, v in each.items() if v is not None} for each in table.pop("session")]
        return {**table, "session": sessions} if sessions else table

    def digest(self) -> str:
        """Return the SHA-256, in hex, of the canonical scenario without backend and weights, which change no result."""
        decisive = {key: value for key, value in self.canonical().items() if key not in ("backend", "weights")}
        text = json.dumps(decisive, sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()
