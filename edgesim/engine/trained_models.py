"""How large the models are that a run's jobs train."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from edgesim.core.job import Job
from edgesim.core.task import Task
from edgesim.core.view import Setting
from edgesim.cost.several import profile_of

_MOST_KNOWN = 64  # tasks


class _Trained(NamedTuple):
    """A model that a task trains, and its share in the task: so many times the samples (None: the device's own)."""

    macs: float
    times: float
    samples: int | None


class _Known(NamedTuple):
    """What is remembered of a task; the task too, so that its id stays its own."""

    task: Task
    models: list[_Trained]
    macs: float | None  # of all of these, if they are of one size


class TrainedModels:
    """Mean size of the models trained, in forward multiply-accumulates a sample; see `CostProfile.forward_macs`."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._known: dict[int, _Known] = {}  # by id: one task is the object of many jobs, and hashing it costs more
        self._jobs = 0
        self._total = 0.0

    @property
    def forward_macs(self) -> float | None:
        """Mean over all jobs that train, whatever became of them; None before the first.

        A job with several models, such as one a batch, counts with their mean over samples.
        """
        return self._total / self._jobs if self._jobs else None

    def add(self, job: Job) -> None:
        """Count a job, if it trains."""
        if not job.task.local_sgd:
            return
        known = self._known.get(id(job.task)) or self._learn(job.task)
        self._jobs += 1
        self._total += self._mean(job, known.models) if known.macs is None else known.macs

    def _learn(self, task: Task) -> _Known:
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        models = self._models_of(task)
        sizes = {model.macs for model in models}
        known = self._known[id(task)] = _Known(task, models, sizes.pop() if len(sizes) == 1 else None)
        return known

    def _models_of(self, task: Task) -> list[_Trained]:
        cost_profile = profile_of(self._setting.cost_profile, task.submodel)
        found = [
            _Trained(cost_profile.forward_macs(work.submodel or task.submodel), work.times, work.samples)
            for work in task.passes
            if work.kind == "train" and work.times and work.samples != 0
        ]
        return found or [_Trained(cost_profile.forward_macs(task.submodel), 1.0, None)]

    def _mean(self, job: Job, models: list[_Trained]) -> float:
        """Return the mean over the samples of a job that trains models of several sizes."""
        held = self._setting.samples[[job.device]] - job.task.held_out
        drop_single = profile_of(self._setting.cost_profile, job.task.submodel).drop_single
        own = sum(float(sgd.amount(held, drop_single)[0][0]) for sgd in job.task.local_sgd)
        weights = [model.times * (own if model.samples is None else model.samples) for model in models]
        return float(np.average([model.macs for model in models], weights=weights))
