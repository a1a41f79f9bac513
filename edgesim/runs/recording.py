"""Write a run to its folder: at its start, during the run, and at its end, with its date, host and process."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from edgesim.core.errors import ConfigError
from edgesim.core.model_state import MODEL
from edgesim.core.update import BASE, ModelState
from edgesim.records.manifest import FINISHED, RUNNING
from edgesim.records.schema import TABLES
from edgesim.records.writer import WEIGHTS, RunFolder
from edgesim.runs.objectives import metrics_of, written_metrics

if TYPE_CHECKING:
    from edgesim.runs.simulation import Simulation
    from edgesim.runs.training import RunningTraining


_PACKAGES = ("edgesim", "torch", "torchvision", "numpy", "simpy", "pandas", "pydantic")
_GIT = (
    *("git", "-c", "core.fsmonitor=false"),  # which may name a program that `git status` would run
    *("--no-optional-locks", "status", "--porcelain=v2", "--branch", "--untracked-files=no"),
)
_PATIENCE_S = 5


def provenance(command: Sequence[str] | None) -> dict[str, Any]:
    """Return `date` (UTC, ISO 8601), `command` (None: from Python), `git`, `versions` and `host_cpus`."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": None if command is None else list(command),
        "git": git_state(),
        "versions": {**{name: version(name) for name in _PACKAGES}, "python": platform.python_version()},
        "host_cpus": os.cpu_count(),
    }


def process() -> dict[str, Any]:
    """Return `pid` and `host` of this process."""
    return {"pid": os.getpid(), "host": platform.node()}


def git_state() -> dict[str, Any] | None:
    """Return the git `revision` of the current folder, and `dirty`: True if tracked files have changed since.

    Return None without git, repository or commit, or if git does not answer in time.
    """
    try:
        done = subprocess.run(_GIT, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=_PATIENCE_S)
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None
    lines = done.stdout.splitlines()
    revision = next((line.split()[-1] for line in lines if line.startswith("# branch.oid ")), "(initial)")
    if done.returncode or revision == "(initial)":
        return None
    return {"revision": revision, "dirty": any(not line.startswith("#") for line in lines)}


_EVERY_S = 3.0  # shortest host time between two writes during a run
_SHARE = 0.02  # largest share of the host time that these writes take


class Recording:
    """An observer that keeps a run folder up to date, and passes rounds on to another observer.

    `facts`: entries of the manifest that do not depend on the run, with the scenario's `warnings` among them.
    """

    def __init__(self, folder: RunFolder, observer: Any, facts: Mapping[str, Any], started_s: float) -> None:
        """`started_s`: start of the run, on the clock `time.perf_counter`."""
        self._folder = folder
        self._observer = observer
        self._facts = facts
        self._started_s = started_s
        self._wrote_s = time.perf_counter()
        self._wait_s = _EVERY_S
        self._simulation: Simulation | None = None

    def begin(self, simulation: Simulation) -> None:
        """Create the folder, unless the run continues in an existing one, which holds more than an empty one."""
        self._simulation = simulation
        if self._folder.replaces or not self._folder.path.exists():
            self.write(RUNNING)
        for each in simulation.trainings:
            each.releasing.folder = self._folder

    def round_closed(self, info: Mapping[str, Any]) -> None:
        """Tell the observer, which may ask for the state of the fleet, and write the run if it is time to."""
        assert self._simulation is not None
        self._observer.round_closed({**info, "warnings": self._warnings(), "now": self._simulation.now})
        now_s = time.perf_counter()
        if now_s - self._wrote_s < self._wait_s:
            return
        with suppress(ConfigError):  # such as a full disk: the last write raises it if it persists
            self.write(RUNNING)
        self._wrote_s = time.perf_counter()
        self._wait_s = max(_EVERY_S, (self._wrote_s - now_s) / _SHARE)

    def _warnings(self) -> Sequence[str]:
        """Return the warnings of the backends, each once."""
        assert self._simulation is not None
        backends = [each.learner.backend for each in self._simulation.trainings]
        return list(dict.fromkeys(line for backend in backends for line in backend.warnings))

    def write(self, status: str, stop_reason: str | None = None) -> None:
        """Write the state of the run; the tables of an unfinished run end with the last closed round.

        If there is no room for the weights, the tables are written without them. Raises ConfigError if writing fails.
        """
        assert self._simulation is not None
        simulation, finished = self._simulation, status == FINISHED
        trainings = simulation.trainings
        of_each = [
            {name: frame.assign(session=each.name) for name, frame in frames.items()}
            for each in trainings
            for frames in [each.released.frames(each.tables, committed_only=not finished)]
        ]
        tables: dict[str, pd.DataFrame] = {}
        for name in of_each[0]:  # empty frames are left out, as the types of their columns may differ
            frames = [each[name] for each in of_each]
            some = [frame for frame in frames if len(frame)] or frames[:1]
            tables[name] = pd.concat(some, ignore_index=True) if len(some) > 1 else some[0]
        tables["devices"] = pd.DataFrame(simulation.devices(finished))
        manifest = self._manifest(status, stop_reason)
        weights = {} if status == RUNNING else _weights(simulation, status)
        parts = {name: [part for each in trainings for part in each.released.parts[name]] for name in TABLES}
        try:
            self._folder.write(tables, manifest, weights, parts)
        except ConfigError as error:
            if not weights:
                raise
            self._folder.write(tables, {**manifest, "status": "failed", "stop_reason": str(error)}, {}, parts)
            raise ConfigError(f"{error}; the tables are kept, the weights are not") from error

    def _manifest(self, status: str, stop_reason: str | None) -> dict[str, Any]:
        assert self._simulation is not None
        simulation, scenario = self._simulation, self._simulation.scenario
        before_s = simulation.learner.memo.host_s
        of_each = {each.name: _entries_of(each) for each in simulation.trainings}
        first = of_each[simulation.trainings[0].name]
        not_kept = [each.learner.memo.not_kept for each in simulation.trainings if each.learner.memo.not_kept]
        several: dict[str, Any] = {}
        if scenario.session:
            all_known = [told["known"] for told in of_each.values()]
            since = [known["computed_from"] for known in all_known if known["computed_from"] is not None]
            reasons = {name: told["stop_reason"] for name, told in of_each.items() if told["stop_reason"]}
            several = {
                "sessions": of_each,
                "stop_reason": stop_reason or "; ".join(f"{name}: {reason}" for name, reason in reasons.items()),
                "gave_up": any(told["gave_up"] for told in of_each.values()),
                "rounds": sum(told["rounds"] for told in of_each.values()),
                "known": {
                    **{name: sum(known[name] for known in all_known) for name in ("answers", "computed", "jobs")},
                    "computed_from": min(since, default=None),
                },
                "forward_macs": None,
                "model": None,
            }
        return {
            "name": scenario.name,
            "scenario": scenario.canonical(),
            "digest": scenario.digest(),
            "seed": scenario.seed,
            "currency": scenario.prices and scenario.prices.currency,
            **{name: value for name, value in first.items() if name not in ("scenario", "totals")},
            "status": status,
            "stop_reason": stop_reason or first["stop_reason"],
            "totals": simulation.totals,
            "host_s": before_s + time.perf_counter() - self._started_s,
            **several,
            **self._facts,
            "warnings": [*self._facts["warnings"], *self._warnings(), *not_kept],
            **({"process": process(), "now": simulation.now()} if status == RUNNING else {}),
        }


def _entries_of(training: RunningTraining) -> dict[str, Any]:
    """Return the manifest's entries about a training; for a session also its scenario, as if it were the only one."""
    scenario, rounds, process = training.parts.scenario, training.rounds, training.process
    learner, memo = training.learner, training.learner.memo
    own: dict[str, Any] = {}
    if scenario.session:
        totals = process.totals if process is not None else None
        own = {
            "scenario": scenario.canonical(),
            "totals": totals and {"sim_time_s": process and process.ended_s, **totals._asdict()},
        }
    return {
        **own,
        "goal": scenario.objective.value.goal,
        "metrics": {name: metrics_of(scenario)[name] for name in written_metrics(scenario)},
        "charged_as": scenario.cost.value.charged_as,
        "model": None if scenario.app else training.parts.setting.cost_profile.sizes._asdict(),
        "stop_reason": rounds.stop_reason,
        "gave_up": rounds.gave_up,
        "rounds": rounds.settled,
        "diverged": rounds.divergence.found,
        "forward_macs": training.session.trained.forward_macs,
        "known": {  # results found in the cache, and those computed in this run
            "answers": memo.known,
            "computed": memo.found,
            "computed_from": memo.found_from,
            "jobs": learner.graph.jobs,
        },
    }


def _weights(simulation: Simulation, status: str) -> dict[str, dict[str, np.ndarray]]:
    """Return the weights to keep, of a session under names that begin with its own.

    For an unfinished run nothing is computed to get weights.
    """
    wanted = simulation.scenario.weights
    found: dict[str, dict[str, np.ndarray]] = {}
    for training in simulation.trainings:
        learner, before = training.learner, f"{training.name}." if simulation.scenario.session else ""
        saved = learner.saved_models() if learner.trains else {}
        for which in (which for which in WEIGHTS if which in saved and wanted in (which, "both")):
            if status == FINISHED or learner.memo.has_weights(saved[which]):
                arrays = learner.memo.weights(saved[which], learner.graph, flat)
                from edgesim.learning.models.build import base_of  # loads torch

                base = base_of(training.parts.module)
                is_moved = arrays.keys() & base.keys()  # in part, by the method; `init_from` wants the whole
                found[f"{before}{which}"] = {**flat({BASE: base}), **arrays} if is_moved else arrays
    return found


def flat(model: ModelState) -> dict[str, np.ndarray]:
    """Return the tensors of a model by their names in its state dict, without those that a method adds.

    Those of the base become float32, because NumPy has no bfloat16.
    """
    own = {name: tensor.cpu().numpy() for kind in MODEL for name, tensor in model.get(kind, {}).items()}
    return {**own, **{name: tensor.cpu().float().numpy() for name, tensor in model.get(BASE, {}).items()}}
