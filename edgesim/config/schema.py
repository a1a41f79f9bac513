"""The JSON Schema of scenario files, with which editors complete and check them."""

from __future__ import annotations

from typing import Any

from edgesim.config.parts import plain
from edgesim.config.scenario import Scenario


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema, draft 2020-12, of a scenario file with all parts that edgesim ships."""
    schema = Scenario.model_json_schema()
    properties = schema["properties"]
    properties["extends"] = {"type": "string", "description": "a scenario file whose settings this one changes"}
    properties["fleet"] = {"anyOf": [properties["fleet"], {"type": "string", "description": "a CSV file"}]}
    # what a scenario needs may stand in the file that it extends
    schema["anyOf"] = [{"required": schema.pop("required")}, {"required": ["extends"]}]
    result: dict[str, Any] = plain({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema})
    return result
