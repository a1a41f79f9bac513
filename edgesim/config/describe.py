"""What a scenario may say about a part: each key with its type, default, unit, meaning and an example.

All of it is read off the part's class: its fields, what its docstring says of them, the comments beside them, and the
docstrings below them.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import io
import json
import re
import sys
import textwrap
import tokenize
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from pydantic import BaseModel

from edgesim.config import plugins as catalogue
from edgesim.config.plugin_fields import PartOf, adapter_of, plain

_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z`(\"\[])")
_BOUNDS = {"minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most", "exclusiveMaximum": "below"}
_SECTIONS = {"failure": "failures"}  # of scenarios, where they have another name than the kind
_NOTHING = {"type": "null"}  # the form of a key that is left out
_UNITS = {"_dbm_per_hz": "dBm/Hz", "_db": "dB", "_rad": "rad", "_m": "m"}  # of keys whose names carry them
_WORDS = {"integer": "whole number", "boolean": "true or false", "string": "text", "object": "table"}


@dataclass(frozen=True)
class KeyFacts:
    """A key of a part. `unit`: of the number that a bare number stands for, "" if it has none.

    `default`: as TOML, "required" or, for a key that may be left out, "unset". `example`: a value as TOML.
    `background`: where the default comes from and what the sources say of it, "" if the class does not say.
    """

    key: str
    type: str
    default: str
    unit: str
    meaning: str
    example: str
    background: str = ""


@dataclass(frozen=True)
class PartFacts:
    """A part of a scenario: what its docstring says, its keys, and its source ("" if it does not say).

    `example`: the line of a scenario that names the part with what it needs.
    """

    what: str
    source: str
    example: str
    keys: tuple[KeyFacts, ...]


def describe(kind: str, name: str) -> PartFacts:
    """Return what there is to know of a part, whose module is loaded. Raises ConfigError if there is none."""
    cls, fixed = catalogue.find(kind, name)
    what = " ".join((inspect.getdoc(cls) or "").partition("Source: ")[0].split())
    keys = tuple(_keys(cls, fixed)) if dataclasses.is_dataclass(cls) else tuple(_parameters(cls))
    return PartFacts(what, _source(cls), f"{_SECTIONS.get(kind, kind)} = {_example_of(kind, name, keys)}", keys)


def keys_of(cls: Any) -> tuple[KeyFacts, ...]:
    """Return the keys of a table of a scenario with fixed keys: a dataclass or a pydantic model."""
    return tuple(_keys(cls, {}))


def _example_of(kind: str, name: str, keys: Sequence[KeyFacts]) -> str:
    """Return the shortest table that names a part and is accepted; some parts need one of two keys, whichever."""
    needed = [key for key in keys if key.default == "required"]
    tried = [needed, *([*needed, key] for key in keys if key not in needed)]
    tables = [
        f"{{ {', '.join([f'name = {json.dumps(name)}', *(f'{key.key} = {key.example}' for key in chosen)])} }}"
        for chosen in tried
    ]
    return next((table for table in tables if _is_accepted(kind, table)), tables[0])


def _is_accepted(kind: str, table: str) -> bool:
    try:
        PartOf(kind).read(tomllib.loads(f"value = {table}")["value"])
    except ValueError:  # what pydantic raises is one
        return False
    return True


def _keys(cls: Any, fixed: Mapping[str, Any]) -> Iterator[KeyFacts]:
    schema = adapter_of(cls).json_schema(mode="validation")
    definitions, needed = schema.get("$defs", {}), schema.get("required", [])
    said, background = _meanings(cls), _backgrounds(cls)
    for key, shape in schema.get("properties", {}).items():
        if key not in fixed:
            default = shape.get("default")
            shown = "required" if key in needed else "unset" if default is None else toml(plain(default))
            unit = next((form["x-unit"] for form in _forms(shape, definitions) if "x-unit" in form), _unit(key))
            example = toml(_example(shape, definitions))
            yield KeyFacts(
                key, _type(shape, definitions), shown, unit, said.get(key, ""), example, background.get(key, "")
            )


def _unit(key: str) -> str:
    return next((unit for suffix, unit in _UNITS.items() if key.endswith(suffix)), "")


def _parameters(cls: Any) -> Iterator[KeyFacts]:
    """Yield the keys of a user's own class that is no dataclass: the arguments it is called with."""
    for name, parameter in inspect.signature(cls).parameters.items():
        empty = parameter.default is inspect.Parameter.empty
        yield KeyFacts(name, "", "required" if empty else repr(parameter.default), "", "", "...")


# --- types and examples, from the JSON Schema of a key ------------------------------------------------------


def _forms(shape: Mapping[str, Any], definitions: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the forms that a value may have, without references and alternatives of alternatives."""
    if "$ref" in shape:
        yield from _forms(definitions[shape["$ref"].rpartition("/")[2]], definitions)
    elif "anyOf" in shape and "x-unit" not in shape:
        for form in shape["anyOf"]:
            yield from _forms(form, definitions)
    else:
        yield shape


def _type(shape: Mapping[str, Any], definitions: Mapping[str, Any]) -> str:
    words = [_word(form, definitions) for form in _forms(shape, definitions) if form != _NOTHING]
    return " or ".join(dict.fromkeys(words))


def _word(form: Mapping[str, Any], definitions: Mapping[str, Any]) -> str:
    if "x-unit" in form:
        return str(form["description"]).partition(" in ")[0]
    if "enum" in form or "const" in form:
        return " | ".join(map(toml, form.get("enum", [form.get("const")])))
    if form.get("type") == "array":
        inner = form.get("items", {})
        return f"list of {_type(inner, definitions)}" if inner else "list"
    if form.get("format") == "path":
        return "path"
    if form.get("description", "").startswith("a distribution"):
        return "distribution"
    bounds = [f"{word} {form[bound]:g}" for bound, word in _BOUNDS.items() if bound in form]
    name = _WORDS.get(form.get("type", ""), form.get("type", "any value"))
    return " ".join([name, " and ".join(bounds)]).strip()


def _example(shape: Mapping[str, Any], definitions: Mapping[str, Any]) -> Any:
    """Return a value other than the default if the schema names one."""
    default = shape.get("default")
    forms = [form for form in _forms(shape, definitions) if form != _NOTHING]
    for form in forms:
        named = form.get("examples") or [value for value in form.get("enum", []) if value != default]
        if named:
            return named[0]
    return plain(default) if default is not None else _simplest(forms[0], definitions)


def _simplest(form: Mapping[str, Any], definitions: Mapping[str, Any]) -> Any:
    if "const" in form:
        return form["const"]
    if form.get("type") == "array":
        inner = form["prefixItems"] if "prefixItems" in form else [form.get("items", {})] * form.get("minItems", 1)
        return [_example(item, definitions) for item in inner]
    if form.get("type") == "boolean":
        return True
    if form.get("type") in ("integer", "number"):
        whole = form["type"] == "integer"
        least = form.get("minimum", form.get("exclusiveMinimum", 0))
        return max(int(least), 1) if whole else least + min(0.5, (form.get("maximum", 1e9) - least) / 2)
    if form.get("type") == "object":
        return {key: _example(form["properties"][key], definitions) for key in form.get("required", [])}
    return "file.csv" if form.get("format") == "path" else "name"


def toml(value: Any) -> str:
    """Return a plain value as it is written in a scenario."""
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{key} = {toml(item)}' for key, item in value.items())} }}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml, value))}]"
    if isinstance(value, float) and float(f"{value:g}") == value:
        return f"{value:g}"
    return json.dumps(value, ensure_ascii=False)


# --- meanings, from the source ------------------------------------------------------------------------------


def _meanings(cls: type) -> dict[str, str]:
    """Return what is said of each field: sentences of docstrings that name it, then comments beside it."""
    said: dict[str, list[str]] = {}
    own = [base for base in cls.__mro__ if dataclasses.is_dataclass(base) or _is_model(base)]
    for base in own:
        doc = "" if (base.__doc__ or "").startswith(f"{base.__name__}(") else inspect.getdoc(base) or ""
        for sentence in _SENTENCE_END.split(" ".join(doc.split())):
            for key in re.findall(r"`(\w+)`", sentence):
                said.setdefault(key, []).append(sentence.removeprefix(f"`{key}`: "))
    for base in own:
        for key, comment in _comments(base):
            said.setdefault(key, []).append(comment)
    return {key: " ".join(dict.fromkeys(texts)) for key, texts in said.items()}


def _is_model(cls: type) -> bool:
    return issubclass(cls, BaseModel) and cls is not BaseModel


def _backgrounds(cls: type) -> dict[str, str]:
    """Return the docstring below each field: that of the class nearest to `cls` that has one."""
    found: dict[str, str] = {}
    for base in cls.__mro__:
        for field, below in pairwise(_body(base)):
            named = isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and field.target.id
            if named and isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
                found.setdefault(named, " ".join(str(below.value.value).split()))
    return found


def _body(cls: type) -> list[ast.stmt]:
    """Return the statements of a class; none of one whose source cannot be had, such as `object`."""
    parsed = ast.parse(_source_of(cls)).body
    return parsed[0].body if parsed and isinstance(parsed[0], ast.ClassDef) else []


def _source_of(cls: type) -> str:
    try:
        return textwrap.dedent(inspect.getsource(cls))
    except (OSError, TypeError):
        return ""  # a class defined interactively, or one of Python's own


def _comments(cls: type) -> Iterator[tuple[str, str]]:
    """Yield each field of a class that has a comment beside it, with the comment as a sentence."""
    source = _source_of(cls)
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = {t.start[0]: t.string.lstrip("# ") for t in tokens if t.type == tokenize.COMMENT}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
            text = " ".join(comments[line] for line in lines if line in comments)
            if text:
                yield node.target.id, f"{text[:1].upper()}{text[1:].rstrip('.')}."


def _source(cls: type) -> str:
    docs = [*(inspect.getdoc(base) or "" for base in cls.__mro__), sys.modules[cls.__module__].__doc__ or ""]
    found = (re.search(r"Source: (.*?)(\n\s*\n|\Z)", doc, re.DOTALL) for doc in docs)
    return next((" ".join(match[1].split()) for match in found if match), "")
