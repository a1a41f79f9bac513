"""Reference of a part of a scenario: each key with its type, default, unit, meaning and an example.

Everything is read from the part's class: its fields, its docstring, the comments beside the fields and the docstrings
below them.
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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from pydantic import BaseModel

from edgesim.config import plugins as catalogue
from edgesim.config.plugin_fields import PartOf, adapter_of, plain

_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z`(\"\[])")
_BOUNDS = {"minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most", "exclusiveMaximum": "below"}
_HUGE = 1e9  # bounds from here on only keep numbers finite, so the reference leaves them out
_SECTIONS = {"failure": "failures"}  # kinds of parts whose section in a scenario has another name
_NOTHING = {"type": "null"}  # JSON Schema of a key that is left out
_UNITS = {"_dbm_per_hz": "dBm/Hz", "_db": "dB", "_rad": "rad", "_m": "m"}  # suffixes of keys and their units
_WORDS = {"integer": "whole number", "boolean": "true | false", "string": "text", "object": "table"}


@dataclass(frozen=True)
class KeyFacts:
    """A key of a part. `unit`: the unit of a bare number, "" if it has none.

    `default`: as TOML, "required" or, for a key that may be left out, "unset". `example`: a value as TOML.
    `background`: the origin of the default and the statements of the sources, "" if the class does not give them.
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
    """A part of a scenario: its docstring (`what`), its keys, and its source ("" if the class names none).

    `example`: the line of a scenario that names the part with the keys that it needs.
    """

    what: str
    source: str
    example: str
    keys: tuple[KeyFacts, ...]


def describe(kind: str, name: str) -> PartFacts:
    """Return the reference of a part, whose module is loaded. Raises ConfigError if the part does not exist."""
    cls, fixed = catalogue.find(kind, name)
    what = " ".join((inspect.getdoc(cls) or "").partition("Source: ")[0].split())
    keys: tuple[KeyFacts, ...]
    if dataclasses.is_dataclass(cls):
        keys = tuple(_keys(cls, fixed))
    else:  # a class of the user: its keys are the arguments of the call
        empty = inspect.Parameter.empty
        keys = tuple(
            KeyFacts(key, "", "required" if argument.default is empty else repr(argument.default), "", "", "...")
            for key, argument in inspect.signature(cls).parameters.items()
        )

    # The example is the shortest table that is accepted. Some parts need one of two keys, either of which will do.
    needed = [key for key in keys if key.default == "required"]
    tried = [needed, *([*needed, key] for key in keys if key not in needed)]
    tables = [
        f"{{ {', '.join([f'name = {json.dumps(name)}', *(f'{key.key} = {key.example}' for key in chosen)])} }}"
        for chosen in tried
    ]
    shortest = tables[0]
    for table in tables:
        try:
            PartOf(kind).read(tomllib.loads(f"value = {table}")["value"])
        except ValueError:  # pydantic's errors are ValueErrors
            continue
        shortest = table
        break

    docs = [*(inspect.getdoc(base) or "" for base in cls.__mro__), sys.modules[cls.__module__].__doc__ or ""]
    sources = (re.search(r"Source: (.*?)(\n\s*\n|\Z)", doc, re.DOTALL) for doc in docs)
    source = next((" ".join(match[1].split()) for match in sources if match), "")
    return PartFacts(what, source, f"{_SECTIONS.get(kind, kind)} = {shortest}", keys)


def keys_of(cls: Any) -> tuple[KeyFacts, ...]:
    """Return the keys of a table of a scenario with fixed keys: a dataclass or a pydantic model."""
    return tuple(_keys(cls, {}))


def _keys(cls: Any, fixed: Mapping[str, Any]) -> Iterator[KeyFacts]:
    schema = adapter_of(cls).json_schema(mode="validation")
    definitions, needed = schema.get("$defs", {}), schema.get("required", [])
    said, background = _meanings(cls), _backgrounds(cls)
    for key, shape in schema.get("properties", {}).items():
        if key not in fixed:
            default = shape.get("default")
            shown = "required" if key in needed else "unset" if default is None else toml(plain(default))
            by_name = next((unit for suffix, unit in _UNITS.items() if key.endswith(suffix)), "")
            unit = next((form["x-unit"] for form in _forms(shape, definitions) if "x-unit" in form), by_name)
            example = toml(_example(shape, definitions))
            yield KeyFacts(
                key, _type(shape, definitions), shown, unit, said.get(key, ""), example, background.get(key, "")
            )


# --- types and examples, from the JSON Schema of a key ------------------------------------------------------


def _forms(shape: Mapping[str, Any], definitions: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the forms that a value may have, with references resolved and nested alternatives flattened."""
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
    said = {bound: form[bound] for bound in _BOUNDS if bound in form and abs(form[bound]) < _HUGE}
    bounds = [f"{_BOUNDS[bound]} {value:g}" for bound, value in said.items()]
    name = _WORDS.get(form.get("type", ""), form.get("type", "any value"))
    return " ".join([name, " and ".join(bounds)]).strip()


def _example(shape: Mapping[str, Any], definitions: Mapping[str, Any]) -> Any:
    """Return a value other than the default if the schema names one, else the default or the simplest value."""
    default = shape.get("default")
    forms = [form for form in _forms(shape, definitions) if form != _NOTHING]
    for form in forms:
        named = form.get("examples") or [value for value in form.get("enum", []) if value != default]
        if named:
            return named[0]
    if default is not None:
        return plain(default)
    form = forms[0]
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
    """Return a plain value in the TOML of a scenario."""
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{key} = {toml(item)}' for key, item in value.items())} }}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml, value))}]"
    if isinstance(value, float) and float(f"{value:g}") == value:
        return f"{value:g}"
    return json.dumps(value, ensure_ascii=False)


# --- meanings, from the source ------------------------------------------------------------------------------


def _meanings(cls: type) -> dict[str, str]:
    """Return the meaning of each field: the sentences of docstrings that name it, then the comment beside it."""
    said: dict[str, list[str]] = {}
    own = [
        base
        for base in cls.__mro__
        if dataclasses.is_dataclass(base) or (issubclass(base, BaseModel) and base is not BaseModel)
    ]
    for base in own:
        doc = "" if (base.__doc__ or "").startswith(f"{base.__name__}(") else inspect.getdoc(base) or ""
        for sentence in _SENTENCE_END.split(" ".join(doc.split())):
            for key in re.findall(r"`(\w+)`", sentence):
                said.setdefault(key, []).append(sentence.removeprefix(f"`{key}`: "))
    for base in own:
        source = _source_of(base)
        tokens = tokenize.generate_tokens(io.StringIO(source).readline)
        comments = {token.start[0]: token.string.lstrip("# ") for token in tokens if token.type == tokenize.COMMENT}
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
                text = " ".join(comments[line] for line in lines if line in comments)
                sentence = [f"{text[:1].upper()}{text[1:].rstrip('.')}."] if text else []
                said.setdefault(node.target.id, []).extend(sentence)
    return {key: " ".join(dict.fromkeys(texts)) for key, texts in said.items()}


def _backgrounds(cls: type) -> dict[str, str]:
    """Return the docstring below each field, from the class nearest to `cls` that has one."""
    found: dict[str, str] = {}
    for base in cls.__mro__:
        parsed = ast.parse(_source_of(base)).body
        body = parsed[0].body if parsed and isinstance(parsed[0], ast.ClassDef) else []
        for field, below in pairwise(body):
            named = isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and field.target.id
            if named and isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
                found.setdefault(named, " ".join(str(below.value.value).split()))
    return found


def _source_of(cls: type) -> str:
    try:
        return textwrap.dedent(inspect.getsource(cls))
    except (OSError, TypeError):
        return ""  # a class defined interactively, or a built-in class such as `object`
