"""An app of Flower as a scenario names it: `app = { name = "flower", path = "..." }`. Loads neither flwr nor torch."""

from __future__ import annotations

import importlib
import tomllib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from itertools import islice
from math import inf
from pathlib import Path
from typing import Any, Literal, NamedTuple

from edgesim.config.plugins import meant
from edgesim.config.toml_file import ScenarioPath
from edgesim.config.units import FlopsPerSecond, SecondsOrInf
from edgesim.core.app import App, AppClock, DeviceCode
from edgesim.core.errors import ConfigError
from edgesim.core.rng import Key
from edgesim.files.reading import in_short, quoted

_OLDEST = (1, 38)  # version of flwr
_NEEDED = 'app.name = "flower" needs flwr >= 1.38; pip install "edgesim[flower]"'
_NODES, _RUN, _SERVER = range(3)  # streams below the key of a run


class AppFolder(NamedTuple):
    """Entries of an app's pyproject.toml."""

    folder: Path
    serverapp: str  # "package.module:name"
    clientapp: str
    config: Mapping[str, Any]  # flat, with the names that apps use


@dataclass(frozen=True, kw_only=True)
class FlowerApp(App):
    """A Flower app in its folder, unchanged. Its ServerApp runs at the server and its ClientApp on every device."""

    path: ScenarioPath  # the folder that `flwr run` gets, with pyproject.toml
    config: Mapping[str, Any] = field(default_factory=dict)  # as --run-config: other values of [tool.flwr.app.config]
    price: Literal["each", "first"] = "each"  # no counterpart: a call is run to learn its price
    call_timeout: SecondsOrInf = inf  # of this host, after which a call fails; Flower has no such limit
    host_seconds: bool = False  # price a call by the CPU seconds of this host; False: by its FLOPs
    host_flops_per_s: FlopsPerSecond = 1e10  # FLOPs that a CPU second of this host counts for, with host_seconds

    def check(self) -> None:
        """Raise ConfigError if the folder holds no Flower app, or if keys of `config` are not the app's."""
        self._found()

    def preload(self) -> None:
        """Load flwr."""
        with suppress(ImportError, ConfigError):  # which `open` reports
            importlib.import_module("edgesim.flower.client")

    def open(self, devices: int, key: Key) -> tuple[DeviceCode, Callable[[AppClock], None]]:
        """Load the app. Nodes have 64-bit ids drawn from the key, and partitions by device, as in Flower's simulation.

        Raises ConfigError if flwr is missing or the app cannot be loaded.
        """
        try:
            from edgesim.flower.server import opened  # which loads flwr
        except ImportError as error:
            raise ConfigError(f"{_NEEDED} (this version lacks or needs: {error})") from error

        run_id = _wire_id(next(key.at(_RUN).words()))
        node_ids = tuple(map(_wire_id, islice(key.at(_NODES).words(), devices)))
        return opened(
            self._found(),
            run_id=run_id,
            node_ids=node_ids,
            seed=key.at(_SERVER).word(),
            overrides=_flat(self.config),
            call_timeout_s=self.call_timeout,
            host_flops_per_s=self.host_flops_per_s if self.host_seconds else None,
        )

    def _found(self) -> AppFolder:
        _check_flower()
        if self.call_timeout <= 0:
            raise ConfigError(f"app.call_timeout: must be above 0, got {self.call_timeout:g}")
        if self.host_flops_per_s <= 0:
            raise ConfigError(f"app.host_flops_per_s: must be above 0, got {self.host_flops_per_s:g}")
        found = app_folder(Path(self.path).expanduser())
        overrides = _flat(self.config)
        for name, value in overrides.items():
            if name not in found.config:
                known = ", ".join(sorted(found.config)) or "none"
                hint = meant(name, found.config) or f" (known: {known})"
                raise ConfigError(f"app.config: the app in {found.folder} has no key {quoted(name)}{hint}")
            if not isinstance(value, str | int | float | bool):
                raise ConfigError(f"app.config.{name}: must be a text, a number, true or false, got {in_short(value)}")
        return found._replace(config={**found.config, **overrides})


PLUGINS = {"flower": FlowerApp}


def _check_flower() -> None:
    """Raise ConfigError unless a supported version of flwr is installed."""
    try:
        found = version("flwr")
    except PackageNotFoundError as error:
        raise ConfigError(_NEEDED) from error
    if tuple(int(part) for part in found.split(".")[:2]) < _OLDEST:
        raise ConfigError(f"{_NEEDED} (found: {found})")


def _wire_id(word: int) -> int:
    """Return an id in [2**62, 2**63) from 64 bits. All such ids take the same bytes in messages."""
    return word >> 2 | 1 << 62


def app_folder(folder: Path) -> AppFolder:
    """Read the pyproject.toml of a Flower app. Raises ConfigError if it is missing or lacks an entry."""
    file = folder / "pyproject.toml"
    try:
        table = tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigError(f"app.path: {folder} has no pyproject.toml, so it is no Flower app") from error
    except (OSError, ValueError) as error:
        raise ConfigError(f"app.path: {file} cannot be read: {in_short(error)}") from error
    told = _table(table, file, "tool", "flwr", "app")
    components = _table(told, file, "components")

    def reference(part: str) -> str:
        found = components.get(part)
        if not isinstance(found, str) or found.count(":") != 1:
            raise ConfigError(f'{file}: [tool.flwr.app.components] must have {part} = "package.module:name"')
        return found

    serverapp, clientapp = reference("serverapp"), reference("clientapp")
    config = told.get("config", {})
    if not isinstance(config, dict):
        raise ConfigError(f"{file}: [tool.flwr.app.config] must be a table")
    return AppFolder(folder.resolve(), serverapp, clientapp, _flat(config))


def _table(table: Mapping[str, Any], file: Path, *path: str) -> Mapping[str, Any]:
    for name in path:
        found = table.get(name, {})
        if not isinstance(found, dict):
            raise ConfigError(f"{file}: {name} of [tool.flwr.app] must be a table")
        table = found
    return table


def _flat(config: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Return a configuration with names of nested tables joined by dots, as Flower gives it to apps."""
    found: dict[str, Any] = {}
    for name, value in config.items():
        found |= _flat(value, f"{before}{name}.") if isinstance(value, Mapping) else {f"{before}{name}": value}
    return found
