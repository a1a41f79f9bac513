"""Commands for Flower apps."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated

import typer

from edgesim.cli.options import Overrides, RunOutput, ScenarioFile
from edgesim.cli.run import default_folder, run
from edgesim.core.errors import ConfigError
from edgesim.files.reading import quoted

_FLEET = Path(__file__).parents[1] / "flower" / "fleet.toml"
_PAIR = re.compile(r"""\s*([\w.-]+)\s*=\s*("[^"]*"|'[^']*'|[^\s"']+)(?=\s|$)""")  # of --run-config


def run_app(
    folder: Annotated[Path, typer.Argument(metavar="APP", help="The folder of a Flower app, with its pyproject.toml.")],
    output: RunOutput,
    fleet: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Devices, links and powers (TOML). Default: ten boards and phones on Wi-Fi."),
    ] = None,
    run_config: Annotated[
        list[str] | None,
        typer.Option("--run-config", metavar="K=V", help="Values of the app's configuration, as for `flwr run`."),
    ] = None,
    price: Annotated[
        str, typer.Option(help="each: run every call to price it; first: only a device's first of a kind.")
    ] = "each",
    call_timeout: Annotated[
        str | None, typer.Option(metavar="TIME", help="Time of this host that one call may take, such as 5 min.")
    ] = None,
    host_seconds: Annotated[
        bool, typer.Option("--host-seconds", help="Price calls by their CPU seconds here, and not by their FLOPs.")
    ] = False,
    set_: Overrides = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Number of worker processes for calls.")] = None,
    out: Annotated[Path | None, typer.Option(help="Run folder. Default: runs/APP-FLEET-SEED and the changes.")] = None,
    live: Annotated[bool, typer.Option("--live", help="Show fleet, jobs, accuracy and energy live.")] = False,
) -> None:
    """Run a Flower app, unchanged, on simulated devices: seconds, joules and stragglers for its code as it is."""
    from edgesim.config.load import load_scenario  # loads pydantic

    config: dict[str, object] = {}
    for text in run_config or ():
        config |= _pairs(text)
    table: dict[str, object] = {"name": "flower", "path": str(folder.absolute()), "config": config, "price": price}
    if call_timeout is not None:
        table["call_timeout"] = call_timeout
    if host_seconds:
        table["host_seconds"] = True
    overrides = [f"app = {_inline(table)}", *(set_ or [])]
    fleet = fleet or _FLEET
    if out is None:
        scenario = load_scenario(fleet, overrides)
        changes = [*(run_config or ()), *(set_ or ())]
        out = default_folder(Path(folder.resolve().name), fleet.stem, scenario.seed, changes)
    run(ScenarioFile(scenario=fleet, set_=overrides), output, workers, out, None, live)


def _pairs(text: str) -> dict[str, object]:
    """Return the keys and values of a text such as 'num-server-rounds=5 lr=0.1'. Raises ConfigError."""
    found: dict[str, object] = {}
    at = 0
    while at < len(text.rstrip()):
        pair = _PAIR.match(text, at)
        if pair is None:
            raise ConfigError(f"--run-config: must be KEY=VALUE, several with spaces between, got {quoted(text[at:])}")
        key, value = pair.groups()
        try:
            found[key] = json.loads(value)
        except ValueError:
            found[key] = value.strip("\"'")
        at = pair.end()
    return found


def _inline(value: object) -> str:
    """Return a value as TOML in one line."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(key)} = {_inline(each)}" for key, each in value.items()) + " }"
    return json.dumps(value)
