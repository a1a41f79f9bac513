"""Physical values with units: "20 Mbit/s" becomes an SI float, and a distribution gives one value per device."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cache, lru_cache
from numbers import Real
from typing import Annotated, Any, TypeAlias, TypeVar, get_args

import numpy as np
import pint
from annotated_types import Ge, Lt
from pydantic import (
    ConfigDict,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    TypeAdapter,
    ValidationError,
    WithJsonSchema,
)
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from edgesim.config.plugins import renamed
from edgesim.core.errors import ConfigError, demand_of
from edgesim.core.limits import MOST_AMOUNT
from edgesim.files.reading import quoted

_WRITTEN = re.compile(r"\s*(?P<number>[-+0-9.eE]+?)\s*(?P<unit>[A-Za-z]+(?:/s)?)\s*")
_LONGEST = 50  # characters of a quantity
_FORMS = (
    (r"([kMGT]?)bps", (r"\1bit/s",)),
    (r"([kMGT]?)b/s", (r"\1bit/s", r"\1B/s")),
    (r"([kMGT]?)Bps", (r"\1B/s",)),
    (r"([kMGT]?)b", (r"\1bit", r"\1B")),
    (r"m|mins|minutes", ("min",)),
    (r"secs?|seconds", ("s",)),
    (r"hrs?|hours", ("h",)),
    (r"([kMGT]?)[hH][zZ]", (r"\1Hz",)),
    (r"([kMGTP]?)(?:FLOPS|flops|flop/s)", (r"\1FLOP/s",)),
)


def long_forms(text: str) -> list[tuple[str, str]]:
    """Return the number in a text with each unit that its short form may stand for, such as bit and byte for "b"."""
    match = _WRITTEN.fullmatch(text) if len(text) <= _LONGEST else None
    if not match:
        return []
    forms = [(re.fullmatch(short, match["unit"]), longs) for short, longs in _FORMS]
    return [(match["number"], form.expand(long)) for form, longs in forms if form for long in longs]


# Pint's own list has B for bels too, hertz as cycles and no FLOP. "b" is missing on purpose: many read it as byte.
_DEFINITIONS = """
pico- = 1e-12 = p-
nano- = 1e-9 = n-
micro- = 1e-6 = u- = µ- = μ-
milli- = 1e-3 = m-
kilo- = 1e3 = k-
mega- = 1e6 = M-
giga- = 1e9 = G-
tera- = 1e12 = T-
peta- = 1e15 = P-
kibi- = 1024 = Ki-
mebi- = 1048576 = Mi-
gibi- = 1073741824 = Gi-
second = [time] = s
minute = 60 * second = min
hour = 60 * minute = h
day = 24 * hour = d
hertz = 1 / second = Hz
bit = [information]
byte = 8 * bit = B
FLOP = [computation]
watt = [power] = W
joule = watt * second = J
watt_hour = watt * hour = Wh
volt = [voltage] = V
farad = joule / volt / volt = F
"""
_QUANTITY = re.compile(
    r"\s*(?P<number>[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?)"
    r"\s*(?P<unit>[A-Za-zµμ]+(?:\s*[/*]\s*[A-Za-zµμ]+)*)?\s*"
)
_FRACTION = re.compile(r"(?<![A-Za-zµμ])(?:milli|micro|nano|pico|[munpµμ])(bit|byte|B|FLOP)s?(?![A-Za-z])")


@cache
def _registry() -> pint.UnitRegistry[Decimal]:
    # Decimal, so that "100 us" is exactly the float 0.0001 and a file may write a value in any unit without changing it
    registry: pint.UnitRegistry[Decimal] = pint.UnitRegistry(None, non_int_type=Decimal)
    for line in _DEFINITIONS.strip().splitlines():
        registry.define(line)
    return registry


@lru_cache(maxsize=256)
def _unit(text: str) -> pint.Unit:
    return _registry().parse_units(text)


def refusal(message: str) -> PydanticCustomError:
    """Return the error with which a validator refuses a value. pydantic adds the path of the key."""
    return PydanticCustomError("refused", "{message}", {"message": message})


def reason(error: ValidationError) -> str:
    """Return the message of the first error, in the words used throughout edgesim."""
    first = error.errors(include_url=False)[0]
    if first["type"] in {"missing", "refused", "value_error", "assertion_error"}:  # their messages include the value
        return demand_of(first)
    said = f"{demand_of(first)}, got {quoted(first['input'])}"
    return f"{said}{renamed(first['input'], said)}"


@dataclass(frozen=True)
class Unit:
    """Marks a float, as in Annotated[float, Unit(...)], that a scenario may write as a number or with its unit."""

    symbol: str  # of the number held
    what: str  # with its article: "a data rate"
    example: str
    positive: bool = False  # above 0 instead of at least 0
    infinite: bool = False  # inf, also as the string "inf", is allowed

    def number(self, value: Any) -> float:
        """Return a value in `symbol`, of any sign and size. Raises ValueError if it is not such a quantity."""
        if isinstance(value, str):
            return math.inf if value.strip() == "inf" else self._parse(value)
        if isinstance(value, bool) or not isinstance(value, Real) or value != value:
            raise self._refusal(value, f"is not {self.what}")
        try:
            return float(value)
        except OverflowError as error:
            raise refusal(f"{quoted(value)} is too large") from error

    def read(self, value: Any) -> float:
        """Return a value in `symbol`. Raises ValueError if it is not such a quantity or outside its range."""
        number = self.number(value)
        if abs(number) > MOST_AMOUNT and not (math.isinf(number) and self.infinite):
            most = "finite" if math.isinf(number) else f"at most {MOST_AMOUNT:g} {self.symbol}"
            raise refusal(f"must be {most}, got {quoted(value)}")
        if number < 0 or (self.positive and number == 0):
            raise refusal(f"must be {'above' if self.positive else 'at least'} 0 {self.symbol}, got {quoted(value)}")
        return number

    @lru_cache(maxsize=2**16)  # noqa: B019, a unit is a constant, and thousands of devices have the same few numbers
    def _parse(self, text: str) -> float:
        match = _QUANTITY.fullmatch(text)
        if not match:
            raise self._refusal(text, f"is not {self.what}")
        if not match["unit"]:
            raise self._refusal(text, "has no unit")
        if fraction := _FRACTION.search(match["unit"]):
            raise refusal(f"{quoted(text)} has a prefix below one on {fraction[1]}; write M{fraction[1]}")
        try:
            quantity = _registry().Quantity(Decimal(match["number"]), _unit(match["unit"]))
            number = float(quantity.to(_unit(self.symbol)).magnitude)
        except pint.PintError as error:
            raise self._refusal(text, f"is not {self.what}") from error
        if math.isinf(number):
            raise refusal(f"{quoted(text)} is too large")
        return number

    def _has(self, unit: str) -> bool:
        """Return True if a unit measures the same kind of quantity."""
        try:
            _registry().Quantity(Decimal(1), _unit(unit)).to(_unit(self.symbol))
        except pint.PintError:
            return False
        return True

    def _refusal(self, value: Any, fault: str) -> PydanticCustomError:
        infinite = ", or 'inf'" if self.infinite else ""
        forms = long_forms(value) if isinstance(value, str) else []
        near = [f"{number} {unit}" for number, unit in forms if self._has(unit)]
        hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ";"
        usual = f"give a number in {self.symbol} or a string such as {self.example!r}{infinite}"
        return refusal(f"{quoted(value)} {fault}{hint} {usual}")

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self.read)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        bound = "exclusiveMinimum" if self.positive else "minimum"
        return {
            "anyOf": [{"type": "number", bound: 0}, {"type": "string"}],
            "description": f"{self.what} in {self.symbol}: a number, or a string such as {self.example!r}",
            "examples": [self.example],
            "x-unit": self.symbol,
        }


Seconds: TypeAlias = Annotated[float, Unit("s", "a time", "26.5 s", positive=True)]
SecondsOrInf: TypeAlias = Annotated[float, Unit("s", "a time", "26.5 s", positive=True, infinite=True)]
Delay: TypeAlias = Annotated[float, Unit("s", "a time", "20 ms")]
Hertz: TypeAlias = Annotated[float, Unit("Hz", "a frequency", "1.5 GHz", positive=True)]
Bytes: TypeAlias = Annotated[float, Unit("byte", "an amount of data", "2 MB")]
Memory: TypeAlias = Annotated[float, Unit("byte", "an amount of data", "4 GB", positive=True)]
BitsPerSecond: TypeAlias = Annotated[float, Unit("bit/s", "a data rate", "20 Mbit/s", positive=True)]
BitsPerSecondOrInf: TypeAlias = Annotated[
    float, Unit("bit/s", "a data rate", "20 Mbit/s", positive=True, infinite=True)
]
BytesPerSecond: TypeAlias = Annotated[float, Unit("byte/s", "a memory speed", "10 GB/s", positive=True)]
Flops: TypeAlias = Annotated[float, Unit("FLOP", "an amount of computation", "15 MFLOP")]
FlopsPerSecond: TypeAlias = Annotated[float, Unit("FLOP/s", "a computing speed", "147.6 MFLOP/s", positive=True)]
FlopsPerSecondOrInf: TypeAlias = Annotated[
    float, Unit("FLOP/s", "a computing speed", "2 TFLOP/s", positive=True, infinite=True)
]
Watts: TypeAlias = Annotated[float, Unit("W", "a power", "0.5 W")]
Joules: TypeAlias = Annotated[float, Unit("J", "an energy", "18.7 Wh")]
PositiveJoules: TypeAlias = Annotated[float, Unit("J", "an energy", "10 kJ", positive=True)]
Volts: TypeAlias = Annotated[float, Unit("V", "a voltage", "0.85 V", positive=True)]
Farads: TypeAlias = Annotated[float, Unit("F", "a capacitance", "436 pF", positive=True)]
JoulesPerBit: TypeAlias = Annotated[float, Unit("J/bit", "an energy per bit", "50 nJ/bit")]
LossRate: TypeAlias = Annotated[float, Ge(0), Lt(1)]  # of packets


@dataclass(frozen=True, slots=True)
class Distribution:
    """One value per device. `values` in SI: the two parameters of its kind, or all values of a choice."""

    kind: str
    values: tuple[float, ...]
    weights: tuple[float, ...] = ()  # weights of a choice, in any scale; empty: equal weights
    low: float = -math.inf  # draws outside [low, high] are moved to the nearer end
    high: float = math.inf
    of: Any = float  # annotated type that every draw has to satisfy

    def table(self) -> dict[str, Any]:
        """Return the table of a scenario file that gives this distribution, in SI."""
        optional = {"weights": list(self.weights), "min": self.low, "max": self.high}
        unset = {"weights": [], "min": -math.inf, "max": math.inf}
        return {self.kind: list(self.values)} | {k: v for k, v in optional.items() if v != unset[k]}

    def sample(self, n: int, generator: np.random.Generator) -> np.ndarray:
        """Return n draws, float64, shape (n,). More draws from an equal generator start with the same values."""
        return np.asarray(np.clip(_SAMPLERS[self.kind](self, n, generator), self.low, self.high))


_Sampler: TypeAlias = Callable[["Distribution", int, np.random.Generator], np.ndarray]


def _log_uniform(d: Distribution, n: int, generator: np.random.Generator) -> np.ndarray:
    low, high = d.values
    # clipped, as exp(log(x)) may differ from x by a rounding error
    drawn: np.ndarray = np.clip(np.exp(generator.uniform(math.log(low), math.log(high), size=n)), low, high)
    return drawn


def _choice(d: Distribution, n: int, generator: np.random.Generator) -> np.ndarray:
    weights = np.array(d.weights or np.ones(len(d.values)))
    drawn: np.ndarray = generator.choice(np.array(d.values), size=n, p=weights / weights.sum())
    return drawn


_SAMPLERS: dict[str, _Sampler] = {
    "uniform": lambda d, n, generator: generator.uniform(d.values[0], d.values[1], size=n),
    "log_uniform": _log_uniform,
    "normal": lambda d, n, generator: generator.normal(d.values[0], d.values[1], size=n),
    "log_normal": lambda d, n, generator: generator.lognormal(math.log(d.values[0]), d.values[1], size=n),
    "choice": _choice,
}


def draw(value: float | Distribution, n: int, generator: np.random.Generator, key_name: str) -> np.ndarray:
    """Return one SI value per device, float64, shape (n,). More devices leave the values of earlier ones unchanged.

    Raises ConfigError that begins with `key_name`, the scenario's key, if a drawn value is outside the range of its
    type, as values of a normal distribution may be.
    """
    if not isinstance(value, Distribution):
        return np.broadcast_to(np.float64(value), (n,))  # takes the memory of one value
    drawn = value.sample(n, generator)
    for bound, extreme in (("min", drawn.min(initial=math.inf)), ("max", drawn.max(initial=-math.inf))):
        try:
            if n:
                _adapter(value.of).validate_python(float(extreme))
        except ValidationError as error:
            shape = f"{value.kind} = {list(value.values)}"
            raise ConfigError(f"{key_name}: a value drawn from {shape} {reason(error)}; set `{bound}`") from error
    return drawn


@cache
def _adapter(of: Any) -> TypeAdapter[float]:
    # a type that may be infinite has a Unit with infinite=True
    return TypeAdapter(of, config=ConfigDict(allow_inf_nan=False, strict=True))


@dataclass(frozen=True)
class _Reader:
    """Reads a value of type `of`, or a distribution of such values."""

    of: Any

    def read(self, given: Any) -> float | Distribution:
        if not isinstance(given, Mapping):
            return self._value(given)
        kinds = [key for key in given if key in _SAMPLERS]
        options = {"min", "max"} | ({"weights"} if "choice" in kinds else set())
        if len(kinds) != 1 or given.keys() - {*kinds} - options:
            allowed = f"one of {', '.join(_SAMPLERS)}, and optionally min, max and, for choice, weights"
            raise refusal(f"a distribution has {allowed}; got {', '.join(map(str, given)) or 'nothing'}")
        [kind] = kinds
        listed = given[kind]
        is_list = isinstance(listed, Sequence) and not isinstance(listed, str)
        values: tuple[float, ...]
        if kind not in _PAIRS:
            if not is_list or not listed:
                raise refusal(f"{kind} needs a list of values, got {quoted(listed)}")
            values = tuple(map(self._value, listed))
        else:
            if not is_list or len(listed) != 2:
                raise refusal(f"{kind} needs a list of two values, got {quoted(listed)}")
            first, second = self._value(listed[0]), self._second(kind, listed[1])
            needs, fits = _PAIRS[kind]
            if not (math.isfinite(first) and math.isfinite(second) and fits(first, second)):
                raise refusal(f"{kind} needs {needs}, got {quoted(list(listed))}")
            values = first, second
        low = self._value(given["min"]) if "min" in given else -math.inf
        high = self._value(given["max"]) if "max" in given else math.inf
        if low > high:
            raise refusal(f"min must be at most max, got {quoted(given['min'])} and {quoted(given['max'])}")
        shares = given.get("weights", [])
        weights = TypeAdapter(tuple[Annotated[float, Ge(0)], ...]).validate_python(shares)
        if weights and (len(weights) != len(values) or not 0 < sum(weights) < math.inf):
            raise refusal(f"weights needs {len(values)} numbers that are not all 0, got {quoted(shares)}")
        return Distribution(kind, values, weights, low, high, self.of)

    def _value(self, given: Any) -> float:
        return _adapter(self.of).validate_python(given)

    def _second(self, kind: str, given: Any) -> float:
        # A deviation has the unit of the values but not their range: it may be 0 where a value may not. The sigma of a
        # logarithm has no unit.
        if kind in ("uniform", "log_uniform"):
            return self._value(given)
        unit = next((mark for mark in get_args(self.of) if isinstance(mark, Unit)), None)
        return unit.number(given) if unit and kind == "normal" else _adapter(float).validate_python(given)


# Kinds of distributions with two values: the condition in words and as a function.
_PAIRS: dict[str, tuple[str, Callable[[float, float], bool]]] = {
    "uniform": ("[low, high] with low <= high", lambda low, high: low <= high),
    "log_uniform": ("[low, high] with 0 < low <= high", lambda low, high: 0 < low <= high),
    "normal": ("[mean, deviation] with a deviation >= 0", lambda _, deviation: deviation >= 0),
    "log_normal": (
        "[median, sigma] with median > 0, and sigma >= 0 of the logarithm, without a unit",
        lambda median, sigma: median > 0 and sigma >= 0,
    ),
}


_VALUE_SCHEMA = {"type": ["number", "string"]}
_PAIR_SCHEMA = {"type": "array", "items": _VALUE_SCHEMA, "minItems": 2, "maxItems": 2}
_TABLE_SCHEMA = {
    "type": "object",
    "description": "a distribution over the devices",
    "properties": {
        **{kind: _PAIR_SCHEMA for kind in _PAIRS},
        "choice": {"type": "array", "items": _VALUE_SCHEMA, "minItems": 1},
        "weights": {"type": "array", "items": {"type": "number", "minimum": 0}},
        "min": _VALUE_SCHEMA,
        "max": _VALUE_SCHEMA,
    },
    "oneOf": [{"required": [kind]} for kind in _SAMPLERS],
    "additionalProperties": False,
}
_Table: TypeAlias = Annotated[dict[str, Any], WithJsonSchema(_TABLE_SCHEMA)]


class _PerDevice:
    """Makes pydantic read the first member of a union as a value or as a distribution of values."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        of = get_args(source)[0]
        shapes: list[CoreSchema | tuple[CoreSchema, str]] = [
            handler.generate_schema(of),
            handler.generate_schema(_Table),
        ]
        return core_schema.no_info_plain_validator_function(
            _Reader(of).read,
            json_schema_input_schema=core_schema.union_schema(shapes),
            serialization=core_schema.plain_serializer_function_ser_schema(
                lambda value: value.table() if isinstance(value, Distribution) else value
            ),
        )


Number = TypeVar("Number", bound=float)
# One value for all devices, or a distribution over them: PerDevice[Hertz], PerDevice[PositiveShare].
PerDevice: TypeAlias = Annotated[Number | Distribution, _PerDevice()]
