"""The JSON Schema of scenario files."""

from __future__ import annotations

import json
import math
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from edgesim.config.plugins import PACKAGES, plugins_of
from edgesim.config.scenario import Scenario
from edgesim.config.schema import json_schema

ROOT = Path(__file__).parents[2]


def expanded(node: Any, definitions: dict[str, Any]) -> Any:
    """Return a schema with what its references mean in their places."""
    if isinstance(node, list):
        return [expanded(item, definitions) for item in node]
    if not isinstance(node, dict):
        return node
    if isinstance(node.get("$ref"), str):
        meant = definitions[node["$ref"].removeprefix("#/$defs/")]
        return expanded({**meant, **{key: value for key, value in node.items() if key != "$ref"}}, definitions)
    return {key: expanded(item, definitions) for key, item in node.items()}


def written_out() -> dict[str, Any]:
    schema = json_schema()
    found: dict[str, Any] = expanded(schema, schema["$defs"])
    return found


def shapes(section: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the tables that a part's section may be, by the name they are for."""
    tables = [choice for choice in section["anyOf"] if "const" in choice.get("properties", {}).get("name", {})]
    return {table["properties"]["name"]["const"]: table for table in tables}


def test_a_section_offers_each_part_with_its_keys(toys: None) -> None:
    network = written_out()["properties"]["network"]
    assert network["anyOf"][0] == {"enum": ["ideal", "fixed"]}
    fixed = shapes(network)["fixed"]
    assert list(fixed["properties"]) == ["name", "up", "down", "latency"]
    assert (fixed["required"], fixed["additionalProperties"]) == (["name", "up"], False)
    assert fixed["properties"]["latency"]["description"] == "a time in s: a number, or a string such as '20 ms'"
    assert network["default"] == "ideal"


def test_other_names_have_a_colon(toys: None) -> None:
    choices = written_out()["properties"]["model"]["anyOf"]
    assert shapes({"anyOf": choices}).keys() == {"net"}
    assert choices[1] == {"type": "string", "pattern": ":"}
    assert choices[-1]["properties"] == {"name": {"type": "string", "pattern": ":"}}


def test_a_scenario_may_leave_out_what_an_app_or_the_file_it_extends_has(toys: None) -> None:
    schema = written_out()
    needed = ["partition", "model", "method", "stop", "fleet"]
    assert schema["anyOf"] == [{"required": keys} for keys in (needed, ["app", "fleet"], ["extends"])]
    assert schema["properties"]["extends"]["type"] == "string"
    assert [choice["type"] for choice in schema["properties"]["fleet"]["anyOf"]] == ["array", "string"]
    assert schema["$defs"]["FleetBlock"]["anyOf"] == [{"required": ["cpu"]}, {"required": ["profile"]}]
    assert schema["additionalProperties"] is False


@pytest.fixture(scope="module")
def shipped() -> dict[str, Any]:
    """The schema with the parts that edgesim ships, written out."""
    return written_out()


KEYS = {kind: {"failure": "failures"}.get(kind, kind) for kind in PACKAGES}
LISTS = ("availability", "failure")


def choices(section: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a section and what lies in it beside other forms, such as null for a part that may be left out."""
    return [choice for choice in (section, *section.get("anyOf", ())) if "anyOf" in choice]


@pytest.mark.parametrize("kind", [k for k, key in KEYS.items() if key in Scenario.model_fields and k not in LISTS])
def test_the_schema_has_every_part_that_is_shipped(shipped: dict[str, Any], kind: str) -> None:
    expected = {name for name in plugins_of(kind) if not name.endswith(":")}
    assert expected in [shapes(choice).keys() for choice in choices(shipped["properties"][KEYS[kind]])]


@pytest.mark.parametrize("kind", LISTS)
def test_a_list_of_parts_may_be_one_part(shipped: dict[str, Any], kind: str) -> None:
    section, expected = shipped["properties"][KEYS[kind]], plugins_of(kind).keys()
    arrays = [form for form in (section, *section.get("anyOf", ())) if form.get("type") == "array"]
    assert [shapes(array["items"]).keys() for array in arrays] == [expected]
    assert expected in [shapes(choice).keys() for choice in choices(section)]


def test_every_kind_of_part_is_in_the_schema() -> None:
    of_blocks = {kind for kind, key in KEYS.items() if key not in Scenario.model_fields}
    # of a fleet block, its cpu, prices, shared links, cells, edges
    assert of_blocks == {"battery", "governor", "clock", "tariff", "discipline", "allocator", "mobility"}


def test_the_schema_is_json_and_says_things_once(shipped: dict[str, Any]) -> None:
    schema = json_schema()
    text = json.dumps(schema, indent=1, allow_nan=False)
    assert json.loads(text) == schema
    assert len(text) < 360_000 < len(json.dumps(shipped, indent=1))
    assert not [name for name in schema["$defs"] if not name.isidentifier()]


# --- a small validator of the keywords that the schema uses -----------------------------------------------------


def fits(value: Any, schema: dict[str, Any]) -> bool:
    """Return whether a value, as TOML gives it, satisfies a schema without references."""
    assert schema.keys() <= KNOWN, schema.keys() - KNOWN
    checks = (
        "type" not in schema or any(isinstance(value, TYPES[kind]) for kind in listed(schema["type"])),
        "enum" not in schema or value in schema["enum"],
        "const" not in schema or value == schema["const"],
        "anyOf" not in schema or any(fits(value, form) for form in schema["anyOf"]),
        "oneOf" not in schema or sum(fits(value, form) for form in schema["oneOf"]) == 1,
        not isinstance(value, str) or text_fits(value, schema),
        not isinstance(value, int | float) or within(value, schema),
        not isinstance(value, dict) or table_fits(value, schema),
        not isinstance(value, list) or list_fits(value, schema),
    )
    return all(checks)


NOTES = {"title", "description", "default", "examples", "x-unit", "format", "$schema", "$defs"}
TABLES = {"properties", "required", "additionalProperties", "items", "prefixItems", "minItems", "maxItems"}
NUMBERS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
TEXTS = {"pattern", "minLength", "maxLength"}
KNOWN = NOTES | TABLES | NUMBERS | TEXTS | {"type", "enum", "const", "anyOf", "oneOf"}
TYPES: dict[str, Any] = {
    **{"object": dict, "array": list, "string": str, "boolean": bool, "integer": int, "number": (int, float)},
    "null": type(None),
}


def listed(kind: str | list[str]) -> list[str]:
    return [kind] if isinstance(kind, str) else kind


def within(value: float, schema: dict[str, Any]) -> bool:
    low, high = schema.get("minimum", -math.inf), schema.get("maximum", math.inf)
    above, below = schema.get("exclusiveMinimum", -math.inf), schema.get("exclusiveMaximum", math.inf)
    return bool(low <= value <= high and (above < value < below or math.isinf(value)))


def text_fits(value: str, schema: dict[str, Any]) -> bool:
    sized = schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", len(value))
    return sized and re.search(schema.get("pattern", ""), value) is not None


def table_fits(value: dict[str, Any], schema: dict[str, Any]) -> bool:
    properties, rest = schema.get("properties", {}), schema.get("additionalProperties", True)
    unknown = value.keys() - properties.keys()
    known = all(fits(value[key], properties[key]) for key in value.keys() & properties.keys())
    return known and value.keys() >= set(schema.get("required", [])) and (rest is not False or not unknown)


def list_fits(value: list[Any], schema: dict[str, Any]) -> bool:
    sized = schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value))
    return sized and all(fits(item, schema.get("items", {})) for item in value)


NOT_SCENARIOS = {"claims", "digits"}  # folders of claims, and of a Flower app
SCENARIOS = sorted(path for path in (ROOT / "scenarios").glob("**/*.toml") if path.parent.name not in NOT_SCENARIOS)


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_shipped_scenarios_fit_the_schema(shipped: dict[str, Any], path: Path) -> None:
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    if "axes" not in table and "columns" not in table:  # a study is another kind of file
        assert fits(table, shipped)
        assert not fits({**table, "method": {"name": "fedpmt", "rules": 1}}, shipped)
        assert not fits({**table, "sed": 1}, shipped)
