"""Trains in worker processes of one thread each; the data set is shared between them, not copied."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch

from edgesim.core.backend import Assignment, Result, Score
from edgesim.core.limits import check_memory
from edgesim.core.numbers import Count
from edgesim.core.update import ModelState
from edgesim.learning.codec.packed import with_others
from edgesim.learning.train.torch_settings import PROCESS_BYTES, check_device, plain_torch
from edgesim.learning.train.trainer import ChunkScore, Trainer
from edgesim.runtime.backends.training import TrainingBackend
from edgesim.runtime.processes import ProcessPool

_TRAINER: Trainer | None = None  # of a worker process; set once, when it starts


class WorkersBackend(TrainingBackend):
    """A pool of processes. Jobs are pure, so results do not depend on who trained what in which order."""

    def __init__(self, trainer: Trainer, workers: int) -> None:
        trainer.data.share()
        self._trainer = trainer
        self._chunks = trainer.chunks()
        self._workers = workers
        self._pool = ProcessPool("backend", workers, _start_worker, (trainer,))

    def close(self) -> None:
        """End the worker processes, whatever they are at."""
        self._pool.close()

    def train(self, assignments: Sequence[Assignment]) -> Sequence[Result]:
        """Train in all processes at once."""
        # Two parcels a worker: weights that jobs share travel once a parcel, and uneven jobs still even out.
        parcels = evened([self._flops(each) for each in assignments], 2 * self._workers)
        models = {id(a.global_model): _to_wire(a.global_model) for a in assignments}
        bodies = {id(m.body): _to_wire(m.body) for a in assignments for m in a.received}
        ready = [
            a._replace(
                global_model=models[id(a.global_model)],
                device_state=_to_wire(a.device_state),
                received=[m._replace(body=bodies[id(m.body)]) for m in a.received],
            )
            for a in assignments
        ]
        wired = [[ready[place] for place in parcel] for parcel in parcels]
        found = self._pool.map(_run_in_worker, wired)
        results = {place: result for parcel, got in zip(parcels, found, strict=True)
                   for place, result in zip(parcel, got, strict=True)}  # fmt: skip
        return [_each_model(results[place], _from_wire) for place in range(len(assignments))]

    def evaluate_personal(self, models: Mapping[int, ModelState]) -> Mapping[int, Score]:
        """Score in all processes at once."""
        wired = {id(model): _to_wire(model) for model in models.values()}
        rows = [(device, wired[id(model)]) for device, model in models.items()]
        parcels = np.array_split(np.arange(len(rows)), min(self._workers, len(rows)) or 1)
        scored = self._pool.map(_score_personal_in_worker, [[rows[place] for place in parcel] for parcel in parcels])
        return dict(row for parcel in scored for row in parcel)

    def _flops(self, assignment: Assignment) -> float:
        """Return about how much work an assignment is."""
        trainer, task = self._trainer, assignment.task
        samples = np.array([len(trainer.shards[assignment.device])])
        amounts = (sgd.amount(samples, trainer.cost_profile.drop_single)[0] for sgd in task.local_sgd)
        return float(sum(amount[0] for amount in amounts)) * trainer.cost_profile.train_flops(task.submodel)

    def _score(self, model: ModelState) -> Sequence[ChunkScore]:
        wired = _to_wire(model)
        spans = np.array_split(np.arange(self._chunks), self._workers)
        scored = self._pool.map(_score_in_worker, [(wired, span.tolist()) for span in spans])
        return [chunk for span in scored for chunk in span]


def evened(work: Sequence[float], parcels: int) -> list[list[int]]:
    """Return the places of work items in at most so many parcels of about equal work, none empty, the largest first.

    Each item, from the largest on, goes to the parcel with the least work so far.
    """
    held: list[list[int]] = [[] for _ in range(min(parcels, len(work)))]
    loads = [0.0] * len(held)
    for place in sorted(range(len(work)), key=lambda each: -work[each]):
        least = min(range(len(held)), key=lambda each: (loads[each], len(held[each])))
        held[least].append(place)
        loads[least] += work[place]
    return [held[each] for each in sorted(range(len(held)), key=lambda each: -loads[each])]


@plain_torch()
def _start_worker(trainer: Trainer) -> None:
    global _TRAINER
    _TRAINER = replace(trainer, module=copy.deepcopy(trainer.module))  # its tensors came in memory shared by all


def _trainer() -> Trainer:
    if _TRAINER is None:
        raise RuntimeError("this process is no worker")
    return _TRAINER


@plain_torch()  # a script may set more than this when the process loads it
def _run_in_worker(parcel: Sequence[Assignment]) -> list[Result]:
    return [_trained(assignment) for assignment in parcel]


def _trained(assignment: Assignment) -> Result:
    received = [m._replace(body=_from_wire(m.body)) for m in assignment.received]
    model, device_state = _from_wire(assignment.global_model), _from_wire(assignment.device_state)
    result = _trainer().run(assignment._replace(global_model=model, device_state=device_state, received=received))
    return _each_model(result, _to_wire)


@plain_torch()
def _score_in_worker(work: tuple[Any, Sequence[int]]) -> list[ChunkScore]:
    model, chunks = work
    return _trainer().score_chunks(_from_wire(model), chunks)


@plain_torch()
def _score_personal_in_worker(parcel: Sequence[tuple[int, Any]]) -> list[tuple[int, Score]]:
    return [(device, _trainer().score_personal(device, _from_wire(model))) for device, model in parcel]


# Tensors travel as NumPy arrays: torch would open one file descriptor per tensor sent between processes.


def _each_model(result: Result, change: Callable[[Any], Any]) -> Result:
    """Return a result whose models are changed."""
    body, kept, own = change(result.body), change(result.new_device_state), change(result.own_model)
    return result._replace(body=body, new_device_state=kept, own_model=own)


def _to_wire(model_state: ModelState | None) -> Any:
    return _each(model_state, lambda tensor: tensor.cpu().numpy())


def _from_wire(model_state: Any) -> Any:
    return _each(model_state, torch.from_numpy)


def _each(model_state: Any, change: Callable[[Any], Any]) -> Any:
    if model_state is None:
        return None
    return {kind: with_others(tensors, change) for kind, tensors in model_state.items()}


@dataclass(frozen=True, kw_only=True)
class Workers:
    """Train in worker processes of one thread each."""

    workers: Count = 2  # processes that train, a thread each
    device: str = "cpu"  # or "cuda", "cuda:0", ... where torch has one; all workers share it
    trains: ClassVar[bool] = True

    def check(self) -> None:
        """Raise ConfigError if torch has no such device, or so many processes do not fit into memory."""
        check_memory("backend.workers", self.workers * PROCESS_BYTES, f"{self.workers:,} processes with PyTorch")
        check_device(self.device)

    def open(self, make_trainer: Callable[[str], Trainer]) -> WorkersBackend:
        """Return the backend. Raises ConfigError if torch has no such device."""
        self.check()
        return WorkersBackend(make_trainer(self.device), self.workers)


PLUGINS = {"workers": Workers}
