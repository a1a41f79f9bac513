"""What is to be done of a study: every cell that is missing is built once, and nothing is trained."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from edgesim.config.load import load_scenario
from edgesim.config.scenario import Scenario
from edgesim.core.errors import ConfigError
from edgesim.learning.data.dataset import Dataset
from edgesim.records.lock import is_held
from edgesim.simulation.assembly import Assembly, Network, build_network, load_data
from edgesim.simulation.estimate import estimate_of, host_flops_per_s
from edgesim.simulation.fingerprint import digest_of
from edgesim.simulation.run import check
from edgesim.studies.runs import Planned, fault_of

State: TypeAlias = Literal["done", "to run", "running", "bad"]


@dataclass(frozen=True)
class Outlook:
    """A cell, its stamp with the digest of its data, and whether it is done, is missing, or cannot be run.

    `fault`: why it is bad. `host_s` and `disk_bytes`: of a run that is missing; None: unknown, or not asked for.
    """

    planned: Planned
    state: State
    fault: str = ""
    host_s: float | None = None
    disk_bytes: int | None = None

    def told(self) -> dict[str, Any]:
        """Return what is to be told of the cell, by name."""
        return {name: getattr(self, name) for name in ("state", "fault", "host_s", "disk_bytes")}


def outlook(planned: Sequence[Planned], costs: bool = False) -> list[Outlook]:
    """Return what is to be done of cells, in their order; with `costs` also what that takes, in seconds and bytes.

    A cell that was run stays done where its data are no longer there, as nothing says that they have changed.
    """
    common = _Common()
    by_data = sorted(planned, key=lambda each: _text(each.scenario["data"]))  # only one data set is kept at a time
    found = {each.folder: _look(each, common, costs) for each in by_data}
    return [found[each.folder] for each in planned]


def bad(cells: Iterable[Outlook]) -> list[str]:
    """Return a line for each cell that cannot be run: its name and why."""
    return [f"{each.planned.cell.name}: {each.fault}" for each in cells if each.state == "bad"]


def _look(planned: Planned, common: _Common, costs: bool) -> Outlook:
    scenario = load_scenario(planned.scenario)
    fault = ""
    try:
        planned = replace(planned, stamp={**planned.stamp, "data": common.digest(scenario)})
    except Exception as error:
        fault = fault_of(error)
    if planned.is_done():
        return Outlook(planned, "done")
    if fault:
        return Outlook(planned, "bad", fault)
    try:
        parts = check(scenario, common.load, common.build)
        spent = _costs(parts, common) if costs else (None, None)
    except Exception as error:
        return Outlook(planned, "bad", fault_of(error))
    return Outlook(planned, "running" if is_held(planned.folder) else "to run", "", *spent)


def _costs(parts: Assembly, common: _Common) -> tuple[float | None, int | None]:
    try:
        totals = estimate_of(parts, common.flops_per_s).totals
    except ConfigError:  # it can be run, but would end before its first round
        return None, None
    minutes = totals["host_minutes"]
    return None if minutes is None else 60.0 * minutes, totals["disk_bytes"]


class _Common:
    """What the cells of a study have in common, made once: a data set, networks, and how fast this host trains them."""

    def __init__(self) -> None:
        self._wanted = _text(None)  # the data set that is kept, as scenarios have it
        self._data: Dataset | Exception | None = None
        self._digest: str | None = None
        self._networks: dict[str, Network] = {}
        self._speeds: dict[str, float] = {}

    def load(self, scenario: Scenario) -> Dataset | None:
        """Return the data set of a scenario. Raises what loading it raised, as often as it is asked."""
        wanted = _text(scenario.canonical()["data"])
        if wanted != self._wanted:
            self._wanted, self._data = wanted, None
            try:
                self._data = load_data(scenario)
                self._digest = None if self._data is None else digest_of(self._data)
            except Exception as error:
                self._data = error
        if isinstance(self._data, Exception):
            raise self._data
        return self._data

    def digest(self, scenario: Scenario) -> str | None:
        """Return the digest of a scenario's data set, None without one. Raises as `load` does."""
        return None if self.load(scenario) is None else self._digest

    def build(self, scenario: Scenario, data: Dataset | None) -> Network:
        """Return the network of a scenario and its cost profile; its weights may be those of another seed."""
        shape = None if data is None else (data.input_shape, data.classes)
        wanted = _text([scenario.canonical()["model"], shape])
        if wanted not in self._networks:
            self._networks[wanted] = build_network(scenario, data)
        return self._networks[wanted]

    def flops_per_s(self, parts: Assembly) -> float:
        """Return how fast this host trains the network of a scenario."""
        table = parts.scenario.canonical()
        wanted = _text([table[key] for key in ("model", "data", "training", "backend")])
        if wanted not in self._speeds:
            self._speeds[wanted] = host_flops_per_s(parts)
        return self._speeds[wanted]


def _text(value: object) -> str:
    return json.dumps(value, sort_keys=True)
