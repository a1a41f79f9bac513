"""Seconds that this host needs for the training of a run, measured on a few jobs, by its backend or by others."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import ceil, inf
from typing import NamedTuple

import numpy as np

from edgesim.core.backend import CHUNK, Assignment, Backend, BackendPart
from edgesim.core.local_sgd import LocalSGD
from edgesim.core.rng import Key, Purpose
from edgesim.core.task import Task
from edgesim.execution.backends.cohort import CohortTraining
from edgesim.execution.backends.serial import Serial
from edgesim.execution.backends.workers import Workers
from edgesim.learning.models.build import model_state_of
from edgesim.methods.fedavg import FedAvg
from edgesim.runs.assembly import Assembly

_PROBE_S = 0.5  # seconds of training by which the speed of this host is measured
_TOO_FEW = "too few jobs a round to train several at once"
_MOST_TOGETHER = 20  # jobs that a process trains in one call to measure it


class HostWork(NamedTuple):
    """Work of a run on its host: jobs that train, their FLOPs, and tests of the model, one every few rounds."""

    jobs: int
    flops: float
    tests: int


class HostSpeed(NamedTuple):
    """Speed of this host with a backend, all its processes together. As given, training and tests take no time."""

    flops_per_s: float = inf  # of long jobs
    job_s: float = 0.0  # seconds of a job beside its FLOPs
    test_s: float = 0.0  # seconds of a test
    start_s: float = 0.0  # seconds until the first job has ended, beyond those of a later one

    def seconds(self, work: HostWork, loaded_s: float) -> float:
        """Return the seconds of a run's training and tests, after `loaded_s` in which its command has loaded.

        The backend starts with the command.
        """
        start_s = max(0.0, self.start_s - loaded_s)
        return start_s + work.flops / self.flops_per_s + work.jobs * self.job_s + work.tests * self.test_s


class HostTime(NamedTuple):
    """A backend and the seconds of this host that a run takes with it. `note`: why it does not gain more, or ""."""

    backend: str
    host_s: float
    note: str = ""


Speed = Callable[[Assembly, int], HostSpeed]  # with the backend of a run that has so many jobs a round


def host_speed(parts: Assembly, jobs: int) -> HostSpeed:
    """Measure this host with the backend of a run, whose rounds have so many jobs. It takes a few seconds."""
    backend = parts.scenario.backend.value
    return _probed(parts, backend, jobs)[0] if backend.trains else HostSpeed()


def host_work(parts: Assembly, rounds: int, jobs: int, flops: float) -> HostWork:
    """Return the work of a run on its host. `jobs`, `flops`: of all rounds, the latter as charged."""
    own, large = parts.network.cost_profile, parts.setting.cost_profile.charged_as
    scale = 1.0 if large is None else own.train_flops() / large.train_flops()
    evaluation = parts.scenario.evaluation
    last = min(rounds, evaluation.last)  # rounds at the end of the run, each of which is tested
    return HostWork(jobs, scale * flops, (rounds - last) // evaluation.every + last)


def backends_here() -> dict[str, BackendPart]:
    """Return the backends that train on the processors of this host, by name."""
    cores = os.cpu_count() or 1
    return {
        "serial": Serial(),
        f"workers, {cores} processes": Workers(workers=cores),
        f"cohort, {cores} processes": CohortTraining(workers=cores),
    }


def host_times(
    parts: Assembly, backends: Mapping[str, BackendPart], rounds: int, work: HostWork, beside_s: float, loaded_s: float
) -> list[HostTime]:
    """Return the seconds of a run with each of these backends.

    `beside_s`: seconds without training and tests. `loaded_s`: those of them before its first round.
    """
    probed = {name: _probed(parts, part, ceil(work.jobs / rounds)) for name, part in backends.items()}
    # only the first processes had to load their modules
    start_s = max(probed[name][0].start_s for name in backends)
    found = []
    for name, (speed, notes) in probed.items():
        own = speed._replace(start_s=start_s) if backends[name].processes else speed
        found.append(HostTime(name, beside_s + own.seconds(work, loaded_s), "; ".join(notes)))
    return found


def _probed(parts: Assembly, part: BackendPart, jobs: int) -> tuple[HostSpeed, Sequence[str]]:
    """Return the speed of a backend in rounds of so many jobs, and its warnings.

    Each process gets jobs of devices with few to many samples: twice one step of the run's optimiser, then more steps.
    Then the model is tested on some samples.
    """
    began_s, processes = time.perf_counter(), max(1, part.processes)
    trainer = replace(parts.make_trainer(part.device), method=FedAvg())
    key, first = Key(parts.scenario.seed), model_state_of(parts.module)
    sgd, drop_single = parts.setting.training.local_sgd(0).for_steps(1), parts.setting.cost_profile.drop_single
    samples = parts.setting.samples[parts.setting.ids]
    places = np.argsort(samples, kind="stable")
    places = places[sgd.amount(samples[places], drop_single)[0] > 0]
    if not len(places):
        return HostSpeed(), []
    together = min(_MOST_TOGETHER, ceil(jobs / processes)) if part.stacks else 1
    spread = (np.arange(processes * together) + 0.5) * len(places) / (processes * together)
    chosen = places[spread.astype(np.int64)]
    devices = parts.setting.ids[chosen].tolist()
    asked = [Assignment(nth, each, Task(), key.at(Purpose.PROBE, nth), first, None) for nth, each in enumerate(devices)]

    def timed_s(sgd: LocalSGD) -> float:
        return _timed_s(lambda: backend.train([job._replace(task=Task(local_sgd=(sgd,))) for job in asked]))

    def flops(sgd: LocalSGD) -> float:
        return float(sgd.amount(samples[chosen], drop_single)[0].sum() * parts.network.cost_profile.train_flops())

    trainer.score_chunks(first, [0])
    chunks = max(1, int(_PROBE_S / 2 / _timed_s(lambda: trainer.score_chunks(first, [0]))))  # that a process tests
    some = replace(trainer, test_rows=trainer.test_rows[: processes * CHUNK * chunks])
    backend: Backend = part.open(lambda name: some)
    try:
        timed_s(sgd)
        start_s, short_s, more = time.perf_counter() - began_s, timed_s(sgd), sgd
        long_s = short_s
        while long_s < _PROBE_S:
            more = more.for_steps(2 * more.steps)
            long_s = timed_s(more)
        backend.evaluate(first)
        test_s = _timed_s(lambda: backend.evaluate(first))
        notes = [_TOO_FEW] if part.stacks and together == 1 else list(backend.warnings)
    finally:
        backend.close()
    personal = sum(map(len, trainer.personal_rows)) if parts.scenario.evaluation.personal else 0
    test_s *= (trainer.chunks() + personal / CHUNK) / max(1, some.chunks())
    flops_per_s = flops(more) / long_s
    job_s = max(0.0, short_s - flops(sgd) / flops_per_s) / len(asked)
    return HostSpeed(flops_per_s, job_s, test_s, max(0.0, start_s - short_s)), notes


def _timed_s(work: Callable[[], object]) -> float:
    started_s = time.perf_counter()
    work()
    return time.perf_counter() - started_s
