"""Prices and their units: joules, bytes, hours and jobs by zone, kind of link and kind of device.

"0.30 EUR/kWh" becomes money per joule. Low, typical and high prices make a band.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any, TypeAlias

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic import model_validator as validator
from pydantic_core import CoreSchema, core_schema

from edgesim.config.plugin_fields import Chosen, PartOf, refusal_at
from edgesim.config.strict_table import StrictTable
from edgesim.config.units import Unit, refusal
from edgesim.core.limits import MOST_AMOUNT
from edgesim.files.reading import quoted

GRAMS = "g"  # unit of carbon, where money has a currency
BANDS = ("low", "typical", "high")
_CURRENCY = re.compile(r"[A-Z]{3}")
_NUMBER = re.compile(r"\s*[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?\s*")
_PRICE = re.compile(
    rf"(?P<number>{_NUMBER.pattern})"
    r"\s*(?P<what>[A-Za-z]+)\s*(?:/\s*(?P<per>[A-Za-z]+))?\s*"
)


@dataclass(frozen=True)
class Band:
    """Price per unit of something: a low, a typical and a high price, often equal.

    `unit`: a currency by its three letters, or GRAMS of carbon dioxide equivalent. `values`: the prices of one `per`.
    """

    unit: str
    per: str  # "J", "byte", "s", or "" for a piece
    values: tuple[float, float, float]

    def table(self) -> Any:
        """Return the price as a scenario file gives it, in SI."""
        suffix = f"/{self.per}" if self.per else ""
        low, typical, high = (f"{value!r} {self.unit}{suffix}" for value in self.values)
        return typical if low == typical == high else {"low": low, "typical": typical, "high": high}


@dataclass(frozen=True)
class Priced:
    """Marks a Band that a scenario writes as a price with its unit, or as a table of low, typical and high."""

    per: Unit | None  # unit of the priced amount; None: a piece
    example: str
    negative: bool = False  # negative prices are allowed, as of electricity on a windy night

    def read(self, given: Any) -> Band:
        """Return the band of prices. Raises ValueError if `given` is neither a price nor a band."""
        if isinstance(given, Band):
            return given
        if not isinstance(given, Mapping):
            unit, value = self._price(given)
            return Band(unit, self._symbol, (value, value, value))
        if set(given) != set(BANDS):
            raise refusal(f"a band has the keys {', '.join(BANDS)}, got {', '.join(map(str, given)) or 'nothing'}")
        prices = [self._price(given[name]) for name in BANDS]
        low, typical, high = (value for _, value in prices)
        if len({unit for unit, _ in prices}) > 1:
            raise refusal(f"low, typical and high must be in one unit, got {quoted(dict(given))}")
        if not low <= typical <= high:
            raise refusal(f"low must be at most typical and that at most high, got {quoted(dict(given))}")
        return Band(prices[0][0], self._symbol, (low, typical, high))

    @property
    def _symbol(self) -> str:
        return self.per.symbol if self.per else ""

    def _price(self, given: Any) -> tuple[str, float]:
        match = _PRICE.fullmatch(given) if isinstance(given, str) and len(given) <= 100 else None
        known = match and (match["what"] == GRAMS or _CURRENCY.fullmatch(match["what"]))
        if not match or not known or (match["per"] is None) != (self.per is None):
            bare = type(given) in (int, float) or (isinstance(given, str) and _NUMBER.fullmatch(given))
            fault = "has no unit" if bare else "is no price"
            raise refusal(f"{quoted(given)} {fault}; give a string such as {self.example!r}")
        amount = Decimal(1)
        if self.per:  # divides by the size of the unit, which is exact as long as the size is a whole number
            try:
                amount = Decimal(repr(self.per.number(f"1 {match['per']}")))
            except ValueError as error:
                raise refusal(
                    f"{quoted(given)} is no price: {match['per']!r} is not {self.per.what}; "
                    f"give a string such as {self.example!r}"
                ) from error
        value = float(Decimal(match["number"]) / amount)
        if not abs(value) <= MOST_AMOUNT:
            raise refusal(f"{quoted(given)} is too large")
        if value < 0 and not self.negative:
            raise refusal(f"must be at least 0, got {quoted(given)}")
        return match["what"], value

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            self.read, serialization=core_schema.plain_serializer_function_ser_schema(Band.table)
        )

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        price = {"type": "string", "examples": [self.example]}
        band = {
            "type": "object",
            "properties": {name: price for name in BANDS},
            "required": list(BANDS),
            "additionalProperties": False,
        }
        return {"anyOf": [price, band], "description": f"a price such as {self.example!r}, or low, typical and high"}


_ENERGY = Unit("J", "an energy", "1 kWh", positive=True)
_DATA = Unit("byte", "an amount of data", "1 GB", positive=True)
_TIME = Unit("s", "a time", "1 h", positive=True)

PRICE_OF_ENERGY = Priced(_ENERGY, "0.30 EUR/kWh", negative=True)
PerEnergy: TypeAlias = Annotated[Band, PRICE_OF_ENERGY]
PerByte: TypeAlias = Annotated[Band, Priced(_DATA, "2 EUR/GB")]
PerTime: TypeAlias = Annotated[Band, Priced(_TIME, "0.05 EUR/h")]
Payment: TypeAlias = Annotated[Band, Priced(None, "0.01 EUR")]


ANY = "*"  # label of the price for all zones, links or kinds that have no price of their own
_TARIFF = PartOf("tariff")
_SHORT = {"hours": "daily", "file": "series", "place": "average", "price": "constant"}  # key -> tariff that it implies


def _full_tariff(given: Any) -> Any:
    """Return the table of a tariff that a short form stands for."""
    if (isinstance(given, str) and given[:1] in "+-.0123456789") or type(given) in (int, float):
        return {"name": "constant", "price": given}
    if isinstance(given, Mapping) and "name" not in given:
        if set(given) & set(BANDS):
            return {"name": "constant", "price": dict(given)}
        for key, name in _SHORT.items():
            if key in given:
                return {"name": name, **given}
    return given


class _TariffForm:
    """Marks a tariff, which may be written as a price alone, or without its name where a key implies it."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            lambda given: given if isinstance(given, Chosen) else _TARIFF.read(_full_tariff(given)),
            serialization=core_schema.plain_serializer_function_ser_schema(Chosen.table),
        )

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        table = _TARIFF.__get_pydantic_json_schema__(schema, handler)
        return {"anyOf": [{"type": "string", "examples": ["0.30 EUR/kWh"]}, *table["anyOf"]]}


_Tariff: TypeAlias = Annotated[Chosen, _TariffForm()]


class _ByLabel:
    """Marks a mapping label -> price that may be written as one price, which then holds for all."""

    def __init__(self, keys: frozenset[str]) -> None:
        self._keys = keys  # keys that tell one price written as a table from a table by label

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        def labelled(given: Any) -> Any:
            one = not isinstance(given, Mapping) or bool(self._keys & set(given))
            return {ANY: given} if one else given

        return core_schema.no_info_before_validator_function(labelled, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        mapping = handler.resolve_ref_schema(handler(schema))
        return {"anyOf": [mapping["additionalProperties"], mapping]}


_OF_BANDS, _OF_TARIFFS = frozenset(BANDS), frozenset({"name", *_SHORT, *BANDS})
_Tariffs: TypeAlias = Annotated[dict[str, _Tariff], _ByLabel(_OF_TARIFFS)]
_PerByte: TypeAlias = Annotated[dict[str, PerByte], _ByLabel(_OF_BANDS)]
_PerTime: TypeAlias = Annotated[dict[str, PerTime], _ByLabel(_OF_BANDS)]
_Payment: TypeAlias = Annotated[dict[str, Payment], _ByLabel(_OF_BANDS)]


class PricesTable(StrictTable):
    """Prices of a run in money and carbon. Every cost is priced at its own instant and place.

    A price is one value for all, or a table by label. The labels of `electricity` and `carbon` are the zones of fleet
    blocks, the labels of `data` are their kinds of link, and the labels of the other prices are the names of the
    blocks. The label "*" is the price for all that have no price of their own.
    """

    electricity: _Tariffs = {}  # price of electricity, by zone
    carbon: _Tariffs = {}  # grams of CO2 equivalent per unit of electricity, by zone
    data: _PerByte = {}  # price of the data that a device receives and sends, by kind of link
    device_hours: _PerTime = {}  # price of the time during which a device works on jobs
    payments: _Payment = {}  # payment to the owner of a device for each delivered job
    server_hours: PerTime | None = None  # price of the server for the whole duration of the run
    embodied: _PerTime = {}  # grams of CO2 equivalent from making a device, per time at work
    server_embodied: PerTime | None = None  # grams from making the server, per time of the whole run
    server_zone: str | None = None  # zone of the server, needed if there are several zones

    @validator(mode="after")
    def _one_currency(self) -> PricesTable:
        first: tuple[str, str] | None = None
        for key, unit in self._units():
            if key in ("carbon", "embodied", "server_embodied"):
                if unit != GRAMS:
                    raise refusal_at(key, f"is in grams, such as 'g/kWh', got one in {unit}", unit)
                continue
            if unit == GRAMS:
                raise refusal_at(key, "is in a currency, such as 'EUR/kWh', got one in grams", unit)
            first = first or (key, unit)
            if unit != first[1]:
                raise refusal_at(key, f"must be in one currency with {first[0]}, {first[1]}, got one in {unit}", unit)
        return self

    @property
    def currency(self) -> str | None:
        """Currency of all prices, None if there is no price in money."""
        return next((unit for _, unit in self._units() if unit != GRAMS), None)

    def _units(self) -> Iterator[tuple[str, str]]:
        """Yield the key and the unit of every price."""
        for key, given in self:
            for price in given.values() if isinstance(given, Mapping) else [given]:
                if isinstance(price, Band):
                    yield key, price.unit
                elif isinstance(price, Chosen):
                    yield key, price.value.unit
