"""Data sets, networks and speeds that cells of a study share within a process."""

from __future__ import annotations

import json
from typing import Any

from edgesim.config.scenario import Scenario
from edgesim.execution.result_cache import ByteRows
from edgesim.learning.data.dataset import Dataset
from edgesim.runs.assembly import Assembly, Load, build_network, load_data
from edgesim.runs.host_time import HostSpeed, host_speed
from edgesim.runs.network import Network


class Common:
    """Cache of a data set, cost profiles of networks, and the training speed of this host."""

    def __init__(self, load: Load = load_data, rows: ByteRows | None = None) -> None:
        """`load`: function that loads a data set. `rows`: store of cached results; None: in files, see Answers."""
        self.rows = rows
        self._load = load
        self._wanted = text_of(None)  # key of the cached data set: the section of the scenario
        self._data: Dataset | Exception | None = None
        self._digest: str | None = None
        self._profiles: dict[str, Any] = {}
        self._speeds: dict[str, HostSpeed] = {}

    def load(self, scenario: Scenario) -> Dataset | None:
        """Return the data set of a scenario. If loading it failed, each call raises that error."""
        wanted = text_of(scenario.canonical()["data"])
        if wanted != self._wanted:
            self._wanted, self._data = wanted, None
            try:
                self._data = self._load(scenario)
                self._digest = None if self._data is None else self._data.digest
            except Exception as error:
                self._data = error
        if isinstance(self._data, Exception):
            raise self._data
        return self._data

    def digest(self, scenario: Scenario) -> str | None:
        """Return the digest of a scenario's data set, None without one. Raises as `load` does."""
        return None if self.load(scenario) is None else self._digest

    def build(self, scenario: Scenario, data: Dataset | None) -> Network:
        """Return the network of a scenario with its cost profile. Networks of one structure are measured once."""
        shape = None if data is None else (data.input_shape, data.classes, data.vocabulary)
        models = scenario.models
        if len(models) > 1:
            return build_network(scenario, data)
        wanted = text_of([models[0].table(), scenario.canonical()["objective"], shape, scenario.needs_kinds])
        network = build_network(scenario, data, self._profiles.get(wanted))
        self._profiles[wanted] = network.cost_profile
        return network

    def host_speed(self, parts: Assembly, jobs: int) -> HostSpeed:
        """Return the speed of this host for a scenario, measured once for all that train alike; `jobs`: of a round."""
        table = parts.scenario.canonical()
        models = [model.table() for model in parts.scenario.models]
        named = [table[key] for key in ("data", "objective", "training", "backend", "evaluation")]
        wanted = text_of([models, *named, jobs if parts.scenario.backend.value.stacks else None])
        if wanted not in self._speeds:
            self._speeds[wanted] = host_speed(parts, jobs)
        return self._speeds[wanted]


def text_of(value: object) -> str:
    """Return a text that is the same for equal values."""
    return json.dumps(value, sort_keys=True)
