"""Trains in worker processes of one thread each; the data set is shared between them, not copied."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch

from edgesim.backends.training import TrainingBackend
from edgesim.contracts import Assignment, Bundle, Result, Score
from edgesim.learning.device import PROCESS_BYTES, check_device, plain_torch
from edgesim.learning.packed import with_others
from edgesim.learning.trainer import ChunkScore, Trainer
from edgesim.limits import check_memory
from edgesim.numbers import Count
from edgesim.processes import ProcessPool

_TRAINER: Trainer | None = None  # of a worker process; set once, when it starts


class WorkersBackend(TrainingBackend):
    """A pool of processes. Jobs are pure, so results do not depend on who trained what in which order."""

    def __init__(self, trainer: Trainer, workers: int) -> None:
        trainer.data.share()
        self._chunks = trainer.chunks()
        self._workers = workers
        self._pool = ProcessPool("backend", workers, _start_worker, (trainer,))

    def close(self) -> None:
        """End the worker processes, whatever they are at."""
        self._pool.close()

    def train(self, assignments: Sequence[Assignment]) -> Sequence[Result]:
        """Train in all processes at once."""
        # Two parcels a worker: weights that jobs share travel once a parcel, and uneven jobs still even out.
        parcels = np.array_split(np.arange(len(assignments)), min(2 * self._workers, len(assignments)) or 1)
        bases = {id(a.base): _to_wire(a.base) for a in assignments}
        bodies = {id(m.body): _to_wire(m.body) for a in assignments for m in a.received}
        ready = [
            a._replace(
                base=bases[id(a.base)],
                own=_to_wire(a.own),
                received=[m._replace(body=bodies[id(m.body)]) for m in a.received],
            )
            for a in assignments
        ]
        wired = [[ready[place] for place in parcel] for parcel in parcels]
        results = [result for parcel in self._pool.map(_run_in_worker, wired) for result in parcel]
        return [r._replace(body=_from_wire(r.body), keep=_from_wire(r.keep)) for r in results]

    def evaluate_personal(self, models: Mapping[int, Bundle]) -> Mapping[int, Score]:
        """Score in all processes at once."""
        wired = {id(model): _to_wire(model) for model in models.values()}
        rows = [(device, wired[id(model)]) for device, model in models.items()]
        parcels = np.array_split(np.arange(len(rows)), min(self._workers, len(rows)) or 1)
        scored = self._pool.map(_score_personal_in_worker, [[rows[place] for place in parcel] for parcel in parcels])
        return dict(row for parcel in scored for row in parcel)

    def _score(self, model: Bundle) -> Sequence[ChunkScore]:
        wired = _to_wire(model)
        spans = np.array_split(np.arange(self._chunks), self._workers)
        scored = self._pool.map(_score_in_worker, [(wired, span.tolist()) for span in spans])
        return [chunk for span in scored for chunk in span]


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
    base, own = _from_wire(assignment.base), _from_wire(assignment.own)
    result = _trainer().run(assignment._replace(base=base, own=own, received=received))
    return result._replace(body=_to_wire(result.body), keep=_to_wire(result.keep))


@plain_torch()
def _score_in_worker(work: tuple[Any, Sequence[int]]) -> list[ChunkScore]:
    model, chunks = work
    return _trainer().score_chunks(_from_wire(model), chunks)


@plain_torch()
def _score_personal_in_worker(parcel: Sequence[tuple[int, Any]]) -> list[tuple[int, Score]]:
    return [(device, _trainer().score_personal(device, _from_wire(model))) for device, model in parcel]


# Tensors travel as NumPy arrays: torch would open one file descriptor per tensor sent between processes.


def _to_wire(bundle: Bundle | None) -> Any:
    return _each(bundle, lambda tensor: tensor.cpu().numpy())


def _from_wire(bundle: Any) -> Any:
    return _each(bundle, torch.from_numpy)


def _each(bundle: Any, change: Callable[[Any], Any]) -> Any:
    if bundle is None:
        return None
    return {kind: with_others(tensors, change) for kind, tensors in bundle.items()}


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


PARTS = {"workers": Workers}
