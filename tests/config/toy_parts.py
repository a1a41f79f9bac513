"""Small parts of every kind, so that these tests need none of the parts that edgesim ships."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from annotated_types import Ge, MinLen

from edgesim.config.toml_file import ScenarioPath
from edgesim.config.units import BitsPerSecond, Delay, PerDevice, Seconds, Watts
from edgesim.core.errors import ConfigError
from edgesim.core.rng import Key
from edgesim.world.links.base import Links, NetworkPart


@dataclass(frozen=True, kw_only=True)
class Empty:
    """Nothing to set."""


@dataclass(frozen=True, kw_only=True)
class Link(NetworkPart):
    """Fixed rates."""

    up: PerDevice[BitsPerSecond]
    down: PerDevice[BitsPerSecond] = 1e6
    latency: Delay = 0.0

    def build(self, n: int, key: Key, path: str) -> Links:
        """Build nothing."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Power:
    """Constant powers."""

    idle: PerDevice[Watts] = 0.0


@dataclass(frozen=True, kw_only=True)
class Files:
    """Data in a folder."""

    root: ScenarioPath | None = None


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """So many samples."""

    samples_per_device: Annotated[int, Ge(1)] | Annotated[list[int], MinLen(1)] = 100
    shuffle: bool = True


@dataclass(frozen=True, kw_only=True)
class Net:
    """A model."""

    init_from: ScenarioPath | None = None


@dataclass(frozen=True, kw_only=True)
class Member:
    """A family of models."""

    member: str
    init_from: ScenarioPath | None = None


@dataclass(frozen=True, kw_only=True)
class Averaging:
    """A method."""

    momentum: float = float("inf")
    layers: tuple[str, ...] = ("a", "b")
    tags: frozenset[str] = frozenset({"z", "y", "x"})
    rule: Literal["mean", "inf"] = "mean"


@dataclass(frozen=True, kw_only=True)
class Proximal:
    """Another method."""

    mu: Annotated[float, Ge(0)] = 0.1


@dataclass(frozen=True, kw_only=True)
class Deadline:
    """A protocol."""

    deadline: Seconds


@dataclass(frozen=True, kw_only=True)
class Hours:
    """An availability."""

    start: Delay = 0.0


@dataclass(frozen=True, kw_only=True)
class Breaks:
    """A failure."""

    after: Seconds


@dataclass(frozen=True, kw_only=True)
class OneOf:
    """A selection that checks itself."""

    count: int | None = None
    fraction: float | None = None

    def __post_init__(self) -> None:
        if (self.count is None) == (self.fraction is None):
            raise ConfigError("selection: give exactly one of count and fraction")
        if self.count is not None and self.count > 100:
            raise ConfigError("selection.count: must be at most 100")


@dataclass(frozen=True, kw_only=True)
class Pool:
    """A backend."""

    workers: int = 2


@dataclass(frozen=True, kw_only=True)
class Odd:
    """A part that checks itself with a plain ValueError, and has a field that JSON has no form for."""

    number: int = 1
    pole: complex | None = None

    def __post_init__(self) -> None:
        if self.number % 2 == 0:
            raise ValueError(f"number must be odd, got {self.number}")


class OwnModel:
    """A user's class that is no dataclass."""

    def __init__(self, width: int, depth: int = 2) -> None:
        self.width, self.depth = width, depth


class AnyKeys:
    """A user's class that takes everything."""

    def __init__(self, **settings: Any) -> None:
        self.settings = settings


@dataclass(frozen=True, kw_only=True)
class Unreadable:
    """A dataclass whose field pydantic cannot check."""

    what: OwnModel


PLUGINS: dict[str, dict[str, type]] = {
    "data": {"files": Files},
    "partition": {"sizes": Sizes},
    "model": {"net": Net, "family:": Member},
    "cost": {"measured": Empty},
    "network": {"ideal": Empty, "fixed": Link},
    "discipline": {"fair": Empty},
    "resources": {"least": Empty},
    "energy": {"none": Empty, "power": Power},
    "slowdown": {"none": Empty},
    "governor": {"max": Empty},
    "clock": {"flops": Empty},
    "battery": {"rechargeable": Empty},
    "tariff": {"constant": Empty},
    "availability": {"always": Empty, "hours": Hours},
    "failure": {"breaks": Breaks, "rain": Empty},
    "peers": {"circle": Empty},
    "topology": {"star": Empty},
    "mobility": {"markov": Empty},
    "selection": {"all": Empty, "one_of": OneOf},
    "method": {"averaging": Averaging, "proximal": Proximal},
    "objective": {"classification": Empty},
    "server_optimizer": {"sgd": Empty},
    "protocol": {"sync": Empty, "deadline": Deadline},
    "controller": {"steps": Empty},
    "backend": {"serial": Empty, "pool": Pool},
    "app": {"app": Empty},
}
