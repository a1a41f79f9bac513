"""Where the values of a scenario come from: its file, a file that it extends, an override, a profile or a default."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from edgesim.config import device_profiles
from edgesim.config.load import read_layers, read_overrides
from edgesim.config.plugin_fields import Chosen, as_table
from edgesim.config.scenario import FleetBlock, Scenario
from edgesim.config.toml_file import FileText

DEFAULT = "default"
_CANONICAL = Scenario.model_fields.keys() - {"session"}
COMMON = ("network", "energy", "slowdown")  # sections of the scenario that a block may have of its own


class Value(NamedTuple):
    """A value in effect: its dotted key, which says whose it is, how it was written (a default: in SI), and where."""

    key: str
    value: Any
    origin: str


@dataclass(frozen=True)
class Layers:
    """What a user wrote, the weakest first: the files that are extended, the scenario's own, and each override.

    Each has a name, a table, and the path of what it replaces as a whole; () for files, which merge.
    """

    tables: tuple[tuple[str, Mapping[str, Any], tuple[str, ...]], ...]

    @classmethod
    def of(cls, source: Path | Mapping[str, Any], overrides: Sequence[str] = (), without: Sequence[str] = ()) -> Layers:
        """Return the layers of a scenario, of whose files the sections `without` are dropped.

        A canonical table has every key, so of it only what fleet blocks have of their own counts as written. Raises
        ConfigError as `load_scenario` does.
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
        """Return who wrote the value at a path, and what; None: nobody did.

        `name`: of the part in effect in the section; a layer that names another one, and those below, do not count.
        """
        for where, table, whole in reversed(self.tables):
            section = as_table(_at(table, path[:-1])[1])
            if name is not None and isinstance(section, Mapping) and section.get("name", name) != name:
                return None
            found, value = _at(table, path)
            if found:
                return where, value
            if isinstance(table.get(path[0]), list) or (whole and path[: len(whole)] == whole):
                return None  # it takes the place of those below
        return None


def effective(scenario: Scenario, layers: Layers, block: int) -> Iterator[Value]:
    """Yield every value of a fleet block, with its origin: its own keys, and those of its network, energy, ..."""
    given = scenario.fleet[block]
    profile, label = _profile(layers, block, given)
    for key in ("count", "level"):
        yield from _section(getattr(given, key), layers, ("fleet", str(block), key), None, "")
    for section in ("cpu", "memory", "battery", *COMMON):
        own = getattr(given, section)
        if own is None and section in COMMON:
            yield from _section(getattr(scenario, section), layers, (section,), None, "")
        elif own is not None:
            yield from _section(own, layers, ("fleet", str(block), section), profile.get(section), label)


def _section(given: Any, layers: Layers, path: tuple[str, ...], profile: Any, label: str) -> Iterator[Value]:
    name = given.name if isinstance(given, Chosen) else None
    for key, value in _keys(given):
        written = layers.find(*path, *key, name=name)
        of_profile = _at(profile, key) if profile is not None else (False, None)
        dotted = ".".join((*path, *key))
        if written:
            yield Value(dotted, written[1], written[0])
        elif of_profile[0]:
            yield Value(dotted, of_profile[1], label)
        else:
            yield Value(dotted, value, _of_csv(layers, path) or DEFAULT)


def _keys(given: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the keys of a section below its own, and their values; a single value is its section's only key."""
    if isinstance(given, Chosen):
        yield ("name",), given.name
        yield from (((key,), value) for key, value in given.args.items() if value is not None)
    elif hasattr(given, "model_dump"):
        table = given.model_dump()
        for key, value in table.items():
            if isinstance(value, Mapping) and "name" in value:
                yield (key,), value["name"] if len(value) == 1 else value
            elif value is not None:
                yield (key,), value
    else:
        yield (), given


def of_block(given: FleetBlock, section: str) -> bool:
    """Return whether a fleet block has such a section of its own, written or by its profile."""
    return getattr(given, section) is not None


def _profile(layers: Layers, block: int, given: FleetBlock) -> tuple[Mapping[str, Any], str]:
    """Return what the profile of a fleet block says, and how to call it; nothing if it has none."""
    found = layers.find("fleet", str(block), "profile")
    if found is None:
        return {}, ""
    plugins = {section: getattr(given, section) for section in ("network", "energy", "battery")}
    named = {section: {"name": plugin.name} for section, plugin in plugins.items() if plugin is not None}
    return device_profiles.find(found[1]).merged(named), f"profile {found[1]}"


def _of_csv(layers: Layers, path: Sequence[str]) -> str | None:
    """Return the name of the CSV file that has the fleet, if the path lies in it."""
    found = layers.find("fleet") if path[0] == "fleet" else None
    return str(found[1]) if found and isinstance(found[1], FileText) else None


def _at(table: Any, path: Sequence[str]) -> tuple[bool, Any]:
    """Return whether there is a value at a path of tables and lists, and that value."""
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
