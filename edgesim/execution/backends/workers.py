"""Trains in worker processes of one thread each, which work on while the simulation does."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

from edgesim.core.backend import Result
from edgesim.core.limits import PROCESS_BYTES, Count, check_memory
from edgesim.core.update import ModelState
from edgesim.execution.backends.pooled import DEPTH, HeldModels, Item, PooledBackend
from edgesim.execution.processes import ProcessPool, cannot_start, warm_up
from edgesim.execution.shared_memory import Block, SharedMemory
from edgesim.files.loaded_code import LoadedCode, check_same, loaded_here
from edgesim.learning.codec.packed import Tensors
from edgesim.learning.train.torch_settings import check_device, plain_torch
from edgesim.learning.train.trainer import Trainer


class WorkersBackend(PooledBackend):
    """Processes of this machine, which find models and leave results in shared memory."""

    def __init__(self, trainer: Trainer, workers: int, make: Callable[[Trainer], Any] | None = None) -> None:
        """`make`: makes of a trainer what a process trains with; None: the trainer itself.

        Raises EdgesimError if there is too little of something, such as files that may be open.
        """
        try:
            inbox, self._outboxes = SharedMemory(), [SharedMemory() for _ in range(workers)]
            self._memories = inbox, *self._outboxes
        except OSError as error:
            raise cannot_start("backend", workers, error) from error
        given = (
            loaded_here(),
            inbox,
            inbox.put(trainer),
            make,
        )  # the trainer stays there, and all processes read the same data
        pool = ProcessPool("backend", workers, _start_worker, given, list(enumerate(self._outboxes)))
        super().__init__(trainer, workers, pool, HeldModels(inbox.put, inbox.free))

    def close(self) -> None:
        """End the worker processes, whatever they are at, and give back the memory that they share."""
        super().close()
        for each in self._memories:
            each.close()

    def _give(self, item: Item, given: Any) -> None:
        self._pool.give(item, _work_in_worker, (item.kind, given, self._models.places(item.models)))

    def _received(self, found: Any) -> Any:
        """Return what a process sent, with the models that it laid into shared memory."""
        if isinstance(found, Stack):
            return found._replace(results=[self._received(each) for each in found.results])
        if not isinstance(found, _Sent):
            return found
        outbox = self._outboxes[found.worker]
        body, kept, own = (model for block in found.blocks for model in outbox.get(block, copied=True))
        return found.result._replace(body=body, new_device_state=kept, own_model=own)


class Stack(NamedTuple):
    """The results of several assignments that one process trained, and why it trained some of them alone."""

    results: Sequence[Any]  # each a Result
    alone: Sequence[str]


# --- in a worker process ----------------------------------------------------------------------------------------------


class _Sent(NamedTuple):
    """A result whose models lie in the shared memory of a worker."""

    worker: int
    result: Result
    blocks: Sequence[Block]  # in their order the result's body, new_device_state and own_model


class _Worker(NamedTuple):
    """What a worker process has, from when it starts."""

    code: LoadedCode  # that the run has loaded
    place: int  # among the workers
    trainer: Any  # or what was made of it
    inbox: SharedMemory
    outbox: SharedMemory
    sent: deque[Sequence[Block]]  # of the last items, which may not have been read yet


_WORKER: _Worker | None = None


@plain_torch()
def _start_worker(
    code: LoadedCode,
    inbox: SharedMemory,
    trainer: Block,
    make: Callable[[Trainer], Any] | None,
    each: tuple[int, SharedMemory],
) -> None:
    global _WORKER
    place, outbox = each
    found: Trainer = inbox.get(trainer, copied=False)
    own = replace(found, module=copy.deepcopy(found.module))  # its tensors lie in memory shared by all
    _WORKER = _Worker(code, place, make(own) if make else own, inbox, outbox, deque())


def _worker() -> _Worker:
    if _WORKER is None:
        raise RuntimeError("this process is no worker")
    return _WORKER


@plain_torch()  # a script may set more than this when the process loads it
def _work_in_worker(work: tuple[Callable[..., Any], Any, Mapping[int, Block]]) -> Any:
    kind, given, blocks = work
    code, _, trainer, inbox, _, _ = _worker()
    check_same(code)
    found = kind(trainer, given, {model: inbox.get(block, copied=False) for model, block in blocks.items()})
    if isinstance(found, Stack):
        return found._replace(results=_sent(found.results))
    return _sent([found])[0] if isinstance(found, Result) else found


def _sent(results: Sequence[Result]) -> list[_Sent]:
    """Lay the models of an item's results into the outbox; those of the last but so many items have been read."""
    _, place, _, _, outbox, sent = _worker()
    if len(sent) == DEPTH:
        for block in sent.popleft():
            outbox.free(block)
    found = []
    for result in results:
        models = [result.body, result.new_device_state, result.own_model]
        groups = [models] if _share_tensors(models) else [[model] for model in models]
        blocks = [outbox.put(group) for group in groups]
        found.append(_Sent(place, result._replace(body={}, new_device_state=None, own_model=None), blocks))
    sent.append([block for each in found for block in each.blocks])
    return found


def _share_tensors(models: Sequence[ModelState | None]) -> bool:
    """Return whether some models have tensors in common, such as what a device keeps and sends."""
    found = [id(each) for model in models for tensors in (model or {}).values() for each in _stored(tensors)]
    return len(set(found)) < len(found)


def _stored(tensors: Mapping[str, Any]) -> Any:
    return tensors.stored.values() if isinstance(tensors, Tensors) else tensors.values()


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

    def alone(self) -> dict[str, Any]:
        """Return the table of the backend that trains in this process alone, to the same results."""
        return {"name": "serial", "device": self.device}

    @property
    def processes(self) -> int:
        """Those that train besides this one."""
        return self.workers

    def prepare(self) -> None:
        """Begin to load what the processes need; whoever opens the backend may do so before there is a trainer."""
        warm_up()

    def open(self, make_trainer: Callable[[str], Trainer]) -> WorkersBackend:
        """Return the backend. Raises ConfigError if torch has no such device."""
        self.check()
        return WorkersBackend(make_trainer(self.device), self.workers)


PLUGINS = {"workers": Workers}
