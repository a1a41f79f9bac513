"""Seconds that this host needs for the training of a run, measured on a few jobs, by this backend or by others."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from math import ceil
from typing import NamedTuple

from edgesim.core.backend import Assignment, Backend, BackendPart
from edgesim.core.local_sgd import LocalSGD
from edgesim.core.rng import Key, Purpose
from edgesim.core.task import Task
from edgesim.execution.backends.cohort import CohortTraining
from edgesim.execution.backends.serial import Serial
from edgesim.learning.models.build import model_state_of
from edgesim.methods.fedavg import FedAvg
from edgesim.runs.assembly import Assembly

_PROBE_S = 0.5  # seconds of training by which the speed of this host is measured
_MOST_TOGETHER = 20  # jobs that are stacked to measure it

Speed = Callable[[Assembly], float]  # FLOP/s of one process


class HostTime(NamedTuple):
    """A backend and the seconds of this host that a run takes with it. `note`: why it does not gain more, or ""."""

    backend: str
    host_s: float
    note: str = ""


def host_flops_per_s(parts: Assembly) -> float:
    """Measure the speed of one worker, in FLOP/s: plain SGD on the largest local data set, for about a second."""
    return _probed(parts, Serial(device=parts.scenario.backend.value.device), 1)[0]


def trained_s(parts: Assembly, rounds: int, flops: float, speed: Speed | None) -> float:
    """Return the seconds of this host for training and evaluations, as if workers did not slow each other down."""
    backend = parts.scenario.backend.value
    if not backend.trains:
        return 0.0
    at_once = min(max(1, backend.processes), _cores())
    seconds: float = sum(_host_flops(parts, rounds, flops)) / (at_once * (speed or host_flops_per_s)(parts))
    return seconds


def host_times(parts: Assembly, rounds: int, jobs: int, flops: float, beside_s: float, one: float) -> list[HostTime]:
    """Return the seconds of a run with each backend that trains on the processors of this host, the fastest first.

    `jobs`, `flops`: of all rounds. `beside_s`: seconds of the simulation without training. `one`: FLOP/s of a worker.
    """
    training, tests = _host_flops(parts, rounds, flops)
    cores = _cores()
    together = min(_MOST_TOGETHER, ceil(jobs / rounds / cores))
    if together > 1:
        stacked, notes = _probed(parts, CohortTraining(workers=1), together)
    else:
        stacked, notes = one, ["too few jobs a round to train several at once"]
    found = [
        HostTime("serial", beside_s + (training + tests) / one),
        HostTime(f"workers, {cores} processes", beside_s + (training + tests) / (cores * one)),
        HostTime(f"cohort, {cores} processes", beside_s + (training / stacked + tests / one) / cores, "; ".join(notes)),
    ]
    return sorted(found, key=lambda each: each.host_s)


def _cores() -> int:
    return os.cpu_count() or 1


def _host_flops(parts: Assembly, rounds: int, flops: float) -> tuple[float, float]:
    """Return the FLOPs that this host computes for `flops` of training as charged, and for the tests of the rounds."""
    own, large = parts.network.cost_profile, parts.setting.cost_profile.charged_as
    training = flops * (1.0 if large is None else own.train_flops() / large.train_flops())
    samples = 0 if parts.data is None else len(parts.data.labels("test"))
    return training, float(-(-rounds // parts.scenario.evaluation.every) * samples * own.forward_flops())


def _probed(parts: Assembly, part: BackendPart, jobs: int) -> tuple[float, list[str]]:
    """Return the FLOP/s with which a backend trains so many equal jobs, and its warnings."""
    backend: Backend = part.open(lambda name: replace(parts.make_trainer(name), method=FedAvg()))
    setting, device = parts.setting, int(parts.setting.samples.argmax())
    key, first = Key(parts.scenario.seed), model_state_of(parts.module)
    asked = [Assignment(nth, device, Task(), key.at(Purpose.PROBE, nth), first, None) for nth in range(jobs)]
    plain = LocalSGD(batch=setting.training.batch, lr=setting.training.lr, steps=1)

    def timed_s(sgd: LocalSGD) -> float:
        started_s = time.perf_counter()
        backend.train([job._replace(task=Task(local_sgd=(sgd,))) for job in asked])
        return time.perf_counter() - started_s

    try:
        timed_s(plain)
        while (spent_s := timed_s(plain)) < _PROBE_S:
            plain = replace(plain, steps=2 * plain.steps)
        warnings = list(backend.warnings)
    finally:
        backend.close()
    samples, _ = plain.amount(setting.samples[[device]], setting.cost_profile.drop_single)
    return jobs * float(samples[0] * parts.network.cost_profile.train_flops()) / spent_s, warnings
