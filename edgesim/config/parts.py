"""Pluggable parts of a scenario: a table with a name becomes an instance of the class of that name."""

from __future__ import annotations

import dataclasses
import difflib
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
from pydantic_core import CoreSchema, InitErrorDetails, core_schema

from edgesim import catalogue
from edgesim.errors import ConfigError
from edgesim.units import refusal


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
    raise refusal(f"must be a number, string, list or table, got {value!r}")


def refusal_at(key: str, message: str, found: Any) -> ValidationError:
    """Return a refusal of the value `found` of one key of a table."""
    details = InitErrorDetails(type=refusal(message), loc=(key,), input=found)
    return ValidationError.from_exception_data("table", [details])


def check_keys(table: Mapping[str, Any], allowed: Collection[str]) -> None:
    """Raise ValidationError at the first key that is not allowed, offering the nearest."""
    for key in table:
        if key not in allowed:
            names = ", ".join(allowed) or "none"
            raise refusal_at(key, f"unknown key{did_you_mean(key, allowed)} (allowed: {names})", table[key])


def did_you_mean(word: str, allowed: Collection[str]) -> str:
    """Return an offer of the nearest of the allowed words, as the end of a message; nothing if none is near."""
    near = difflib.get_close_matches(word, allowed, n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else ""


def read_dataclass(cls: type, table: Any, fixed: Mapping[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
    """Return an instance of a dataclass with the values of a table, and its fields as JSON.

    `fixed`: fields that the table may not give. Raises ValidationError for what the class does not take.
    """
    fixed = fixed or {}
    if not isinstance(table, Mapping):
        raise refusal(f"must be a table, got {table!r}")
    names = [f.name for f in dataclasses.fields(cls) if f.init and f.name not in fixed]
    check_keys(table, names)
    adapter = adapter_of(cls)
    value = adapter.validate_python({**table, **fixed})
    for key, given in table.items():
        # pydantic takes true for 1
        if (
            isinstance(given, bool)
            and isinstance(getattr(value, key), int | float)
            and getattr(value, key) is not given
        ):
            raise refusal_at(key, f"must be a number, got {given!r}", given)
    dumped = adapter.dump_python(value)
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


def _read_foreign(cls: Any, table: Mapping[str, Any]) -> tuple[Foreign, dict[str, Any]]:
    """Return a class that is no dataclass with its arguments, which its signature has to take."""
    try:
        parameters = inspect.signature(cls).parameters
    except (TypeError, ValueError) as error:
        raise refusal(f"must be the name of a class, got {cls!r}") from error
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
            raise refusal(f"must be the name of a {self.kind} or a table with a name, got {given!r}")
        name = table.get("name", self.usual)
        if not isinstance(name, str):
            fault = "is missing" if name is None else f"must be a string, got {name!r}"
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
        known = catalogue.parts_of(self.kind)
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
