"""Writes a run to its folder: at its start, as it goes on, and at its end, with when, where and by whom it was made."""

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
from edgesim.core.update import ModelState
from edgesim.records.manifest import FINISHED, RUNNING
from edgesim.records.schema import TABLES
from edgesim.records.writer import WEIGHTS, RunFolder
from edgesim.runs.objectives import metrics_of, written_metrics

if TYPE_CHECKING:
    from edgesim.runs.simulate import Simulation
    from edgesim.runs.training import Training


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
    """Return who this is: `pid` and `host`."""
    return {"pid": os.getpid(), "host": platform.node()}


def git_state() -> dict[str, Any] | None:
    """Return `revision` of the current folder and whether it is `dirty`: tracked files have changed since.

    None where there is no git, no repository, no commit yet, or no answer in time.
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


_EVERY_S = 3.0  # of the host's time, at the most often
_SHARE = 0.02  # of the host's time that writing takes on the way, at most


class Recording:
    """An observer that keeps a run folder up to date, and tells another observer of rounds.

    `facts`: what the manifest says of the run, whatever becomes of it; `warnings` among them, about its scenario.
    """

    def __init__(self, folder: RunFolder, observer: Any, facts: Mapping[str, Any], started_s: float) -> None:
        """`started_s`: when the run started, on the clock `time.perf_counter`."""
        self._folder = folder
        self._observer = observer
        self._facts = facts
        self._started_s = started_s
        self._wrote_s = time.perf_counter()
        self._wait_s = _EVERY_S
        self._simulation: Simulation | None = None

    def begin(self, simulation: Simulation) -> None:
        """Make the folder, unless the run goes on with one that is there: it is better than an empty one."""
        self._simulation = simulation
        if self._folder.replaces or not self._folder.path.exists():
            self.write(RUNNING)
        for each in simulation.trainings:
            each.releasing.folder = self._folder

    def round_closed(self, info: Mapping[str, Any]) -> None:
        """Tell the observer, which may ask what the fleet does now, and write what there is if it is time to."""
        assert self._simulation is not None
        self._observer.round_closed({**info, "warnings": self._warnings(), "now": self._simulation.now})
        now_s = time.perf_counter()
        if now_s - self._wrote_s < self._wait_s:
            return
        with suppress(ConfigError):  # such as a full disk: at its end the run says so, if that is still so
            self.write(RUNNING)
        self._wrote_s = time.perf_counter()
        self._wait_s = max(_EVERY_S, (self._wrote_s - now_s) / _SHARE)

    def _warnings(self) -> Sequence[str]:
        """Return what the backend has to say, if it says anything."""
        assert self._simulation is not None
        backends = [each.learner.backend for each in self._simulation.trainings]
        return list(dict.fromkeys(line for backend in backends for line in getattr(backend, "alone", ())))

    def write(self, status: str, stop_reason: str | None = None) -> None:
        """Write the state of the run; the tables of one that has not finished end with the last closed round.

        If there is no room for the weights the tables are written without. Raises ConfigError if it cannot be written.
        """
        assert self._simulation is not None
        tables, manifest = self._tables(status), self._manifest(status, stop_reason)
        weights = {} if status == RUNNING else _weights(self._simulation, status)
        trainings = self._simulation.trainings
        parts = {name: [part for each in trainings for part in each.released.parts[name]] for name in TABLES}
        try:
            self._folder.write(tables, manifest, weights, parts)
        except ConfigError as error:
            if not weights:
                raise
            self._folder.write(tables, {**manifest, "status": "failed", "stop_reason": str(error)}, {}, parts)
            raise ConfigError(f"{error}; the tables are kept, the weights are not") from error

    def _tables(self, status: str) -> dict[str, pd.DataFrame]:
        assert self._simulation is not None
        simulation, finished = self._simulation, status == FINISHED
        of_each = [
            {name: frame.assign(session=each.name) for name, frame in frames.items()}
            for each in simulation.trainings
            for frames in [each.released.frames(each.tables, committed_only=not finished)]
        ]
        frames = {name: _stacked([each[name] for each in of_each]) for name in of_each[0]}
        return {**frames, "devices": pd.DataFrame(simulation.devices(finished))}

    def _manifest(self, status: str, stop_reason: str | None) -> dict[str, Any]:
        assert self._simulation is not None
        simulation, scenario = self._simulation, self._simulation.scenario
        before_s = simulation.learner.memo.host_s
        of_each = {each.name: _told_of(each) for each in simulation.trainings}
        first = of_each[simulation.trainings[0].name]
        not_kept = [each.learner.memo.not_kept for each in simulation.trainings if each.learner.memo.not_kept]
        several: dict[str, Any] = {}
        if scenario.session:
            several = {
                "sessions": of_each,
                "stop_reason": stop_reason or _reasons(of_each),
                "rounds": sum(told["rounds"] for told in of_each.values()),
                "known": _known_of_all([told["known"] for told in of_each.values()]),
                "forward_macs": None,
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


def _told_of(training: Training) -> dict[str, Any]:
    """Return what the manifest says of a training; of a session also the scenario of which it would be the only one."""
    scenario, rounds = training.parts.scenario, training.rounds
    process = training.process
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
        "charged_as": getattr(scenario.cost.value, "charged_as", None),
        "stop_reason": rounds.stop_reason,
        "rounds": rounds.settled,
        "diverged": rounds.divergence.found,
        "forward_macs": training.session.trained.forward_macs,
        "known": _known(training),
    }


def _reasons(of_each: Mapping[str, Mapping[str, Any]]) -> str:
    """Return why sessions have ended, those that have."""
    return "; ".join(f"{name}: {told['stop_reason']}" for name, told in of_each.items() if told["stop_reason"])


def _stacked(frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Return the rows of several frames; of empty ones nothing is taken, as their types may be others."""
    some = [frame for frame in frames if len(frame)] or list(frames[:1])
    return pd.concat(some, ignore_index=True) if len(some) > 1 else some[0]


def _known(training: Training) -> dict[str, Any]:
    """Return what was computed for a training, and what was known from runs before it."""
    learner, memo = training.learner, training.learner.memo
    return {
        "answers": memo.known,
        "computed": memo.found,
        "computed_from": memo.found_from,
        "jobs": learner.graph.jobs,
    }


def _known_of_all(each: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the same of all trainings together."""
    sums = {name: sum(known[name] for known in each) for name in ("answers", "computed", "jobs")}
    since = [known["computed_from"] for known in each if known["computed_from"] is not None]
    return {**sums, "computed_from": min(since, default=None)}


def _weights(simulation: Simulation, status: str) -> dict[str, dict[str, np.ndarray]]:
    """Return the weights to keep, those of sessions under their names too; of a run that has not finished nothing is
    computed for them."""
    wanted = simulation.scenario.weights
    found: dict[str, dict[str, np.ndarray]] = {}
    for training in simulation.trainings:
        learner, before = training.learner, f"{training.name}." if simulation.scenario.session else ""
        saved = learner.saved_models() if learner.trains else {}
        for which in (which for which in WEIGHTS if which in saved and wanted in (which, "both")):
            if status == FINISHED or learner.memo.has_weights(saved[which]):
                found[f"{before}{which}"] = learner.memo.weights(saved[which], learner.graph, flat)
    return found


def flat(model: ModelState) -> dict[str, np.ndarray]:
    """Return the tensors of a model under the names of its state dict; what a method adds to it is left out."""
    return {name: tensor.cpu().numpy() for kind in ("params", "buffers") for name, tensor in model[kind].items()}
