"""The section of prices: what joules, bytes, hours and jobs cost, by zone, kind of link and kind of device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, TypeAlias

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic import model_validator as validator
from pydantic_core import CoreSchema, core_schema

from edgesim.config.money import BANDS, GRAMS, Band, Payment, PerByte, PerTime
from edgesim.config.plugin_fields import Chosen, PartOf, refusal_at
from edgesim.config.strict_table import StrictTable

ANY = "*"  # the label of what holds for all zones, links or kinds that have no price of their own
_TARIFF = PartOf("tariff")
_SHORT = {"hours": "daily", "file": "series", "place": "average", "price": "constant"}  # a key -> the tariff it tells


def _tariff(given: Any) -> Any:
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
    """Marks a tariff, which may be written as a price alone, or without its name where a key tells it."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            lambda given: given if isinstance(given, Chosen) else _TARIFF.read(_tariff(given)),
            serialization=core_schema.plain_serializer_function_ser_schema(Chosen.table),
        )

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        table = _TARIFF.__get_pydantic_json_schema__(schema, handler)
        return {"anyOf": [{"type": "string", "examples": ["0.30 EUR/kWh"]}, *table["anyOf"]]}


_Tariff: TypeAlias = Annotated[Chosen, _TariffForm()]


class _ByLabel:
    """Marks a mapping label -> price that may be written as one price, which then holds for all."""

    def __init__(self, keys: frozenset[str]) -> None:
        self._keys = keys  # of a table that is a price itself

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(self._labelled, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        mapping = handler.resolve_ref_schema(handler(schema))
        return {"anyOf": [mapping["additionalProperties"], mapping]}

    def _labelled(self, given: Any) -> Any:
        one = not isinstance(given, Mapping) or bool(self._keys & set(given))
        return {ANY: given} if one else given


_OF_BANDS, _OF_TARIFFS = frozenset(BANDS), frozenset({"name", *_SHORT, *BANDS})
_Tariffs: TypeAlias = Annotated[dict[str, _Tariff], _ByLabel(_OF_TARIFFS)]
_PerByte: TypeAlias = Annotated[dict[str, PerByte], _ByLabel(_OF_BANDS)]
_PerTime: TypeAlias = Annotated[dict[str, PerTime], _ByLabel(_OF_BANDS)]
_Payment: TypeAlias = Annotated[dict[str, Payment], _ByLabel(_OF_BANDS)]


class Prices(StrictTable):
    """What a run costs in money and carbon. Everything is priced at its own instant and place.

    A price is one for all, or a table by label: `electricity` and `carbon` by the zones of fleet blocks, `data` by
    their kinds of link, the others by the blocks' names; the label "*" holds for all that have no price of their own.
    """

    electricity: _Tariffs = {}  # by zone
    carbon: _Tariffs = {}  # grams of CO2 equivalent of a unit of electricity, by zone
    data: _PerByte = {}  # of what a device receives and sends, by kind of link
    device_hours: _PerTime = {}  # of the time that a device is at work on jobs
    payments: _Payment = {}  # to the owner of a device, for a job that was delivered
    server_hours: PerTime | None = None  # of all the time that the run takes
    embodied: _PerTime = {}  # grams of CO2 equivalent of making a device, for the time that it is at work
    server_embodied: PerTime | None = None  # the same of the server, for all the time that the run takes
    server_zone: str | None = None  # where the server is; needed if there are several zones

    @validator(mode="after")
    def _one_currency(self) -> Prices:
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
        """Return the currency of all prices; None: there is no price in money."""
        return next((unit for _, unit in self._units() if unit != GRAMS), None)

    def _units(self) -> Iterator[tuple[str, str]]:
        """Yield the key and the unit of every price."""
        for key in type(self).model_fields:
            given = getattr(self, key)
            for price in given.values() if isinstance(given, Mapping) else [given]:
                if isinstance(price, Band):
                    yield key, price.unit
                elif isinstance(price, Chosen):
                    yield key, price.value.unit
