"""edgesim: federated learning at the edge, simulated with real training, simulated time and an energy ledger."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgesim.core.errors import ConfigError, DataError, EdgesimError
from edgesim.files.loaded_code import note_imports

if TYPE_CHECKING:
    from edgesim.config.load import Overrides
    from edgesim.config.scenario import Scenario
    from edgesim.reports.load import Run
    from edgesim.studies.in_python import Axis, StudyInPython

note_imports()

__all__ = ["ConfigError", "DataError", "EdgesimError", "Scenario", "load", "open", "run", "study"]


def __getattr__(name: str) -> Any:
    """Load `Scenario` on first use, because it takes time that some commands do not need to spend."""
    if name == "Scenario":
        from edgesim.config.scenario import Scenario

        return Scenario
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def load(source: str | Path | Mapping[str, Any] | Scenario, overrides: Overrides = ()) -> Scenario:
    """Return the scenario of a TOML file, a mapping or an object, with overrides applied. Raises ConfigError.

    `overrides`: a mapping such as `{"stop.rounds": 3}`, or texts such as `["stop.rounds=3"]`.
    """
    from edgesim.config.load import load_scenario

    return load_scenario(source, overrides)


def run(
    source: Any,
    overrides: Overrides = (),
    out: str | Path | None = None,
    overwrite: bool = False,
    on_round: Callable[[Mapping[str, Any]], None] | None = None,
) -> Run:
    """Run a scenario (an object, a file or a mapping) and return its tables as pandas frames and its weights.

    `overrides` are laid over any of the three, as for `load`. `out` is the run folder to make; if None, a temporary one
    that is removed when the returned Run is dropped, at the latest when Python ends. `overwrite`: a run that is in the
    folder is replaced. `on_round` is called after every round with round (how many are done), accuracy (None: not
    evaluated), now_s, energy_j, active_j (of it, what is above idle power) and more; what it raises ends the run, whose
    tables end there, with the status "failed". Raises ConfigError or DataError.
    """
    from edgesim.execution.preload import warm_up_for

    warm_up_for(source, overrides)
    from edgesim.runs.simulate import simulate
    from edgesim.runs.simulation import Telling

    observer = None if on_round is None else Telling(on_round)
    return simulate(load(source, overrides), None if out is None else Path(out), observer, overwrite=overwrite)


def study(
    base: str | Path | Mapping[str, Any] | Scenario,
    axes: Mapping[str, Axis] | None = None,
    columns: Sequence[str] = (),
    overrides: Overrides = (),
    *,
    search: Mapping[str, Any] | None = None,
    out: str | Path | None = None,
    name: str = "study",
) -> StudyInPython:
    """Return a study that can be run: a base scenario in all combinations of what its axes say, and columns of each.

    `base`: a scenario (a file, a mapping or an object), or a study file, which says all the rest itself. `axes`: for
    each axis values of the key that it is named after, such as `{"seed": range(3)}`, or labels with overrides, such as
    `{"method": {"fedavg": {}, "fedprox": {"method.name": "fedprox", "method.mu": 0.1}}}`. Overrides are a mapping, or
    texts "key=value". `columns`: as in study files; none: best accuracy, seconds, joules and bytes, also to the targets
    of the base. `search`: the section of that name of study files. `out`: the folder of the runs, which makes only
    those that are missing; None: a temporary one, removed when neither the result nor a run of it is held any more,
    and for a study file the folder that the command line takes. Raises ConfigError.
    """
    from edgesim.studies.in_python import make_study

    return make_study(base, axes, columns, overrides, search, out, name)


def open(folder: str | Path) -> Run:
    """Return the run in a folder. Raises ConfigError if it is none."""
    from edgesim.reports.load import open_run

    return open_run(folder)
