"""The JSON Schema of scenario files."""

from __future__ import annotations

import json
from typing import Any

import pytest

from edgesim.catalogue import PACKAGES, parts_of
from edgesim.config.scenario import Scenario
from edgesim.config.schema import json_schema


def shapes(section: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the tables that a part's section may be, by the name they are for."""
    tables = [choice for choice in section["anyOf"] if "const" in choice.get("properties", {}).get("name", {})]
    return {table["properties"]["name"]["const"]: table for table in tables}


def test_a_section_offers_each_part_with_its_keys(toys: None) -> None:
    network = json_schema()["properties"]["network"]
    assert network["anyOf"][0] == {"enum": ["ideal", "fixed"]}
    fixed = shapes(network)["fixed"]
    assert list(fixed["properties"]) == ["name", "up", "down", "latency"]
    assert (fixed["required"], fixed["additionalProperties"]) == (["name", "up"], False)
    assert fixed["properties"]["latency"]["description"] == "a time in s: a number, or a string such as '20 ms'"
    assert network["default"] == "ideal"


def test_other_names_have_a_colon(toys: None) -> None:
    choices = json_schema()["properties"]["model"]["anyOf"]
    assert shapes({"anyOf": choices}).keys() == {"net"}
    assert choices[1] == {"type": "string", "pattern": ":"}
    assert choices[-1]["properties"] == {"name": {"type": "string", "pattern": ":"}}


def test_what_a_scenario_needs_may_stand_in_the_file_it_extends(toys: None) -> None:
    schema = json_schema()
    needed = ["partition", "model", "method", "stop", "fleet"]
    assert schema["anyOf"] == [{"required": needed}, {"required": ["extends"]}]
    assert schema["properties"]["extends"]["type"] == "string"
    assert [choice["type"] for choice in schema["properties"]["fleet"]["anyOf"]] == ["array", "string"]
    assert schema["$defs"]["FleetBlock"]["required"] == ["cpu"]
    assert schema["additionalProperties"] is False


@pytest.fixture(scope="module")
def shipped() -> dict[str, Any]:
    """The schema with the parts that edgesim ships."""
    return json_schema()


KEYS = {kind: {"failure": "failures"}.get(kind, kind) for kind in PACKAGES}
LISTS = ("availability", "failure")


def choices(section: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a section and what lies in it beside other forms, such as null for a part that may be left out."""
    return [choice for choice in (section, *section.get("anyOf", ())) if "anyOf" in choice]


@pytest.mark.parametrize("kind", [k for k, key in KEYS.items() if key in Scenario.model_fields and k not in LISTS])
def test_the_schema_has_every_part_that_is_shipped(shipped: dict[str, Any], kind: str) -> None:
    expected = {name for name in parts_of(kind) if not name.endswith(":")}
    assert expected in [shapes(choice).keys() for choice in choices(shipped["properties"][KEYS[kind]])]


@pytest.mark.parametrize("kind", LISTS)
def test_a_list_of_parts_may_be_one_part(shipped: dict[str, Any], kind: str) -> None:
    section, expected = shipped["properties"][KEYS[kind]], parts_of(kind).keys()
    arrays = [form for form in (section, *section.get("anyOf", ())) if form.get("type") == "array"]
    assert [shapes(array["items"]).keys() for array in arrays] == [expected]
    assert expected in [shapes(choice).keys() for choice in choices(section)]


def test_every_kind_of_part_is_in_the_schema() -> None:
    of_blocks = {kind for kind, key in KEYS.items() if key not in Scenario.model_fields}
    assert of_blocks == {"battery", "governor"}  # of a fleet block and of its cpu


def test_the_schema_is_json(shipped: dict[str, Any]) -> None:
    assert json.loads(json.dumps(shipped, allow_nan=False)) == shipped
