"""Train in worker processes of one thread each, in parallel with the simulation."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

from edgesim.core.backend import Result
from edgesim.core.limits import PROCESS_BYTES, Count, check_memory
from edgesim.core.update import ModelState
from edgesim.execution.backends.compiling import Compiling
from edgesim.execution.backends.pooled import DEPTH, HeldModels, Item, PooledBackend, Trained
from edgesim.execution.processes import ProcessPool, cannot_start, warm_up
from edgesim.execution.shared_memory import MemoryBlock, SharedMemory
from edgesim.files.loaded_code import LoadedCode, check_same, loaded_here
from edgesim.learning.codec.packed import Tensors
from edgesim.learning.models.build import copy_of
from edgesim.learning.train.torch_settings import plain_torch
from edgesim.learning.train.trainer import Trainer


class WorkersBackend(PooledBackend):
    """Processes of this machine, which read models from shared memory and write results to it."""

    def __init__(self, trainer: Trainer, workers: int, make: Callable[[Trainer], Any] | None = None) -> None:
        """`make`: converts the trainer to the object with which a process trains; None: the trainer itself.

        Raises EdgesimError if a resource runs out, such as open files.
        """
        try:
            inbox, self._outboxes = SharedMemory(), [SharedMemory() for _ in range(workers)]
            self._memories = inbox, *self._outboxes
        except OSError as error:
            raise cannot_start("backend", workers, error) from error
        given = (loaded_here(), inbox, inbox.put(trainer), make)  # all processes read the same trainer and data
        pool = ProcessPool("backend", workers, _start_worker, given, list(enumerate(self._outboxes)))
        super().__init__(trainer, workers, pool, HeldModels(inbox.put, inbox.free))

    def close(self) -> None:
        """End the worker processes, whatever they are doing, and free the memory that they share."""
        super().close()
        for each in self._memories:
            each.close()

    def _give(self, item: Item, given: Any) -> None:
        self._pool.give(item, _work_in_worker, (item.kind, given, self._models.places(item.models)))

    def _received(self, found: Any) -> Any:
        """Return the result that a process sent, with the models that it put into shared memory."""
        if isinstance(found, Trained):
            return found._replace(results=[self._received(each) for each in found.results])
        if not isinstance(found, _Sent):
            return found
        outbox = self._outboxes[found.worker]
        body, kept, own = (model for block in found.blocks for model in outbox.get(block, copied=True))
        return found.result._replace(body=body, new_device_state=kept, own_model=own)


# --- in a worker process ----------------------------------------------------------------------------------------------


class _Sent(NamedTuple):
    """A result whose models lie in the shared memory of a worker."""

    worker: int
    result: Result
    blocks: Sequence[MemoryBlock]  # body, new_device_state and own_model of the result, in this order


class _Worker(NamedTuple):
    """State of a worker process from its start."""

    code: LoadedCode  # code that the run has loaded
    place: int  # among the workers
    trainer: Any  # the trainer, or the object that `make` returned
    inbox: SharedMemory
    outbox: SharedMemory
    sent: deque[Sequence[MemoryBlock]]  # blocks of the last items, which may not have been read yet


_WORKER: _Worker | None = None


@plain_torch()
def _start_worker(
    code: LoadedCode,
    inbox: SharedMemory,
    trainer: MemoryBlock,
    make: Callable[[Trainer], Any] | None,
    each: tuple[int, SharedMemory],
) -> None:
    global _WORKER
    place, outbox = each
    found: Trainer = inbox.get(trainer, copied=False)
    own = replace(found, module=copy_of(found.module))  # memory shared by all has the found one's tensors, and the base
    _WORKER = _Worker(code, place, make(own) if make else own, inbox, outbox, deque())


def _worker() -> _Worker:
    if _WORKER is None:
        raise RuntimeError("this process is no worker")
    return _WORKER


@plain_torch()  # the user's script may change torch's settings when the process loads it
def _work_in_worker(work: tuple[Callable[..., Any], Any, Mapping[int, MemoryBlock]]) -> Any:
    kind, given, blocks = work
    code, _, trainer, inbox, _, _ = _worker()
    check_same(code)
    found = kind(trainer, given, {model: inbox.get(block, copied=False) for model, block in blocks.items()})
    if isinstance(found, Trained):
        return found._replace(results=_sent(found.results))
    return found


def _sent(results: Sequence[Result]) -> list[_Sent]:
    """Put the models of an item's results into the outbox; free those of the item DEPTH before, which are read."""
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
    """Return True if some models have tensors in common, such as a device's kept state and its update."""
    found = [
        id(each)
        for model in models
        for tensors in (model or {}).values()
        for each in (tensors.stored if isinstance(tensors, Tensors) else tensors).values()
    ]
    return len(set(found)) < len(found)


@dataclass(frozen=True, kw_only=True)
class Workers(Compiling):
    """Train in worker processes of one thread each."""

    runs_apps: ClassVar[bool] = True
    workers: Count = 2  # processes that train, a thread each
    device: str = "cpu"  # or "cuda", "cuda:0", ... where torch has one; all workers share it

    def check(self) -> None:
        """Raise ConfigError if torch has no such device, or so many processes do not fit into memory."""
        check_memory("backend.workers", self.workers * PROCESS_BYTES, f"{self.workers:,} processes with PyTorch")
        super().check()

    def alone(self) -> dict[str, Any]:
        """Return the table of the backend with this process only, which gives the same results."""
        return {"name": "serial", "device": self.device, "compile": self.compile}

    @property
    def processes(self) -> int:
        """Number of training processes beside this one."""
        return self.workers

    def prepare(self) -> None:
        """Start loading the modules of processes; may be called before the trainer exists."""
        warm_up()

    def open(self, make_trainer: Callable[[str], Trainer]) -> WorkersBackend:
        """Return the backend. Raises ConfigError if torch has no such device."""
        self.check()
        return WorkersBackend(self.compiling(make_trainer(self.device)), self.workers)


PLUGINS = {"workers": Workers}
