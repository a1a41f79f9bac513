"""Named device profiles: speed, power, memory and links of a device, each number with its unit, source and year."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache, cached_property, lru_cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, get_args

from annotated_types import Ge, MinLen
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError
from pydantic import model_validator as validator

from edgesim.config.plugin_fields import as_table, check_keys, refusal_at
from edgesim.config.plugins import known_names, meant
from edgesim.config.toml_file import FileText, toml_of
from edgesim.config.units import (
    BitsPerSecond,
    Delay,
    Farads,
    FlopsPerSecond,
    Hertz,
    Memory,
    PositiveJoules,
    Unit,
    Volts,
    reason,
    refusal,
)
from edgesim.core.errors import ConfigError
from edgesim.core.limits import Count, PositiveNumber, PositiveShare
from edgesim.core.work import PRICED
from edgesim.files.reading import quoted, read_text

_PositiveWatts = Annotated[float, Unit("W", "a power", "0.5 W", positive=True)]
_Capacitance = Annotated[float, Unit("J*s*s", "a switched capacitance", "1e-28 J*s*s", positive=True)]

QUANTITIES: Mapping[str, Any] = {
    "frequency": Hertz,
    "cores": Count,
    "flops_per_cycle": PositiveNumber,  # of one core, single precision
    "peak_flops_per_s": FlopsPerSecond,  # needed where frequency, cores and FLOPs per cycle are not all known
    "efficiency": PositiveShare,  # share of the peak speed that training attains
    "flops_per_s": FlopsPerSecond,  # attained
    "bfloat16_speedup": PositiveNumber,  # speed of training in bfloat16 over speed in float32
    "spread": PositiveNumber,  # standard deviation of ln(measured / predicted seconds), network's family left out
    "memory": Memory,
    "idle": _PositiveWatts,
    "busy": _PositiveWatts,  # of the whole device while it computes
    "transmit": _PositiveWatts,  # added to idle
    "receive": _PositiveWatts,  # added to idle
    "capacitance": _Capacitance,  # effective, of one core, as in P = capacitance x f^3
    "switched_capacitance": Farads,  # effective, of one core, as in P = C V^2 f; with `points`
    "battery": PositiveJoules,
    "up": BitsPerSecond,
    "down": BitsPerSecond,
    "latency": Delay,
    **{f"terms.{kind}": Delay for kind in PRICED},  # of one unit of a kind of work; see edgesim.world.clocks.terms
}
# Of ln(measured / predicted seconds) for one rate worked out from other numbers: where training was measured later, on
# Raspberry Pi 4 and 5 and a phone, estimates were so far off. See docs/explanation/device_times.md.
ESTIMATED_SPREAD = 1.64
Trust: TypeAlias = Literal["measured", "one point", "estimated"]
_RADIO = ("idle", "transmit", "receive")
_PRODUCT = ("frequency", "cores", "flops_per_cycle")  # the peak speed of a CPU


class Quantity(BaseModel):
    """A number of a profile as its source gives it. An estimate says in `derived` how it was obtained."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    value: int | float
    unit: str = ""
    source: Annotated[str, MinLen(1)]
    year: Annotated[int, Ge(1900)]  # of the source
    estimate: bool = False
    derived: str = ""

    @validator(mode="after")
    def _derivation(self) -> Quantity:
        if self.estimate != bool(self.derived):
            raise ValueError("an estimate, and nothing else, needs `derived`: what it was worked out from")
        return self

    @property
    def text(self) -> str | int | float:
        """Value and unit as scenarios write them: "1.5 GHz", or a number if there is no unit."""
        return f"{self.value!r} {self.unit}" if self.unit else self.value


class OperatingPoints(BaseModel):
    """Frequencies of a CPU and the voltages at which it has them, as a source lists them."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    value: Annotated[tuple[tuple[Hertz, Volts], ...], MinLen(1)]  # in SI
    source: Annotated[str, MinLen(1)]
    year: Annotated[int, Ge(1900)]  # of the source


class Profile(BaseModel):
    """A device. `quantities` are some of QUANTITIES; `si` has the same keys and plain SI numbers."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    title: Annotated[str, MinLen(1)]
    quantities: Mapping[str, Quantity]
    points: OperatingPoints | None = None

    @validator(mode="after")
    def _possible(self) -> Profile:
        si, peak = self.si, self.peak_flops_per_s
        attained = [key for key in ("flops_per_s", "efficiency") if key in si]
        if len(attained) != 1 or (peak is None and attained == ["efficiency"]):
            raise _fault("flops_per_s", "needs either flops_per_s, or efficiency and what the peak speed follows from")
        if peak is not None and self.flops_per_s > peak:
            raise _fault("flops_per_s", f"must be at most the peak of {peak:g} FLOP/s, got {self.flops_per_s:g} FLOP/s")
        if si.get("busy", float("inf")) < si.get("idle", 0.0):
            raise _fault("busy", f"must be at least idle, {si['idle']:g} W, got {si['busy']:g} W")
        if (self.points is None) != ("switched_capacitance" not in si):
            raise _fault("points", "points and switched_capacitance go together: power is C V^2 f")
        return self

    @cached_property
    def si(self) -> Mapping[str, float]:
        """The numbers in SI units. Raises ValidationError, which names the quantity, for one that cannot be."""
        return {key: si_number(QUANTITIES[key], key, quantity) for key, quantity in self.quantities.items()}

    @property
    def trust(self) -> Trust:
        """Origin of the speed, and so how far its seconds can be trusted.

        "measured": fitted to training steps of several networks, with the spread of what the fit misses.
        "one point": one measured network or speed. "estimated": a speed worked out from other numbers.
        """
        if self._has("spread") and not self.quantities["spread"].estimate:
            return "measured"
        attained = self.quantities["flops_per_s" if self._has("flops_per_s") else "efficiency"]
        return "estimated" if attained.estimate else "one point"

    @property
    def spread(self) -> float:
        """Standard deviation of ln(measured / predicted seconds) of a network that was not measured."""
        return self.si.get("spread", ESTIMATED_SPREAD)

    @property
    def peak_flops_per_s(self) -> float | None:
        """The peak speed in FLOP/s; None if the profile does not have it."""
        si = self.si
        if self._has(*_PRODUCT):
            return si["frequency"] * si["cores"] * si["flops_per_cycle"]
        return si.get("peak_flops_per_s")

    @property
    def flops_per_s(self) -> float:
        """The speed in FLOP/s that training attains."""
        si = self.si
        return si["flops_per_s"] if "flops_per_s" in si else si["efficiency"] * (self.peak_flops_per_s or 0.0)

    def block(self) -> dict[str, Any]:
        """Return the profile as a fleet block of a scenario: cpu, energy, network and memory, without the battery.

        A section is left out if the profile does not have its numbers. The energy model uses measured powers if they
        are known, else the capacitance.
        """
        given = self._texts("frequency", "cores", "bfloat16_speedup")
        cpu: dict[str, Any] = {**given, "spread": self.spread, "board": self.name}
        if terms := self._texts(*(f"terms.{kind}" for kind in PRICED)):
            cpu["clock"] = {"name": "terms", **{key.removeprefix("terms."): text for key, text in terms.items()}}
        if self._has(*_PRODUCT):
            # as a product, so that a scenario that changes the frequency or the cores changes the speed
            efficiency = self.si.get("efficiency", self.flops_per_s / (self.peak_flops_per_s or 0.0))
            cpu |= {**self._texts("flops_per_cycle"), "efficiency": efficiency}
        else:
            cpu |= {"flops_per_s": f"{self.flops_per_s!r} FLOP/s", **self._texts("flops_per_s")}
        sections = {
            "cpu": cpu,
            "energy": next(iter(self._energies().values()), None),
            "network": {"name": "fixed", **self._texts("up", "down", "latency")} if self._has("up", "down") else None,
            "memory": self._texts("memory").get("memory"),
        }
        return {key: section for key, section in sections.items() if section is not None}

    def merged(self, table: Mapping[str, Any]) -> dict[str, Any]:
        """Return a fleet block with the keys of `table` laid over those of the profile, without the key `profile`.

        A section merges key by key. A network or energy model of another name replaces the profile's section, and an
        energy model keeps the numbers that the profile has for it. A given speed replaces all keys with which the
        profile gives its speed. The block has a battery if `table` asks for one, with the profile's capacity unless it
        gives another.
        """
        block = {"name": self.name, **self.block()}
        capacity = self.quantities["battery"].text if self._has("battery") else None
        battery = {"name": "rechargeable", "capacity": capacity} if capacity is not None else None
        for key, section in table.items():
            if key == "profile":
                continue
            top = as_table(section) if key in ("energy", "network", "battery") else section
            own = battery if key == "battery" else block.get(key)
            if not isinstance(top, Mapping) or not isinstance(own, Mapping):
                block[key] = section
                continue
            base: Mapping[str, Any] | None = own
            if key == "cpu":
                base = _under(top, own)
            elif key == "energy" and "name" in top:
                base = self._energies().get(top["name"])
            elif top.get("name", own.get("name")) != own.get("name"):
                base = None
            block[key] = section if base is None else {**base, **top}
        return block

    def _energies(self) -> dict[str, dict[str, Any]]:
        """Return the energy sections that the numbers allow, by the name of the model, the preferred one first."""
        found = {}
        if self._has("busy"):
            found["power"] = {"name": "power", **self._texts("busy", *_RADIO)}
        if self._has("capacitance", "frequency"):
            found["cpu"] = {"name": "cpu", "capacitance": self.si["capacitance"], **self._texts(*_RADIO)}
        if self.points is not None and self._has("frequency"):
            capacitance = self.quantities["switched_capacitance"].text
            points = [list(point) for point in self.points.value]
            found["voltage"] = {"name": "voltage", "points": points, "capacitance": capacitance, **self._texts(*_RADIO)}
        return found

    def _has(self, *keys: str) -> bool:
        return self.quantities.keys() >= set(keys)

    def _texts(self, *keys: str) -> dict[str, Any]:
        return {key: self.quantities[key].text for key in keys if key in self.quantities}


def with_profile(block: Any) -> Any:
    """Return a fleet block with the keys of the device that its `profile` names, other values unchanged."""
    if not isinstance(block, Mapping) or "profile" not in block:
        return block
    try:
        return find(block["profile"]).merged(block)
    except ConfigError as error:
        raise refusal(str(error)) from error


def names() -> tuple[str, ...]:
    """Return the names of the catalogue's profiles, sorted."""
    return tuple(sorted(_files()))


def all() -> tuple[Profile, ...]:
    """Return every profile of the catalogue, sorted by name."""
    return tuple(find(name) for name in names())


def find(name: str | Path) -> Profile:
    """Return the profile of a name, or of a user's own file if the name ends with ".toml".

    Raises ConfigError that offers the nearest name if none fits, or that names the file and key at fault.
    """
    if not isinstance(name, str | Path):
        raise ConfigError(f"profile: must be the name of a device or of a file, got {quoted(name)}")
    if str(name).endswith(".toml"):
        return read(name.path() if isinstance(name, FileText) else Path(name))
    files = _files()
    if name not in files:
        hint, names = meant(str(name), files, cutoff=0.4), known_names(sorted(files), "edgesim list devices")
        raise ConfigError(f"profile: unknown device {quoted(str(name))}{hint} ({names})")
    return read(files[str(name)])


def read(file: Path | Traversable) -> Profile:
    """Return the profile in a TOML file. Raises ConfigError that names the file and the key at fault."""
    path = Path(str(file))
    return _of_text(path, read_text(path, ConfigError))


@lru_cache(maxsize=256)  # keyed by the content of the file too, so that a changed file is read again
def _of_text(path: Path, text: str) -> Profile:
    table = toml_of(text, path)
    try:
        return profile_of(path.name.removesuffix(".toml"), table)
    except ValidationError as error:
        where = ".".join(str(key) for key in error.errors()[0]["loc"] if key != "quantities")
        raise ConfigError(f"{path.name}: {where}: {reason(error)}") from error


def profile_of(name: str, table: Mapping[str, Any]) -> Profile:
    """Return the profile of a table as in a profile file. Raises ValidationError at the key at fault."""
    check_keys(table, ("title", *(key for key in QUANTITIES if "." not in key), "terms", "points"))
    given = {key: table[key] for key in ("title", "points") if key in table}
    quantities = {key: value for key, value in table.items() if key not in ("title", "terms", "points")}
    terms = table.get("terms", {})
    if not isinstance(terms, Mapping):
        raise _fault("terms", f"must be a table with a quantity for each kind of work, got {quoted(terms)}")
    for kind, term in terms.items():
        if kind not in PRICED:
            raise _fault(f"terms.{kind}", f"unknown kind of work{meant(kind, PRICED)} (allowed: {', '.join(PRICED)})")
        quantities[f"terms.{kind}"] = term
    return Profile.model_validate({"name": name, **given, "quantities": quantities})


def to_toml(profile: Profile) -> str:
    """Return the text of a profile file. Reading it gives an equal profile."""
    lines = [f"title = {json.dumps(profile.title)}"]
    for key, quantity in profile.quantities.items():
        given = quantity.model_dump(exclude_defaults=True)
        lines += ["", f"[{key}]", *(f"{field} = {json.dumps(value)}" for field, value in given.items())]
    if profile.points is not None:
        given = profile.points.model_dump()
        lines += ["", "[points]", *(f"{field} = {json.dumps(value)}" for field, value in given.items())]
    return "\n".join(lines) + "\n"


@cache
def _files() -> Mapping[str, Traversable]:
    files = (file for file in resources.files("edgesim.config.devices").iterdir() if file.name.endswith(".toml"))
    return {file.name.removesuffix(".toml"): file for file in files}


def si_number(kind: Any, key: str, quantity: Quantity) -> float:
    """Return a quantity as an SI number of a type of `units`. Raises ValidationError at `key` if it cannot be one."""
    # with the unit even if that is empty, as a bare number would pass for one in SI
    physical = any(isinstance(mark, Unit) for mark in get_args(kind))
    given = f"{quantity.value!r} {quantity.unit}" if physical else quantity.text
    try:
        return float(_adapter(kind).validate_python(given))
    except ValidationError as error:
        raise _fault(key, reason(error)) from error


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _fault(key: str, message: str) -> ValidationError:
    return refusal_at(key, message, None)


def _under(cpu: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a profile's CPU that stay under the scenario's `cpu`: those that it does not replace."""
    speed_keys = {"flops_per_s", "flops_per_cycle", "efficiency"}
    if "flops_per_cycle" in own:  # then the speed follows from frequency and cores
        speed_keys |= {"frequency", "cores"}
    replaced = {"clock", "spread", "board"} if "clock" in cpu or cpu.keys() & speed_keys else set()
    if "flops_per_s" in cpu:
        replaced |= {"flops_per_cycle", "efficiency"}
    elif "flops_per_cycle" in cpu:
        replaced |= {"flops_per_s"}
    return {name: value for name, value in own.items() if name not in replaced}
