"""Pluggable parts of a scenario: a table with a name becomes an instance of the class of that name."""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import (
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    PydanticUndefinedAnnotation,
    PydanticUserError,
    TypeAdapter,
    ValidationError,
)
from pydantic_core import CoreSchema, InitErrorDetails, SchemaValidator, core_schema

from edgesim.config import plugins as catalogue
from edgesim.config.plugins import meant
from edgesim.config.units import refusal
from edgesim.core.errors import ConfigError, EdgesimError
from edgesim.files.reading import in_short, quoted


@dataclass(frozen=True)
class Chosen:
    """A part as a scenario chose it."""

    kind: str
    name: str
    args: Mapping[str, Any]  # as JSON, in SI, defaults filled in
    value: Any = field(compare=False)  # the instance, or a Foreign

    def table(self) -> dict[str, Any]:
        """Return the table of a scenario file that chooses this part."""
        return {"name": self.name, **self.args}


def built(plugin: Chosen, path: str, offers: Collection[str], *arguments: Any, by: str = "build") -> Any:
    """Return what the function `by` of a part gives, a thing or a table that has to offer so many names.

    Raises ConfigError that names the part's place `path` if it does not, as a class from outside that is made for
    something else, or if such a class raises anything but an EdgesimError.
    """
    try:
        found = getattr(plugin.value, by)(*arguments)
    except EdgesimError:
        raise
    except Exception as error:
        if not catalogue.is_outside(plugin.kind, plugin.name):
            raise
        raise ConfigError(
            f"{path}.name: {plugin.name}.{by}() fails: {type(error).__name__}: {in_short(str(error))}"
        ) from error
    lacks = [name for name in offers if not (name in found if isinstance(found, Mapping) else hasattr(found, name))]
    if lacks:
        raise ConfigError(
            f"{path}.name: {plugin.name}.{by}() must give what {plugin.kind} parts do, it lacks {lacks[0]}"
        )
    return found


@dataclass(frozen=True)
class Foreign:
    """A user's own class that is no dataclass, and the keyword arguments to build it with when it is needed."""

    cls: Any
    args: Mapping[str, Any]


def as_table(section: Any) -> Any:
    """Return a section written as a bare name as the table that it stands for, anything else unchanged."""
    return {"name": section} if isinstance(section, str) else section


def plain(value: Any) -> Any:
    """Return a value as JSON has it: tuples and sets as lists, inf as "inf", paths as strings.

    Raises ValueError for what JSON has no form for.
    """
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted(plain(item) for item in value)
    if isinstance(value, str | Path):
        return str(value)
    if isinstance(value, float) and math.isinf(value):
        return str(value)
    if value is None or isinstance(value, bool | int | float):
        return value
    raise refusal(f"must be a number, string, list or table, got {quoted(value)}")


def refusal_at(key: str, message: str, found: Any) -> ValidationError:
    """Return a refusal of the value `found` of one key of a table."""
    return refusal_in((key,), message, found)


def refusal_in(path: tuple[str | int, ...], message: str, found: Any = None) -> ValidationError:
    """Return a refusal of the value `found` at a path of keys of a table, such as ("session", 0, "name")."""
    details = InitErrorDetails(type=refusal(message), loc=path, input=found)
    return ValidationError.from_exception_data("table", [details])


def check_keys(table: Mapping[str, Any], allowed: Collection[str]) -> None:
    """Raise ValidationError at the first key that is not allowed, offering the nearest."""
    for key in table:
        if key not in allowed:
            names = ", ".join(allowed) or "none"
            raise refusal_at(key, f"unknown key{meant(key, allowed)} (allowed: {names})", table[key])


def read_dataclass(cls: type, table: Any, fixed: Mapping[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
    """Return an instance of a dataclass with the values of a table, and its fields as JSON.

    `fixed`: fields that the table may not give. Raises ValidationError for what the class does not take.
    """
    fixed = fixed or {}
    if not isinstance(table, Mapping):
        raise refusal(f"must be a table, got {quoted(table)}")
    names = [f.name for f in dataclasses.fields(cls) if f.init and f.name not in fixed]
    check_keys(table, names)
    value = _reader(cls).validate_python({**table, **fixed})
    dumped = adapter_of(cls).dump_python(value)
    return value, {name: plain(dumped[name]) for name in names}


@cache
def adapter_of(cls: type) -> TypeAdapter[Any]:
    """Return what checks the fields of a dataclass. Raises ConfigError if they are of types that cannot be checked."""
    try:
        return TypeAdapter(cls)
    except (PydanticUserError, PydanticUndefinedAnnotation) as error:
        raise ConfigError(
            f"the fields of {cls.__qualname__} cannot be checked: {str(error).splitlines()[0]}"
        ) from error


@cache
def _reader(cls: type) -> SchemaValidator:
    """Return what reads a dataclass: true is no number, "0.5" is none and 0.0 is no truth value, at any depth."""
    return SchemaValidator(_strict(adapter_of(cls).core_schema))


def _strict(schema: Any) -> Any:
    """Return a schema whose plain numbers and truth values are taken from nothing else, but for "inf", as in JSON."""
    if isinstance(schema, list | tuple):
        return type(schema)(_strict(item) for item in schema)
    if not isinstance(schema, dict):
        return schema
    kind = schema.get("type")
    if kind in {"int", "bool"}:
        return {**schema, "strict": True}
    if kind == "float":
        return core_schema.no_info_before_validator_function(_infinite, {**schema, "strict": True})
    return {key: _strict(item) for key, item in schema.items()}


def _infinite(given: Any) -> Any:
    return float(given) if given in ("inf", "-inf") else given


def _read_foreign(cls: Any, table: Mapping[str, Any]) -> tuple[Foreign, dict[str, Any]]:
    """Return a class that is no dataclass with its arguments, which its signature has to take."""
    try:
        parameters = inspect.signature(cls).parameters
    except (TypeError, ValueError) as error:
        raise refusal(f"must be the name of a class, got {quoted(cls)}") from error
    variadic = {inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL}
    named = {name: p for name, p in parameters.items() if p.kind not in variadic}
    if not any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
        check_keys(table, named)
    for name, parameter in named.items():
        if parameter.default is inspect.Parameter.empty and name not in table:
            raise refusal_at(name, "is missing", table)
    args = plain(table)
    return Foreign(cls, args), args


@dataclass(frozen=True)
class PartOf:
    """Marks a field that holds the Chosen part of a kind, as in Annotated[Chosen, PartOf("network")].

    `usual`: the name meant where a table gives none.
    """

    kind: str
    usual: str | None = None

    def read(self, given: Any) -> Chosen:
        """Return the part that a table or a bare name chooses. Raises ValidationError at the key at fault."""
        table = as_table(given)
        if not isinstance(table, Mapping):
            raise refusal(f"must be the name of a {self.kind} or a table with a name, got {quoted(given)}")
        name = table.get("name", self.usual)
        if not isinstance(name, str):
            fault = "is missing" if name is None else f"must be a string, got {quoted(name)}"
            raise refusal_at("name", f"{fault}; it says which {self.kind} the other keys belong to", name)
        rest = {key: value for key, value in table.items() if key != "name"}
        try:
            cls, fixed = catalogue.find(self.kind, str(name))
            value, args = read_dataclass(cls, rest, fixed) if _is_dataclass(cls) else _read_foreign(cls, rest)
        except ConfigError as error:
            raise self._here(str(error), table) from error
        return Chosen(self.kind, str(name), args, value)

    def _here(self, text: str, table: Mapping[str, Any]) -> ValueError:
        # a part speaks of "network.up: ..." although it may be the network of a fleet block
        path, colon, message = text.partition(": ")
        kind, _, key = path.partition(".")
        if colon and kind == self.kind:
            return refusal_at(key, message, table.get(key)) if key else refusal(message)
        return refusal(text)

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            self.read, serialization=core_schema.plain_serializer_function_ser_schema(Chosen.table)
        )

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        known = catalogue.plugins_of(self.kind)
        exact = [name for name in known if not name.endswith(":")]
        other = {"type": "string", "pattern": ":"}
        return {
            "description": f"{self.kind}: a name, or a table of a name and the keys that belong to it",
            "anyOf": [
                {"enum": exact},
                other,
                *(_shape(name, known[name], handler) for name in exact),
                {"type": "object", "properties": {"name": other}, "required": ["name"]},
            ],
        }


def _is_dataclass(cls: Any) -> bool:
    return isinstance(cls, type) and dataclasses.is_dataclass(cls)


def _shape(name: str, cls: type, handler: GetJsonSchemaHandler) -> dict[str, Any]:
    """Return the JSON Schema of a table that chooses a shipped part."""
    shape = handler.resolve_ref_schema(handler(adapter_of(cls).core_schema))
    return {
        "type": "object",
        "title": name,
        "description": inspect.cleandoc(cls.__doc__ or "").split("\n")[0],
        "properties": {"name": {"const": name}, **shape.get("properties", {})},
        "required": ["name", *shape.get("required", [])],
        "additionalProperties": False,
    }
