"""Reads scenario files: TOML with `extends`, overrides from the command line, fleets from CSV."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from pydantic import ValidationError
from pydantic_core import PydanticCustomError

from edgesim.config.device_profiles import with_profile
from edgesim.config.plugin_fields import as_table
from edgesim.config.plugins import meant
from edgesim.config.scenario import FleetBlock, Scenario
from edgesim.config.toml_file import FileText, located, merged, parse_toml, read_toml
from edgesim.config.units import reason
from edgesim.core.errors import ConfigError
from edgesim.files.reading import csv_records, in_short, quoted

# "key=value", several of them, or values by key, such as {"stop.rounds": 3}.
Overrides: TypeAlias = str | Sequence[str] | Mapping[str, Any]

_SHIPPED = Path(__file__).parent / "scenarios"
_LONGEST_PATH = 32  # keys of an override
_OTHERS_NAMED = 6  # keys at fault besides the first


def load_scenario(source: str | Path | Mapping[str, Any] | Scenario, overrides: Overrides = ()) -> Scenario:
    """Return the scenario of a TOML file, a mapping or an object, with overrides applied.

    Relative paths start at the folder of their file. Paths in a mapping or an override start at the current folder.
    Raises ConfigError, one line that names the key or file at fault.
    """
    if isinstance(source, Scenario):
        source = source.canonical()
    if isinstance(source, Mapping):
        table = _extended(located(source, Path.cwd(), ""), ())
    else:
        table = _read_toml(scenario_file(source), ())
        if "base" in table and table.keys() & {"axes", "columns"}:
            raise ConfigError(f"{source}: is a study, not a scenario; run it with: edgesim study run {source}")
    for path, value in read_overrides(overrides):
        table = _replaced(table, path, value)
    if isinstance(table.get("fleet"), FileText):
        table["fleet"] = list(_read_fleet(table["fleet"].path()))
    try:
        return Scenario.model_validate(table)
    except ValidationError as error:
        raise ConfigError(_one_line(error, table)) from error


def scenario_file(name: str | Path, folder: Path = Path()) -> Path:
    """Return the file of a scenario, named from a folder. "edgesim:quickstart" is a scenario that edgesim ships.

    Raises ConfigError if edgesim ships none of that name.
    """
    package, colon, own = str(name).partition(":")
    if not colon or package != "edgesim":
        return folder / name
    shipped = {file.stem: file for file in sorted(_SHIPPED.glob("*.toml"))}
    if own not in shipped:
        known = ", ".join(f"edgesim:{each}" for each in shipped)
        raise ConfigError(f"{in_short(name)}: edgesim has no such scenario{meant(own, shipped)} (known: {known})")
    return shipped[own]


def read_layers(source: Path | Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Return a scenario and the files that it extends, each by name with its own table alone, the weakest first.

    A table that comes from no file is called "base".
    """
    layers: list[tuple[str, dict[str, Any]]] = []
    source = scenario_file(source) if isinstance(source, Path) else source
    while True:
        if isinstance(source, Path):
            name, table = source.name, located(read_toml(source), source.resolve().parent, "")
        else:
            name, table = "base", located(source, Path.cwd(), "")
        layers.insert(0, (name, table))
        if "extends" not in table:
            return layers
        source = _extended_file(table["extends"])


def read_overrides(given: Overrides) -> list[tuple[list[str], Any]]:
    """Return path and value of overrides such as "stop.rounds=3", in their order of effect. Raises ConfigError."""
    found: list[tuple[list[str], Any]] = []
    texts = [given] if isinstance(given, str) else given
    if isinstance(texts, Mapping):
        found = [(_path_of(key, key), located(value, Path.cwd(), str(key))) for key, value in texts.items()]
    elif not isinstance(texts, Sequence) or not all(isinstance(each, str) for each in texts):
        raise ConfigError(
            f"overrides: must be a list such as ['stop.rounds=3'] or a mapping such as {{'stop.rounds': 3}}, "
            f"got {quoted(texts)}"
        )
    else:
        for text in texts:
            key, equals, value = text.partition("=")
            path = _path_of(key if equals else "", text)
            found.append((path, located(_value(value.strip()), Path.cwd(), key.strip())))
    # coarse keys first, so that "method=fedprox" does not erase an earlier "method.mu=1"
    return sorted(found, key=lambda override: _depth(override[0]))


# --- files ------------------------------------------------------------------------------------------------


def _read_toml(path: Path, below: tuple[Path, ...]) -> dict[str, Any]:
    """Return the table of a file merged over the files that it extends. `below`: the files that led here."""
    table = read_toml(path)
    folder = path.resolve().parent
    return _extended(located(table, folder, ""), (*below, path.resolve()))


def _extended(table: dict[str, Any], files: tuple[Path, ...]) -> dict[str, Any]:
    base = table.pop("extends", None)
    if base is None:
        return table
    if not isinstance(base, FileText):
        raise ConfigError(f"extends: must be the name of a scenario file, got {quoted(base)}")
    path = _extended_file(base)
    if path in files:
        chain = " -> ".join(file.name for file in (*files, path))
        raise ConfigError(f"extends: {chain} never ends")
    return merged(_read_toml(path, files), table)


def _extended_file(base: FileText) -> Path:
    return scenario_file(base) if base.startswith("edgesim:") else base.path()


def _read_fleet(path: Path) -> Iterator[FleetBlock]:
    """Yield a block for each row of a CSV file whose header has the dotted keys of a block."""
    header, records = csv_records(path, ConfigError)
    if len(set(header)) < len(header) or not all(header):
        found = in_short(", ".join(header))
        raise ConfigError(f"{path}: the header needs distinct, non-empty names, got {found}")
    for number, (line, record) in enumerate(records):
        where = f"{path} line {line}"
        block: dict[str, Any] = {"name": f"block{number}"}
        cells = [(key.strip().split("."), cell.strip()) for key, cell in record.items() if cell.strip()]
        for keys, cell in sorted(cells, key=lambda item: _depth(item[0])):
            block = _replaced(block, keys, located(_value(cell), path.parent, f"{where}: {'.'.join(keys)}"))
        try:
            yield FleetBlock.model_validate(with_profile(block))
        except ValidationError as error:
            raise ConfigError(f"{where}: {_one_line(error, block)}") from error
        except PydanticCustomError as error:
            raise ConfigError(f"{where}: {error.message()}") from error


# --- overrides --------------------------------------------------------------------------------------------


def _path_of(key: Any, override: Any) -> list[str]:
    """Return the keys of a dotted key. Raises ConfigError that names the override if the key is not a dotted key."""
    path = key.strip().split(".") if isinstance(key, str) else []
    if not path or not all(path) or len(path) > _LONGEST_PATH:
        raise ConfigError(f"override {quoted(override)}: write key=value, such as stop.rounds=3")
    return path


def _value(text: str) -> Any:
    """Return the TOML value of a text, or the text itself if it is not TOML: 5, true, [1, 2], 5 Mbit/s."""
    try:
        return parse_toml(f"value = {text}")["value"]
    except ValueError:
        return text


def _depth(path: Sequence[str]) -> int:
    return len(path) - (path[-1] == "name")


def _replaced(value: Any, path: Sequence[str], new: Any, above: str = "") -> Any:
    """Return a copy of nested tables and lists with the value at `path` replaced. Missing tables are created."""
    if not path:
        return new
    key, *rest = path
    here = f"{above}.{key}".lstrip(".")
    if isinstance(value, list):
        if key not in map(str, range(len(value))):
            raise ConfigError(f"{in_short(here)}: the list has {len(value)}, numbered from 0")
        return [_replaced(old, rest, new, here) if str(i) == key else old for i, old in enumerate(value)]
    table = as_table(value) if isinstance(value, str) else value
    table = table if isinstance(table, Mapping) else {}
    if rest == ["name"]:
        return merged(table, {key: {"name": new}})
    return {**table, key: _replaced(table.get(key), rest, new, here)}


# --- errors -----------------------------------------------------------------------------------------------


def _one_line(error: ValidationError, table: Any) -> str:
    """Return the first error as "network.up: fault", with the number and the names of the other keys at fault."""
    paths: list[str] = []
    for each in error.errors(include_url=False):
        # pydantic mixes the types of a union into its locations. Only keys of the table are the user's, and the last
        # key may be one that the table lacks.
        location, inner, keys = each["loc"], table, []
        for place, key in enumerate(location):
            inner = as_table(inner)
            in_list = isinstance(inner, list) and isinstance(key, int) and key < len(inner)
            in_table = isinstance(inner, Mapping) and key in inner
            last = each["type"] in {"missing", "refused"} and place == len(location) - 1
            if in_list or in_table:
                inner = inner[key]
                keys.append(str(key))
            elif last and not {"*", "["} & set(str(key)):
                keys.append(str(key))
        paths.append(in_short(".".join(keys)))
    others = [path for path in dict.fromkeys(paths) if path != paths[0]]  # each member of a union has an error
    named = ", ".join([*others[:_OTHERS_NAMED], *(["..."] if len(others) > _OTHERS_NAMED else [])])
    more = f" (and {len(others)} more: {named})" if others else ""
    return f"{paths[0]}: {reason(error)}{more}".removeprefix(": ")
