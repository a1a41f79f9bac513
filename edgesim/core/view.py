"""Information for methods: constant facts of a run, and facts known at a moment."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias, cast

import numpy as np

from edgesim.core.arrays import Arr, Ids
from edgesim.core.arrivals import Arrivals
from edgesim.core.cost_model import CostModel
from edgesim.core.encoding import FLOAT32, Encoding
from edgesim.core.errors import ContractError
from edgesim.core.job import Completion
from edgesim.core.local_sgd import Training
from edgesim.core.networks import Networks, part_of
from edgesim.core.rng import Key
from edgesim.core.task import Plan
from edgesim.core.update import ModelState

Speeds: TypeAlias = Callable[[Ids, Arr, Mapping[str, Arr] | None, float], Arr]


class Asked(NamedTuple):
    """Selection of the devices of a training if all are idle."""

    share: float  # mean share of the devices that are selected in a round
    alike: bool  # every device is selected with probability `share`, independent of earlier rounds


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Constant facts of a run, known to the server. Arrays have one entry per device and are read-only."""

    cost_profile: Any  # edgesim.core.price_list.CostProfile
    cost: CostModel
    training: Training
    samples: Ids
    level: Ids  # capability label of the scenario
    flops_per_s: Arr
    up_bps: Arr
    down_bps: Arr
    latency_s: Arr
    memory_bytes: Arr  # for training; inf: no limit
    deadline_s: float  # of a round; inf if the protocol has none
    labels: Arr | None = None  # label counts, shape (devices, classes), if the method or the selection needs them
    encoding_up: Encoding = FLOAT32  # encoding of payloads that name none, to the server or to peers
    encoding_down: Encoding = FLOAT32  # encoding of payloads that name none, from the server
    # devices, FLOPs, amounts by kind, bytes of payloads -> seconds at full speed; None: by flops_per_s
    speeds: Speeds | None = None
    kinds: bool = False  # some device's clock looks at kinds of work beside FLOPs
    per_byte: bool = False  # some device takes time for each byte that it sends and receives
    reports: bool = False  # devices send training statistics with each update, see edgesim.core.backend.Report
    members: Ids | None = None  # devices of this training, ascending; None: all
    networks: Networks | None = None  # networks of the devices if there are several; None: all have the same
    arrivals: Arrivals | None = None  # of samples while the run goes on; None: `samples` are there from the start
    tier: Ids | None = None  # of each device, 0 the fastest; None: the protocol has no tiers
    asked: Asked | None = None  # selection of devices, for methods with `Needs.asked`; None: by edge servers
    # what a controller has chosen: local steps, participants, deadline in seconds, share of the highest frequency
    steered: tuple[float | None, ...] = ()
    base: Literal["preloaded", "once"] = "preloaded"  # how devices get the frozen parameters of their network
    bfloat16_speedup: Arr | None = None  # of a network that runs in bfloat16; None: it takes as long as in float32

    def held(self, ids: Ids, now_s: float) -> Ids:
        """Return the number of samples that devices have for a job that is sent at `now_s`, shape (k,)."""
        return self.samples[ids] if self.arrivals is None else self.arrivals.held(ids, now_s)

    @property
    def devices(self) -> int:
        """Number of devices of this training. Other devices of the fleet hold no samples of it."""
        return len(self.ids)

    @property
    def ids(self) -> Ids:
        """Devices of this training, ascending."""
        return np.arange(len(self.samples)) if self.members is None else self.members

    @property
    def network_names(self) -> tuple[str, ...]:
        """Names of the networks; "" alone where all devices have the same."""
        return ("",) if self.networks is None else self.networks.names

    def routed(self, plan: Plan) -> Plan:
        """Return a plan in which each device trains its own network."""
        return plan if self.networks is None else self.networks.routed(plan)

    def part(self, model: ModelState, device: int) -> ModelState:
        """Return the part of a global model that a device has."""
        return model if self.networks is None else part_of(model, self.networks.of(device))

    def of_members(self) -> Setting:
        """Return this setting as if the members were all devices, numbered by their places among the members."""
        members, speeds = self.members, self.speeds
        if members is None:
            return self
        columns = {
            "samples": self.samples,
            "level": self.level,
            "flops_per_s": self.flops_per_s,
            "up_bps": self.up_bps,
            "down_bps": self.down_bps,
            "latency_s": self.latency_s,
            "memory_bytes": self.memory_bytes,
            "labels": self.labels,
            "tier": self.tier,
            "bfloat16_speedup": self.bfloat16_speedup,
        }
        own: dict[str, Any] = {name: column[members] for name, column in columns.items() if column is not None}
        for column in own.values():
            column.setflags(write=False)
        if self.networks is not None:
            own["networks"] = replace(self.networks, of_devices=self.networks.of_devices[members])
        if speeds is not None:
            own["speeds"] = lambda places, *work: speeds(members[places], *work)
        return replace(self, **own, members=None)

    def by_device(self, of_members: Arr) -> Arr:
        """Return values of the members, given by place, with one entry per device of the fleet: 0 for the others."""
        if self.members is None:
            return of_members
        values: Arr = np.zeros(len(self.samples), dtype=of_members.dtype)
        values[self.members] = of_members
        return values


_WORLD = frozenset(
    {"cost", "flops_per_s", "up_bps", "down_bps", "latency_s", "memory_bytes", "deadline_s", "speeds"}
    | {"bfloat16_speedup"}
)  # facts of a Setting that do not affect trained weights, unless a method reads them


class _WithoutWorld:
    """A setting whose facts of the world must not be read."""

    __slots__ = ("_method", "_setting")

    def __init__(self, setting: Setting, method: str) -> None:
        self._setting = setting
        self._method = method

    def __getattr__(self, name: str) -> Any:
        if name in _WORLD:
            raise ContractError(f"{self._method}: reads setting.{name} on the server, but needs.clock is not set")
        return getattr(self._setting, name)

    def of_members(self) -> Setting:
        return without_world(self._setting.of_members(), self._method)


def without_world(setting: Setting, method: str) -> Setting:
    """Return a setting that raises ContractError, which names the method, if a speed or the deadline is read."""
    return cast(Setting, _WithoutWorld(setting, method))


@dataclass(frozen=True, slots=True, eq=False)
class Turn:
    """Facts known to a device on its own clock when it begins its next job."""

    setting: Setting
    device: int
    nth: int  # number of its earlier jobs
    neighbours: Ids  # devices that it hears and that are reachable now, ascending
    round: int  # rounds closed so far


class View(Protocol):
    """All facts that a method may know at a moment. Reading them has no side effects."""

    @property
    def setting(self) -> Setting:
        """Constant facts of the run."""

    @property
    def now_s(self) -> float:
        """Simulated seconds since the start."""

    @property
    def version(self) -> int:
        """Global models so far."""

    @property
    def round(self) -> int:
        """Rounds closed so far, including rounds without any update."""

    @property
    def exchange(self) -> int:
        """Exchanges of this round so far."""

    @property
    def free_places(self) -> int:
        """Number of devices that may still be selected now."""

    @property
    def last(self) -> Sequence[Completion]:
        """Completions of the previous exchange."""

    @property
    def idle(self) -> Ids:
        """Ids of reachable devices without a job, ascending."""

    @property
    def peers(self) -> Any:
        """Peer graph of this round over the idle devices, an edgesim.core.peer_graph.PeerGraph."""

    def choose(self, key: Key) -> Ids:
        """Return distinct idle devices, ascending, by the scenario's selection rule."""
