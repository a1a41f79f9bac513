"""edgesim: federated learning at the edge, simulated with real training, simulated time and an energy ledger."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edgesim.config.scenario import Scenario
    from edgesim.reports.load import Run

__all__ = ["Scenario", "load", "open", "run"]


def __getattr__(name: str) -> Any:
    """Return what is loaded when it is first asked for, as it takes a while that some commands need not wait."""
    if name == "Scenario":
        from edgesim.config.scenario import Scenario

        return Scenario
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def load(source: str | Path | Mapping[str, Any] | Scenario, overrides: Sequence[str] = ()) -> Scenario:
    """Return the scenario of a TOML file, a mapping or an object, with `key=value` overrides. Raises ConfigError."""
    from edgesim.config.load import load_scenario

    return load_scenario(source, overrides)


def run(source: Any, overrides: Sequence[str] = (), out: str | Path | None = None, overwrite: bool = False) -> Run:
    """Run a scenario (an object, a file or a mapping) and return its tables as pandas frames and its weights.

    `overrides` are laid over any of the three. `out` is the run folder to make; if None, a temporary one that is
    removed when the returned Run is dropped, at the latest when Python ends. `overwrite`: a run that is in the folder
    is replaced. Raises ConfigError or DataError.
    """
    from edgesim.simulation.run import simulate

    return simulate(load(source, overrides), None if out is None else Path(out), overwrite=overwrite)


def open(folder: str | Path) -> Run:
    """Return the run in a folder. Raises ConfigError if it is none."""
    from edgesim.reports.load import open_run

    return open_run(folder)
