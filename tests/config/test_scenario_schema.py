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


@pytest.mark.parametrize("kind", [kind for kind in PACKAGES if kind in Scenario.model_fields])
def test_the_schema_has_every_part_that_is_shipped(shipped: dict[str, Any], kind: str) -> None:
    expected = {name for name in parts_of(kind) if not name.endswith(":")}
    section = shipped["properties"][kind]
    # the section of a part that may be left out is one choice beside null
    choices = [choice for choice in (section, *section["anyOf"]) if "anyOf" in choice]
    assert expected in [shapes(choice).keys() for choice in choices]


def test_the_schema_is_json(shipped: dict[str, Any]) -> None:
    assert json.loads(json.dumps(shipped, allow_nan=False)) == shipped
