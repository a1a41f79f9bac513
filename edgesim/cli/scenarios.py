"""Commands about scenario files: `new`, `validate`, `show` and `estimate`."""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Mapping, Sequence
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgesim.cli.options import AsJson, Draws, ScenarioFile, check_known
from edgesim.cli.printing import (
    print_frame,
    print_json,
    print_note,
    print_prose,
    print_table,
    records,
    warn,
    without_silent,
)
from edgesim.core.errors import ConfigError
from edgesim.reports.format import heading, texts

if TYPE_CHECKING:
    from edgesim.config.origin import Layers
    from edgesim.config.scenario import Scenario

USUAL = "quickstart"
_MOST_BLOCKS = 20  # of a fleet are printed; JSON has all
_SECTIONS = ("method", "protocol", "selection", "training", "cost", "backend", "stop")
_ENDS = ("low", "median", "high")
_COLUMNS = {"key": "key", "value": "value", "from": "from"}


def new(
    name: Annotated[Path | None, typer.Argument(metavar="NAME", help="The folder to create.")] = None,
    template: Annotated[str, typer.Option(help="The template to copy. --list shows all.")] = USUAL,
    show_list: Annotated[bool, typer.Option("--list", help="List the templates and create nothing.")] = False,
) -> None:
    """Create a folder with a scenario and a study that run as they are. Comments mark the numbers to change."""
    from edgesim.files.atomic import growing_file

    def first_sentence(file: Traversable) -> str:
        line = file.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
        return re.split(r"(?<=[.?]) ", line)[0]

    known = templates()
    if show_list:
        rows = [
            {"template": each}
            | {file: first_sentence(folder.joinpath(f"{file}.toml")) for file in ("scenario", "study")}
            for each, folder in known.items()
        ]
        print_table(rows, {"template": "template", "scenario": "what it is", "study": "what its study asks"})
        return
    if name is None:
        raise ConfigError("new: needs the name of a folder, or --list")
    check_known("--template", template, known)
    if name.exists() or name.is_symlink():
        raise ConfigError(f"{name}: exists already; choose another name")
    growing = growing_file(name.absolute())
    try:
        growing.parent.mkdir(parents=True, exist_ok=True)
        growing.mkdir()
        for file in known[template].iterdir():
            (growing / file.name).write_bytes(file.read_bytes())
        growing.rename(name)
    except OSError as error:
        raise ConfigError(f"{name}: cannot be created: {error.strerror}") from error
    finally:
        shutil.rmtree(growing, ignore_errors=True)
    print(f"{name}: {template}; next:")
    print(f"  cd {name}                       # runs are written here too")
    print("  edgesim run scenario.toml         # one run, with its tables")
    print("  edgesim study run study.toml      # several runs, for the question in its first line")
    print("  edgesim study table study.toml")


def templates() -> dict[str, Traversable]:
    """Return the folders of the templates by their names, the usual one first."""
    folders = {each.name: each for each in resources.files("edgesim.config.templates").iterdir() if each.is_dir()}
    names = [USUAL, *sorted(name for name in folders if name != USUAL and not name.startswith("_"))]
    return {name: folders[name] for name in names}


def validate(file: ScenarioFile) -> None:
    """Build a scenario without training. Warn about keys that have no effect or look like mistakes."""
    warnings = checked(file.scenario, file.overrides)[2]
    print(f"{file.scenario}: ok")
    warn(warnings)


def checked(file: Path, overrides: Sequence[str]) -> tuple[Scenario, Layers, list[str]]:
    """Return a scenario with all its parts built once, the layers of its file, and the warnings about it.

    Raises ConfigError or DataError if it cannot be run.
    """
    from edgesim.config.load import load_scenario
    from edgesim.config.origin import Layers
    from edgesim.runs.simulation import check_all
    from edgesim.runs.warnings import of_parts, of_text

    scenario, layers = load_scenario(file, overrides), Layers.of(file, overrides)
    return scenario, layers, [*of_text(scenario, layers), *of_parts(scenario, check_all(scenario))]


def show(file: ScenarioFile, as_json: AsJson = False) -> None:
    """Show the effective values of a scenario and their origin. Warn as `validate` does."""
    from edgesim.config.origin import effective

    scenario, layers, warnings = checked(file.scenario, file.overrides)
    blocks: list[dict[str, Any]] = [
        {"kind": block.name, "values": [value._asdict() for value in effective(scenario, layers, i)]}
        for i, block in enumerate(scenario.fleet)
    ]
    rest = _written_values(scenario, layers)
    if as_json:
        print_json({"fleet": blocks, "scenario": rest, "warnings": warnings})
        return
    for i, block in enumerate(blocks[:_MOST_BLOCKS]):
        print_table(map(_row, block["values"]), _COLUMNS, f"fleet.{i}: {block['kind']}")
    if len(blocks) > _MOST_BLOCKS:
        print_note(f"{len(blocks) - _MOST_BLOCKS} more fleet blocks; --json has them all")
    print_table(map(_row, rest), _COLUMNS, "all devices")
    warn(warnings)


def _written_values(scenario: Scenario, layers: Layers) -> list[dict[str, Any]]:
    """Return names and written keys of the sections beside the fleet, and the default names of other parts."""
    table, rows = scenario.canonical(), []
    sections: list[tuple[tuple[str, ...], dict[str, Any], str | None]] = []
    for section in _SECTIONS:
        named = {"name": None} if "name" in table[section] else {}
        sections.append(((section,), named | table[section], table[section].get("name")))
    sections += [(("session", str(place)), each, None) for place, each in enumerate(table.get("session", ()))]
    for path, values, name in sections:
        for key, value in values.items():
            found = layers.find(*path, key, name=name)
            if found or key == "name":
                where, written = found or ("default", value)
                rows.append({"key": ".".join((*path, key)), "value": written, "origin": where})
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


def estimate(
    file: ScenarioFile,
    as_json: AsJson = False,
    intervals: Draws = None,
    backends: Annotated[
        bool, typer.Option("--backends", help="Also measure how long the run takes with other backends.")
    ] = False,
) -> None:
    """Estimate FLOPs, bytes, seconds and joules of the jobs of each device kind, and host resources.

    --intervals: also repeat the estimate with draws of the errors of the devices' clocks.
    """
    from edgesim.config.load import load_scenario
    from edgesim.runs.host_memory import Loaded

    scenario = load_scenario(file.scenario, file.overrides)
    without_torch = Loaded.here()  # as much as a run that trains nothing
    from edgesim.runs.estimate import estimate as estimated

    loaded = Loaded.here() if scenario.backend.value.trains else without_torch
    found = estimated(scenario, intervals or 0, backends, loaded)
    blocks, totals, spread = found.blocks, found.totals, found.spread_blocks
    if as_json:
        ends = {name: ends._asdict() for name, ends in found.spread_totals.items()}
        more: dict[str, Any] = (
            {} if spread is None else {"intervals": {"draws": intervals, "blocks": records(spread), "totals": ends}}
        )
        memory = [fit.facts() for fit in found.memory]
        if found.backends:
            more["backends"] = [each._asdict() for each in found.backends]
        print_json({"blocks": records(blocks), "totals": totals, "memory": memory, "notes": list(found.notes), **more})
        return
    print_frame(blocks if blocks["link_j"].any() else blocks.drop(columns="link_j"), "one job of each kind of device")
    print_table([totals], without_silent({name: heading(name) for name in totals}, [totals]), "the whole run")
    if found.memory:
        print_prose("\n".join(["memory of a device at the peak of training", *(fit.line() for fit in found.memory)]))
    for note in found.notes:
        print(note)
    if found.backends:
        rows = [each._asdict() for each in found.backends]
        headings = {"backend": "backend", "host_s": "host", "note": "note"}
        print_table(rows, without_silent(headings, rows), "the run on this host, by backend")
    if spread is not None:
        columns = {"of": "of", "column": "column", "low": "5 %", "median": "median", "high": "95 %"}
        drawn = []
        for row in records(spread):
            of = f"a job of {row['kind']}" + (f", {row['submodel']}" if row["submodel"] != "full" else "")
            drawn += [(of, name, [row[f"{name}_{end}"] for end in _ENDS]) for name in ("seconds", "joules")]
        drawn += [("the whole run", name, [*ends]) for name, ends in found.spread_totals.items()]
        rows = [
            {"of": of, "column": heading(name)} | dict(zip(_ENDS, texts(name, values), strict=True))
            for of, name, values in drawn
            if values[0] != values[-1]
        ]
        print_table(rows, columns, f"90 % intervals over {intervals} draws of the clocks' errors", keys=2)
