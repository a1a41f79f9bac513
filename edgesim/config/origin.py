"""Origin of each value of a scenario: its file, a file that it extends, an override, a profile or a default."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel

from edgesim.config import device_profiles
from edgesim.config.load import read_layers, read_overrides
from edgesim.config.plugin_fields import Chosen, as_table
from edgesim.config.scenario import FleetBlock, Scenario
from edgesim.config.toml_file import FileText

DEFAULT = "default"
_CANONICAL = Scenario.model_fields.keys() - {"session"}
COMMON = ("network", "energy", "slowdown")  # sections of the scenario that a fleet block may replace


class Value(NamedTuple):
    """A value in effect: its dotted key, the value as it was written (a default in SI), and its origin."""

    key: str
    value: Any
    origin: str


@dataclass(frozen=True)
class Layers:
    """Tables that a user wrote, the weakest first: the extended files, the scenario's own, and each override.

    Each has a name, a table, and the path of the value that it replaces as a whole: () for files, which merge.
    """

    tables: tuple[tuple[str, Mapping[str, Any], tuple[str, ...]], ...]

    @classmethod
    def of(cls, source: Path | Mapping[str, Any], overrides: Sequence[str] = (), without: Sequence[str] = ()) -> Layers:
        """Return the layers of a scenario, without the sections `without` of its files.

        A canonical table has every key, so only the keys of its fleet blocks count as written. Raises ConfigError as
        `load_scenario` does.
        """
        if isinstance(source, Mapping) and source.keys() >= _CANONICAL:
            source = {"fleet": source["fleet"]}
        files = [
            (name, {key: each for key, each in table.items() if key not in without}, ())
            for name, table in read_layers(source)
        ]
        sets = [("--set", _nested(path, value), tuple(path)) for path, value in read_overrides(overrides)]
        return cls((*files, *sets))

    def find(self, *path: str, name: str | None = None) -> tuple[str, Any] | None:
        """Return the name of the layer that gives the value at a path, and the value. None: no layer gives it.

        `name`: name of the part in effect in the section. A layer that names another part hides itself and the layers
        below.
        """
        for where, table, whole in reversed(self.tables):
            section = as_table(_at(table, path[:-1])[1])
            if name is not None and isinstance(section, Mapping) and section.get("name", name) != name:
                return None
            found, value = _at(table, path)
            if found:
                return where, value
            if isinstance(table.get(path[0]), list) or (whole and path[: len(whole)] == whole):
                return None  # this layer replaces the layers below
        return None


def effective(scenario: Scenario, layers: Layers, block: int) -> Iterator[Value]:
    """Yield every value of a fleet block with its origin: its own keys, and the keys of its network, energy, ..."""
    given = scenario.fleet[block]
    profile: Mapping[str, Any] = {}
    label = ""
    written = layers.find("fleet", str(block), "profile")
    if written is not None:
        plugins = {"network": given.network, "energy": given.energy, "battery": given.battery}
        named = {section: {"name": plugin.name} for section, plugin in plugins.items() if plugin is not None}
        profile, label = device_profiles.find(written[1]).merged(named), f"profile {written[1]}"
    yield from _section(given.count, layers, ("fleet", str(block), "count"), None, "")
    yield from _section(given.level, layers, ("fleet", str(block), "level"), None, "")
    own = {"cpu": given.cpu, "memory": given.memory, "battery": given.battery}
    own |= {"network": given.network, "energy": given.energy, "slowdown": given.slowdown}
    shared = {"network": scenario.network, "energy": scenario.energy, "slowdown": scenario.slowdown}
    for section, value in own.items():
        if value is not None:
            yield from _section(value, layers, ("fleet", str(block), section), profile.get(section), label)
        elif section in shared:
            yield from _section(shared[section], layers, (section,), None, "")


def _section(given: Any, layers: Layers, path: tuple[str, ...], profile: Any, label: str) -> Iterator[Value]:
    """Yield the values of a section with their origins. A single value is its section's only key."""
    name = given.name if isinstance(given, Chosen) else None
    values: list[tuple[tuple[str, ...], Any]] = [((), given)]
    if isinstance(given, Chosen):
        values = [(("name",), given.name), *(((key,), each) for key, each in given.args.items() if each is not None)]
    elif isinstance(given, BaseModel):
        values = [((key,), each) for key, each in given.model_dump().items() if each is not None]
        values = [  # a part without keys is shown by its name alone
            (key, each["name"] if isinstance(each, Mapping) and len(each) == 1 and "name" in each else each)
            for key, each in values
        ]
    fleet = layers.find("fleet") if path[0] == "fleet" else None
    csv = str(fleet[1]) if fleet and isinstance(fleet[1], FileText) else None  # the CSV file that has the fleet
    for key, value in values:
        written = layers.find(*path, *key, name=name)
        of_profile = _at(profile, key) if profile is not None else (False, None)
        dotted = ".".join((*path, *key))
        if written:
            yield Value(dotted, written[1], written[0])
        elif of_profile[0]:
            yield Value(dotted, of_profile[1], label)
        else:
            yield Value(dotted, value, csv or DEFAULT)


def of_block(given: FleetBlock, section: str) -> bool:
    """Return True if a fleet block has such a section of its own, written or from its profile."""
    return dict(given)[section] is not None


def _at(table: Any, path: Sequence[str]) -> tuple[bool, Any]:
    """Return True and the value at a path of tables and lists, or False and None if there is no value."""
    for key in path:
        table = as_table(table)
        if isinstance(table, list) and key.isdecimal() and int(key) < len(table):
            table = table[int(key)]
        elif isinstance(table, Mapping) and key in table:
            table = table[key]
        else:
            return False, None
    return True, table


def _nested(path: Sequence[str], value: Any) -> dict[str, Any]:
    key, *rest = path
    return {key: _nested(rest, value) if rest else value}
