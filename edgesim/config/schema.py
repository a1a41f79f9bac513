"""JSON Schema of scenario files, with which editors complete and check them."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from edgesim.config.plugin_fields import plain
from edgesim.config.scenario import Scenario
from edgesim.config.sections import with_app

Schema: TypeAlias = dict[str, Any]

_SHORT = 120  # characters: a form up to this length is written out wherever it occurs
_BESIDE = ("default", "title")  # entries of a key that may stand beside a reference to the form of its values


def json_schema() -> Schema:
    """Return the JSON Schema, draft 2020-12, of a scenario file with all parts that edgesim ships.

    Forms that occur several times, such as those of a network or a data rate, stand once, in `$defs`.
    """
    schema = Scenario.model_json_schema()
    properties = schema["properties"]
    properties["extends"] = {
        "type": "string",
        "description": "a scenario file, or edgesim:quickstart, whose settings this one changes",
    }
    properties["fleet"] = {"anyOf": [properties["fleet"], {"type": "string", "description": "a CSV file"}]}
    # required keys of a scenario may stand in the file that it extends, and those of a block in a profile
    needed = schema.pop("required")
    of_app = ["app", *(key for key in needed if key not in with_app({"app": ""}))]  # an app stands for the others
    schema["anyOf"] = [{"required": keys} for keys in (needed, of_app, ["extends"])]
    block = schema["$defs"]["FleetBlock"]
    block["properties"]["profile"] = {"type": "string", "description": "a device of the catalogue, or a file of one"}
    block["anyOf"] = [{"required": block.pop("required")}, {"required": ["profile"]}]
    session = schema["$defs"]["SessionTable"]
    session["properties"] |= {
        key: properties[key] for key in session["properties"] if key in properties and key != "name"
    }
    devices = session["properties"]["devices"]
    session["properties"]["devices"] = {"anyOf": [devices, {"type": "string", "description": "a fleet block"}]}
    del session["required"]  # sessions without a name get one

    # Longer forms that occur several times become references to `$defs`.
    schema = _untitled(plain(schema))
    times: Counter[str] = Counter()

    def count(node: Schema) -> Schema:
        times[_form(node)] += 1
        return _inside(node, count) if times[_form(node)] == 1 or not _title(node) else node

    _inside(schema, count)
    names: dict[str, str] = {}
    definitions: Schema = {}

    def refer(node: Schema) -> Schema:
        form = _form(node)
        if times[form] < 2 or len(form) <= _SHORT or not _title(node):
            return _inside(node, refer)
        if form not in names:
            # a name from the title, such as data_rate or distribution_over_the_devices
            words = re.findall(r"\w+", re.sub(r"^(an?|the) | in .*|:.*", "", _title(node).lower()))
            name = "_".join(words[:4])
            taken = {*schema.get("$defs", {}), *definitions}
            names[form] = next(each for each in (name, *(f"{name}_{n}" for n in range(2, 10_000))) if each not in taken)
            definitions[names[form]] = {}  # reserves the name before the inner forms get theirs
            definitions[names[form]] = _inside({key: node[key] for key in node if key not in _BESIDE}, refer)
        return {"$ref": f"#/$defs/{names[form]}", **{key: node[key] for key in _BESIDE if key in node}}

    found = _inside(schema, refer)
    dialect = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    return {**dialect, **found, "$defs": {**found.get("$defs", {}), **definitions}}


def _inside(node: Schema, change: Callable[[Schema], Schema]) -> Schema:
    """Return a schema with every schema directly inside it changed."""
    found = dict(node)
    for key in ("properties", "$defs"):
        if key in node:
            found[key] = {name: change(inner) for name, inner in node[key].items()}
    for key in ("anyOf", "oneOf", "prefixItems"):
        if key in node:
            found[key] = [change(inner) for inner in node[key]]
    for key in ("items", "additionalProperties"):
        if isinstance(node.get(key), Mapping):
            found[key] = change(node[key])
    return found


def _untitled(node: Schema) -> Schema:
    """Return a schema without the titles of properties, which repeat their names."""
    found = _inside(node, _untitled)
    if "properties" in node:
        properties = found["properties"].items()
        found["properties"] = {
            name: {key: value for key, value in inner.items() if key != "title" or "const" in inner}
            for name, inner in properties
        }
    return found


def _form(node: Schema) -> str:
    return json.dumps({key: value for key, value in node.items() if key not in _BESIDE}, sort_keys=True)


def _title(node: Schema) -> str:
    return str(node.get("title", node.get("description", "")))
