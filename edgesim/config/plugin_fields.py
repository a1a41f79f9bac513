"""Pluggable parts of a scenario: a table with a name becomes an instance of the class of that name."""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, TypeVar

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
from edgesim.config.plugins import known_names, meant
from edgesim.config.units import refusal
from edgesim.core.errors import ConfigError, EdgesimError
from edgesim.files.own_code import own_frames
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


_Made = TypeVar("_Made")


def built(plugin: Chosen, path: str, kind: type[_Made], function: Callable[..., Any], *arguments: Any) -> _Made:
    """Call a function of a part, which has to return an instance of `kind`.

    Raises ConfigError that names the part's place `path` if it returns something else, or if a user's class raises
    anything but an EdgesimError.
    """
    called = f"{plugin.name}.{function.__name__}()"
    try:
        found = function(*arguments)
    except EdgesimError:
        raise
    except Exception as error:
        if not catalogue.is_outside(plugin.kind, plugin.name):
            raise
        if frames := own_frames(error):  # the function may have been called by a default of the abstract class
            called = f"{frames.function}()"
        raise ConfigError(f"{path}.name: {called} fails: {type(error).__name__}: {in_short(str(error))}") from error
    if not isinstance(found, kind):
        wanted, got = f"{kind.__module__}.{kind.__qualname__}", type(found).__name__
        raise ConfigError(f"{path}.name: {called} must return an instance of {wanted}, got {got}")
    return found


@dataclass(frozen=True)
class Foreign:
    """A user's own class that is not a dataclass, and the keyword arguments to build it with when it is needed.

    It is a model, of which nothing else is known before it is built.
    """

    cls: Any
    args: Mapping[str, Any]
    loads_weights: ClassVar[bool] = False
    native_input_shape: ClassVar[None] = None
    native_classes: ClassVar[None] = None
    native_objective: ClassVar[None] = None


def as_table(section: Any) -> Any:
    """Return the table that a bare name stands for, other values unchanged."""
    return {"name": section} if isinstance(section, str) else section


def plain(value: Any) -> Any:
    """Return a value in JSON types: tuples and sets as lists, inf as "inf", paths as strings.

    Raises ValueError for a value that has no JSON form.
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


_SYNONYMS = {"budget": "stop"}  # words of the literature for keys


def check_keys(table: Mapping[str, Any], allowed: Collection[str], command: str = "") -> None:
    """Raise ValidationError at the first key that is not allowed, offering the nearest.

    `command`: lists the allowed keys, if there are many and the error offers one.
    """
    for key in table:
        if key not in allowed:
            hint = meant(key, allowed, _SYNONYMS)
            names = f"allowed: {', '.join(allowed) or 'none'}"
            if hint and command:
                names = known_names(allowed, command, "allowed")
            raise refusal_at(key, f"unknown key{hint} ({names})", table[key])


def read_dataclass(
    cls: type, table: Any, fixed: Mapping[str, Any] | None = None, also: tuple[str, ...] = ()
) -> tuple[Any, dict[str, Any]]:
    """Return an instance of a dataclass with the values of a table, and its fields as JSON.

    `fixed`: fields that the table may not give. `also`: keys that errors offer beside the fields. Raises
    ValidationError for what the class does not take.
    """
    fixed = fixed or {}
    if not isinstance(table, Mapping):
        raise refusal(f"must be a table, got {quoted(table)}")
    names = [f.name for f in dataclasses.fields(cls) if f.init and f.name not in fixed]
    check_keys(table, [*names, *also])
    value = _strict_reader(cls).validate_python({**table, **fixed})
    dumped = adapter_of(cls).dump_python(value)
    return value, {name: plain(dumped[name]) for name in names}


@cache
def adapter_of(cls: type) -> TypeAdapter[Any]:
    """Return the adapter that checks the fields of a dataclass. Raises ConfigError for types that cannot be checked."""
    try:
        return TypeAdapter(cls)
    except (PydanticUserError, PydanticUndefinedAnnotation) as error:
        raise ConfigError(
            f"the fields of {cls.__qualname__} cannot be checked: {str(error).splitlines()[0]}"
        ) from error


@cache
def _strict_reader(cls: type) -> SchemaValidator:
    return SchemaValidator(_strict(adapter_of(cls).core_schema))


def _strict(schema: Any) -> Any:
    """Return a schema that converts no values to numbers and booleans, at any depth, but for "inf", as in JSON.

    It refuses true and "0.5" for a number, and 0.0 for a boolean.
    """
    if isinstance(schema, list | tuple):
        return type(schema)(_strict(item) for item in schema)
    if not isinstance(schema, dict):
        return schema
    kind = schema.get("type")
    if kind in {"int", "bool"}:
        return {**schema, "strict": True}
    if kind == "float":
        return core_schema.no_info_before_validator_function(
            lambda given: float(given) if given in ("inf", "-inf") else given, {**schema, "strict": True}
        )
    return {key: _strict(item) for key, item in schema.items()}


def _read_foreign(cls: Any, table: Mapping[str, Any]) -> tuple[Foreign, dict[str, Any]]:
    """Return a class that is not a dataclass with its arguments, checked against its signature."""
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

    `usual`: the name that applies where a table gives none.
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
            around = catalogue.AROUND.get(self.kind)
            keys = (around.first, *around.others) if around and around.first in rest else ()
            beside = {key: rest.pop(key) for key in keys if key in rest}
            fits = isinstance(cls, type) and dataclasses.is_dataclass(cls)
            also = (around.first,) if around else ()
            value, args = read_dataclass(cls, rest, fixed, also) if fits else _read_foreign(cls, rest)
            if around and beside:
                outer, more = read_dataclass(around.place.load(), beside)
                value, args = outer.around(value), {**args, **more}
        except ConfigError as error:
            # The error names "network.up: ..." although the part may be the network of a fleet block. pydantic adds the
            # whole path.
            path, colon, message = str(error).partition(": ")
            kind, _, key = path.partition(".")
            if not colon or kind != self.kind:
                raise refusal(str(error)) from error
            raise (refusal_at(key, message, table.get(key)) if key else refusal(message)) from error
        return Chosen(self.kind, str(name), args, value)

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            self.read, serialization=core_schema.plain_serializer_function_ser_schema(Chosen.table)
        )

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        known, around = catalogue.plugins_of(self.kind), catalogue.AROUND.get(self.kind)
        beside = {}  # keys that every table of the kind may have
        if around:
            shape = handler.resolve_ref_schema(handler(adapter_of(around.place.load()).core_schema))
            beside = {key: {"type": each["type"]} for key, each in shape["properties"].items()}
        exact = [name for name in known if not name.endswith(":")]
        other = {"type": "string", "pattern": ":"}
        tables = []  # one for each shipped part, with its keys
        for name in exact:
            shape = handler.resolve_ref_schema(handler(adapter_of(known[name]).core_schema))
            tables.append(
                {
                    "type": "object",
                    "title": name,
                    "description": inspect.cleandoc(known[name].__doc__ or "").split("\n")[0],
                    "properties": {"name": {"const": name}, **shape.get("properties", {}), **beside},
                    "required": [*(["name"] if name != self.usual else []), *shape.get("required", [])],
                    "additionalProperties": False,
                }
            )
        return {
            "description": f"{self.kind}: a name, or a table of a name and the keys that belong to it",
            "anyOf": [
                {"enum": exact},
                other,
                *tables,
                {"type": "object", "properties": {"name": other}, "required": ["name"]},
            ],
        }
