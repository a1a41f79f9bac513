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

    Relative paths are meant from the folder of the file that holds them; those of a mapping or an override
    from the current folder. Raises ConfigError, one line that names the key or file at fault.
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
    """Return the file of a scenario, named from a folder; "edgesim:quickstart" is one that comes with edgesim.

    Raises ConfigError if edgesim has none of that name.
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

    The name of a table that is no file is "base".
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
    if isinstance(given, Mapping):
        found = [(_path_of(key, key), located(value, Path.cwd(), str(key))) for key, value in given.items()]
    else:
        found = [_parse_override(text) for text in ([given] if isinstance(given, str) else _texts_of(given))]
    # coarse ones first, so that "method.mu=1" before "method=fedprox" is not lost
    return sorted(found, key=lambda override: _depth(override[0]))


# --- files ------------------------------------------------------------------------------------------------


def _read_toml(path: Path, below: tuple[Path, ...]) -> dict[str, Any]:
    """Return the table of a file merged over those it extends; `below`: the files that led here."""
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
        yield _block(record, number, path, f"{path} line {line}")


def _block(row: Mapping[str, str], number: int, path: Path, where: str) -> FleetBlock:
    block: dict[str, Any] = {"name": f"block{number}"}
    cells = [(key.strip().split("."), cell.strip()) for key, cell in row.items() if cell.strip()]
    for keys, cell in sorted(cells, key=lambda item: _depth(item[0])):
        block = _replaced(block, keys, located(_value(cell), path.parent, f"{where}: {'.'.join(keys)}"))
    try:
        return FleetBlock.model_validate(with_profile(block))
    except ValidationError as error:
        raise ConfigError(f"{where}: {_one_line(error, block)}") from error
    except PydanticCustomError as error:
        raise ConfigError(f"{where}: {error.message()}") from error


# --- overrides --------------------------------------------------------------------------------------------


def _texts_of(given: Any) -> Sequence[str]:
    if isinstance(given, Sequence) and all(isinstance(each, str) for each in given):
        return given
    raise ConfigError(
        f"overrides: must be a list such as ['stop.rounds=3'] or a mapping such as {{'stop.rounds': 3}}, "
        f"got {quoted(given)}"
    )


def _parse_override(text: str) -> tuple[list[str], Any]:
    key, equals, value = text.partition("=")
    path = _path_of(key if equals else "", text)
    return path, located(_value(value.strip()), Path.cwd(), key.strip())


def _path_of(key: Any, override: Any) -> list[str]:
    """Return the keys of a dotted key. Raises ConfigError that names its override if it is none."""
    path = key.strip().split(".") if isinstance(key, str) else []
    if not path or not all(path) or len(path) > _LONGEST_PATH:
        raise ConfigError(f"override {quoted(override)}: write key=value, such as stop.rounds=3")
    return path


def _value(text: str) -> Any:
    """Return a text as the TOML value that it is, or else as a string: 5, true, [1, 2], 5 Mbit/s."""
    try:
        return parse_toml(f"value = {text}")["value"]
    except ValueError:
        return text


def _depth(path: Sequence[str]) -> int:
    return len(path) - (path[-1] == "name")


def _replaced(value: Any, path: Sequence[str], new: Any, above: str = "") -> Any:
    """Return a copy of nested tables and lists with the value at `path` replaced; missing tables are made."""
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
    """Return the first error as "network.up: what is wrong", and how many other keys are at fault, and which."""
    paths = [
        in_short(".".join(_keys(each["loc"], table, named=each["type"] in {"missing", "refused"})))
        for each in error.errors(include_url=False)
    ]
    others = [path for path in dict.fromkeys(paths) if path != paths[0]]  # a union complains once a member
    named = ", ".join([*others[:_OTHERS_NAMED], *(["..."] if len(others) > _OTHERS_NAMED else [])])
    more = f" (and {len(others)} more: {named})" if others else ""
    return f"{paths[0]}: {reason(error)}{more}".removeprefix(": ")


def _keys(location: Sequence[str | int], table: Any, *, named: bool) -> Iterator[str]:
    """Yield the keys of a location; pydantic mixes in the types of a union, which a user has not written.

    `named`: the last one may be a key that the table lacks.
    """
    for place, key in enumerate(location):
        table = as_table(table)
        if _holds(table, key):
            table = table[key]
            yield str(key)
        elif named and place == len(location) - 1 and not {"*", "["} & set(str(key)):
            yield str(key)


def _holds(table: Any, key: str | int) -> bool:
    if isinstance(table, list):
        return isinstance(key, int) and key < len(table)  # a pair may lack its second value
    return isinstance(table, Mapping) and key in table
