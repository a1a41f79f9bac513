"""Runs a scenario: puts world, engine, learner and tables together, and writes the run folder."""

from __future__ import annotations

import gc
import os
import platform
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from edgesim.analysis.critical_path import attributed
from edgesim.analysis.load import Run, open_run
from edgesim.assembly import Assembly, assemble
from edgesim.checkpoint import Checkpoint, NewRounds, ResumableLearner
from edgesim.config.scenario import Scenario
from edgesim.contracts import DELIVERED, Arr, Backend, Bundle, Learner
from edgesim.engine.batteries import FleetBatteries
from edgesim.engine.engine import Engine
from edgesim.engine.rounds import Observer, Rounds
from edgesim.learner import FederatedLearner
from edgesim.learning.build import bundle_of
from edgesim.learning.device import plain_torch
from edgesim.records.table import Table, new_tables
from edgesim.records.writer import MANIFEST, check_writable, write_run
from edgesim.rng import Key
from edgesim.world.ledger import COMPUTE, DOWN, UP, EnergyLedger

SERVER_ROW = -1
_YOUNG_OBJECTS = 100_000  # between two looks; Python's own default is 700
_PACKAGES = ("edgesim", "torch", "torchvision", "numpy", "simpy", "pandas", "pydantic")


class Silent:
    """An observer that shows nothing."""

    def round_closed(self, info: Mapping[str, Any]) -> None:
        """Show nothing."""

    def close(self) -> None:
        """Show nothing."""


@contextmanager
def seldom_collecting() -> Iterator[None]:
    """Let Python look for garbage cycles less often, and not in what exists by now, which is all of torch.

    An event loop makes and drops many objects, hardly any in cycles.
    """
    thresholds = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS, *thresholds[1:])
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()


class Simulation:
    """One run of an assembled scenario, from the first order to its tables."""

    def __init__(
        self, parts: Assembly, backend: Backend, observer: Observer, checkpoint: Checkpoint | None = None
    ) -> None:
        scenario = parts.scenario
        self.parts = parts
        self.tables: dict[str, Table] = new_tables()
        self.totals: Mapping[str, float] | None = None  # seconds, and what was spent in them, once the run has ended
        server = scenario.server
        batteries = FleetBatteries(parts.fleet)
        off_s = batteries.off_s if batteries else None
        fleet = parts.fleet
        sleeps = fleet.sleep_w != fleet.idle_w

        def asleep_s(now_s: float) -> Arr:
            return np.where(sleeps, parts.availability.off_s(now_s), 0.0)

        self.ledger = EnergyLedger(
            fleet.idle_w, server.idle, server.busy, off_s, fleet.sleep_w, asleep_s if sleeps.any() else None
        )
        self.engine = Engine(
            parts.fleet,
            parts.setting,
            self.ledger,
            self.tables,
            key=Key(scenario.seed),
            selection=scenario.selection.value,
            availability=parts.availability,
            batteries=batteries,
            shared=parts.shared,
            failures=parts.failures,
            peers=None if scenario.peers is None else scenario.peers.value,
        )
        first, tools = (bundle_of(parts.module), parts.make_tools()) if backend.trains else (None, None)
        method = scenario.method.value
        self.learner = FederatedLearner(method, backend, parts.setting, Key(scenario.seed), first, tools)
        self.resumable = ResumableLearner(self.learner, checkpoint) if checkpoint and backend.trains else None
        self.rounds = Rounds(
            self.engine,
            self.tables,
            stop=scenario.stop,
            evaluation=scenario.evaluation,
            server=server,
            observer=NewRounds(observer, self.resumable) if self.resumable else observer,
        )

    def run(self) -> None:
        """Run until a stop rule ends it; jobs still in flight then are charged up to that moment.

        Raises LedgerError if the joules do not add up or are not finite.
        """
        engine, rounds = self.engine, self.rounds
        asked: Learner = self.resumable or self.learner
        protocol = engine.env.process(self.parts.scenario.coordinator.value.run(engine, rounds, asked))
        horizon_s = self.parts.scenario.stop.sim_time
        if horizon_s is not None:
            timer = engine.env.timeout(horizon_s)
            timer.callbacks.append(lambda _: None if rounds.stopped else rounds.end(f"{horizon_s:g} s simulated"))
        try:
            with seldom_collecting():
                engine.env.run(until=rounds.ended)
        except BaseException:
            real = protocol.value if protocol.triggered else None
            if isinstance(real, BaseException):  # SimPy raises a copy of it, or fails to make one
                raise real from real.__cause__
            raise
        engine.abort([job for job, _ in list(engine.running.values())], "stopped")
        self.totals = {"sim_time_s": engine.now_s, **engine.totals()._asdict()}
        self._check_ledger()

    @property
    def repeats(self) -> bool:
        """Whether the run goes on from a checkpoint and has not come there yet."""
        return self.resumable is not None and self.resumable.repeats

    def devices(self) -> Mapping[str, Any]:
        """Return the columns of the devices table, the server last."""
        fleet, jobs = self.parts.fleet, self.tables["jobs"].frame()
        n, now_s = len(fleet), self.engine.now_s
        ok = jobs["device"][jobs["outcome"].isin(DELIVERED)]
        server_idle_j, server_busy_j = self.ledger.server_j(now_s)
        joules = self.ledger.activity_j
        return {
            "device": np.append(np.arange(n), SERVER_ROW),
            "kind": np.append(np.array(fleet.kinds, dtype=object)[fleet.kind], "server"),
            "level": np.append(fleet.level, 0),
            "jobs": np.append(np.bincount(jobs["device"], minlength=n), 0),
            "ok_jobs": np.append(np.bincount(ok, minlength=n), 0),
            "busy_s": np.append(self.ledger.busy_s, self.ledger.server_busy_s),
            "down_bytes": np.append(self.engine.accounts.received_bytes, 0),
            "up_bytes": np.append(self.engine.accounts.sent_bytes, 0),
            "down_j": np.append(joules[:, DOWN], 0.0),
            "compute_j": np.append(joules[:, COMPUTE], server_busy_j),
            "up_j": np.append(joules[:, UP], 0.0),
            "idle_j": np.append(self.ledger.idle_j(now_s), server_idle_j),
            "sleep_j": np.append(self.ledger.sleep_j(now_s), 0.0),
        }

    def _check_ledger(self) -> None:
        jobs, now_s = self.tables["jobs"], self.engine.now_s
        devices_j = float(self.ledger.activity_j.sum()) + self.ledger.resting_j(now_s)
        jobs_j = float(sum(jobs.column(name).sum() for name in ("down_j", "compute_j", "up_j", "peer_j")))
        self.ledger.check(jobs_j, devices_j, now_s)


@plain_torch()
def simulate(
    scenario: Scenario, out: Path | None = None, observer: Any = None, checkpoint: Checkpoint | None = None
) -> Run:
    """Run a scenario and return its run folder; `out` None: a new temporary folder.

    An interrupt (Ctrl-C) still writes the folder, with the tables up to the last finished round and the status
    "interrupted". With a checkpoint the run saves itself to its file every so often, or goes on from it if there is
    one; then the folder of a run that was cut off is replaced. The file is the caller's to remove. Raises ConfigError
    or DataError before anything is written, but for a checkpoint that cannot be written, or turns out not to fit.
    """
    out = out or Path(tempfile.mkdtemp(prefix="edgesim-")) / "run"
    replaces = checkpoint is not None and checkpoint.file.exists() and _was_cut_off(out)
    if not replaces:
        check_writable(out)
    started_s = time.perf_counter()
    parts = assemble(scenario)
    backend = scenario.backend.value.open(parts.make_trainer)
    observer = observer or Silent()
    status = "failed"
    try:
        simulation = Simulation(parts, backend, observer, checkpoint)
        try:
            simulation.run()
            status = "finished"
        except KeyboardInterrupt:
            if simulation.repeats:
                raise
            status = "interrupted"
        finally:
            if not simulation.repeats:  # until then there is nothing new, and no weights
                _write(simulation, out, status, time.perf_counter() - started_s, replaces)
    finally:
        observer.close()
        backend.close()
    return open_run(out)


def _was_cut_off(folder: Path) -> bool:
    return (folder / MANIFEST).is_file() and open_run(folder).manifest["status"] != "finished"


def _write(simulation: Simulation, out: Path, status: str, host_s: float, replace: bool) -> None:
    scenario, finished = simulation.parts.scenario, status == "finished"
    before_s = simulation.resumable.host_s if simulation.resumable else 0.0
    simulation.tables["devices"].extend(simulation.devices())
    frames = {
        name: table.frame(committed_only=not finished and name != "devices")
        for name, table in simulation.tables.items()
    }
    frames["merges"] = attributed(frames["jobs"], frames["merges"])
    manifest = {
        "name": scenario.name,
        "scenario": scenario.canonical(),
        "digest": scenario.digest(),
        "seed": scenario.seed,
        "status": status,
        "stop_reason": simulation.rounds.stop_reason,
        "rounds": simulation.engine.round,
        "diverged": simulation.rounds.divergence.found,
        "totals": simulation.totals,
        "forward_macs": simulation.engine.trained.forward_macs,
        "versions": {**{name: version(name) for name in _PACKAGES}, "python": platform.python_version()},
        "host_s": before_s + host_s,
        "host_cpus": os.cpu_count(),
    }
    write_run(out, frames, manifest, _weights(simulation), replace)


def _weights(simulation: Simulation) -> dict[str, dict[str, np.ndarray]]:
    learner = simulation.learner
    if not learner.trains:
        return {}
    best = learner.best[1]
    models = {"final": learner.weights(), "best": learner.weights() if best is None else best}
    return {which: _flat(model) for which, model in models.items()}


def _flat(model: Bundle) -> dict[str, np.ndarray]:
    """Return the tensors of a model under the names of its state dict; what a method adds to it is left out."""
    return {name: tensor.cpu().numpy() for kind in ("params", "buffers") for name, tensor in model[kind].items()}
