"""The `show` command: effective values of a scenario, their origins, and warnings."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from edgesim.cli.show import print_json, print_note, print_table
from edgesim.config.load import load_scenario
from edgesim.config.origin import Layers, effective
from edgesim.config.scenario import Scenario
from edgesim.runs.warnings import of_parts, of_text

_MOST_BLOCKS = 20  # of a fleet are printed; JSON has all
_SECTIONS = ("method", "protocol", "selection", "training", "cost", "backend", "stop")
_COLUMNS = {"key": "key", "value": "value", "from": "from"}


def checked(file: Path, overrides: Sequence[str]) -> tuple[Scenario, Layers, list[str]]:
    """Return a scenario of which everything has been built, what was written of it, and the warnings about it.

    Raises ConfigError or DataError if it cannot be run.
    """
    from edgesim.runs.simulate import check_all  # loads torch

    scenario, layers = load_scenario(file, overrides), Layers.of(file, overrides)
    return scenario, layers, [*of_text(scenario, layers), *of_parts(scenario, check_all(scenario))]


def warn(lines: Sequence[str]) -> None:
    """Print warnings to stderr, a line each."""
    for line in lines:
        print_note(f"warning: {line}")


def print_scenario(scenario: Scenario, layers: Layers, warnings: Sequence[str], as_json: bool = False) -> None:
    """Print each fleet block and the rest of a scenario as they are in effect, then the warnings (stderr).

    A value is shown as it was written, a default in SI units.
    """
    blocks: list[dict[str, Any]] = [
        {"kind": block.name, "values": [value._asdict() for value in effective(scenario, layers, i)]}
        for i, block in enumerate(scenario.fleet)
    ]
    rest = _rest(scenario, layers)
    if as_json:
        print_json({"fleet": blocks, "scenario": rest, "warnings": list(warnings)})
        return
    for i, block in enumerate(blocks[:_MOST_BLOCKS]):
        print_table([_row(value) for value in block["values"]], _COLUMNS, f"fleet.{i}: {block['kind']}")
    if len(blocks) > _MOST_BLOCKS:
        print_note(f"{len(blocks) - _MOST_BLOCKS} more fleet blocks; --json has them all")
    print_table([_row(value) for value in rest], _COLUMNS, "all devices")
    warn(warnings)


def _rest(scenario: Scenario, layers: Layers) -> list[dict[str, Any]]:
    """Return name and written keys of the other sections, and the default of what is not written at all."""
    table, rows = scenario.canonical(), []
    for section in _SECTIONS:
        values = {"name": None} | table[section] if "name" in table[section] else table[section]
        for key, value in values.items():
            found = layers.find(section, key, name=table[section].get("name"))
            if found or key == "name":
                where, written = found or ("default", value)
                rows.append({"key": f"{section}.{key}", "value": written, "origin": where})
    for place, session in enumerate(table.get("session", ())):
        for key, value in session.items():
            found = layers.find("session", str(place), key)
            if found or key == "name":
                where, written = found or ("default", value)
                rows.append({"key": f"session.{place}.{key}", "value": written, "origin": where})
    return rows


def _short(value: Any) -> Any:
    """Return a value with whole numbers as such, and six digits of others, in lists and tables too."""
    if isinstance(value, Mapping):
        return {key: _short(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_short(each) for each in value]
    if isinstance(value, float) and math.isfinite(value):
        return int(value) if value.is_integer() and abs(value) < 1e15 else float(f"{value:.6g}")
    return value


def _row(value: dict[str, Any]) -> dict[str, str]:
    shown = value["value"]
    text = shown if isinstance(shown, str) else json.dumps(_short(shown), default=str)
    return {"key": value["key"], "value": text, "from": value["origin"]}
