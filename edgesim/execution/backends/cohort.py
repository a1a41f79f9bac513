"""Trains devices together, as stacked calls: the fastest way for small networks. Equal to serial but for rounding."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from edgesim.core.backend import Assignment, Backend, BackendPart, Classes, LocalTraining, Result, Score, Work
from edgesim.core.limits import PROCESS_BYTES, Count, check_memory, memory_bytes
from edgesim.core.update import ModelState
from edgesim.execution.backends.pooled import Item, Parts, Trained, models_of, with_ids, with_models
from edgesim.execution.backends.workers import WorkersBackend
from edgesim.execution.processes import warm_up
from edgesim.learning.train.cohort import Cohort
from edgesim.learning.train.torch_settings import check_device
from edgesim.learning.train.trainer import Trainer


class CohortBackend(Backend):
    """A cohort in this process."""

    def __init__(self, cohort: Cohort) -> None:
        self._cohort = cohort

    @property
    def warnings(self) -> Sequence[str]:
        """Reasons why jobs were trained one by one so far, one line each."""
        return _told(self._cohort.alone)

    def train(self, assignments: Sequence[Assignment]) -> Sequence[Result]:
        """Train assignments together where possible."""
        return self._cohort.train(assignments)

    def evaluate(self, model: ModelState, classes: Classes = None) -> Mapping[str, Score]:
        """Return mean loss and accuracy on the test set, summed in the order of its chunks."""
        return self._cohort.scores(model, classes)

    def evaluate_personal(self, models: Mapping[int, ModelState]) -> Mapping[int, Score]:
        """Score one model after another."""
        return {device: self._cohort.score_personal(device, model) for device, model in models.items()}

    def close(self) -> None:
        """Do nothing: there are no other processes."""


class CohortsBackend(WorkersBackend):
    """Cohorts in several processes, each with an even share of the devices that are ready.

    Training together changes rounding, so groups must not depend on the timing of processes. The ready assignments of
    one turn are a group, one group is in progress at a time, and work is returned in the order in which it began.
    """

    def __init__(self, trainer: Trainer, size: int, workers: int) -> None:
        """`size`: largest number of devices that one call trains. Raises as `WorkersBackend` does."""
        super().__init__(trainer, workers, partial(Cohort, size=size, memory_share=1 / workers))
        self._waiting: list[tuple[int, LocalTraining]] = []  # by number
        self._shares: deque[tuple[Item, Sequence[Assignment]]] = deque()  # of the current group, not handed out yet
        self._group: Sequence[int] = ()  # numbers of the current group
        self._begun: deque[Sequence[int]] = deque()  # numbers of work to return together
        self._new: list[int] = []  # numbers of scorings submitted since the last `collect`
        self._done: dict[int, Any] = {}

    def submit(self, number: int, work: Work) -> None:
        """Take a piece of work; see edgesim.core.backend.FuturesBackend."""
        super().submit(number, work)
        if not isinstance(work, LocalTraining):
            self._new.append(number)

    def collect(self, wait: bool) -> Sequence[tuple[int, Any]]:
        """Return the next group or scoring, once done; nothing with `wait=False`, which would depend on timing."""
        if not wait:
            return []
        self._begin()
        if not self._begun:
            return []
        while not all(number in self._done for number in self._begun[0]):
            self._hand_out()
            with self._noting_deaths():
                taken = self._pool.take(wait=True)
            for item, found in taken:
                self._models.release(item.models)
                self._done.update(self._joined(item, found))
        self._hand_out()
        return [(number, self._done.pop(number)) for number in self._begun.popleft()]

    def _submit_training(self, number: int, work: LocalTraining) -> None:
        self._waiting.append((number, work))

    def _begin(self) -> None:
        """Begin the next group, unless one is in progress, and the scorings after it."""
        if self._waiting and self._group not in self._begun:
            turn = min(work.turn for _, work in self._waiting)
            group = [(number, work.assignment) for number, work in self._waiting if work.turn == turn]
            self._waiting = [each for each in self._waiting if each[1].turn != turn]
            self._group = [number for number, _ in group]
            self._begun.append(self._group)
            self._share_out(self._group, [assignment for _, assignment in group])
        self._begun += ([number] for number in self._new)
        self._new.clear()

    def _share_out(self, group: Sequence[int], assignments: Sequence[Assignment]) -> None:
        """Divide assignments into shares, sorted by settings and then by size, the largest first."""
        kinds: dict[Any, int] = {}

        def rank(place: int) -> tuple[int, float]:
            task = assignments[place].task
            kind = kinds.setdefault((task.submodel, task.local_sgd), len(kinds))
            return kind, -self._flops(assignments[place])

        order = sorted(range(len(group)), key=rank)
        shares = [order[share :: self._workers] for share in range(min(self._workers, len(order)))]

        def join(stacks: list[Trained]) -> list[Result]:
            found = {
                place: result
                for share, stack in zip(shares, stacks, strict=True)
                for place, result in zip(share, stack.results, strict=True)
            }
            return [found[place] for place in range(len(group))]

        self._parts[group[0]] = Parts(join, [None] * len(shares))
        for part, share in enumerate(shares):
            own = [assignments[place] for place in share]
            models = [model for assignment in own for model in models_of(assignment)]
            self._shares.append((self._item(group[0], part, models, _train_share, None), own))

    def _next(self) -> tuple[Item, Any] | None:
        """Return a share of the current group, or a part of a scoring once all shares are handed out."""
        if not self._shares:
            return self._next_scoring()
        item, assignments = self._shares.popleft()
        return item, [with_ids(assignment) for assignment in assignments]

    def _joined(self, item: Item, found: Any) -> list[tuple[int, Any]]:
        rows = super()._joined(item, found)
        if not rows or item.work != next(iter(self._group), None):
            return rows
        [(_, results)] = rows
        if isinstance(results, Exception):
            return [(number, results) for number in self._group]
        return list(zip(self._group, results, strict=True))


def _train_share(cohort: Cohort, assignments: Sequence[Any], models: Mapping[int, ModelState]) -> Trained:
    """Train assignments with ids in the place of models, in a worker process."""
    return Trained(cohort.train([with_models(each, models) for each in assignments]), _told(cohort.alone))


def _told(reasons: Any) -> list[str]:
    return [f"backend.name: cohort trains one by one, as it cannot be stacked: {why}" for why in reasons]


@dataclass(frozen=True, kw_only=True)
class CohortTraining(BackendPart):
    """Train devices together in stacked calls, on CPU or GPU; equal to serial within rounding, not to the last bit."""

    device: str = "cpu"  # or "cuda", "cuda:0", ... where torch has one
    size: Count = 100  # devices trained in one call at most; fewer where so many would not fit into memory
    workers: Count | None = None  # processes that share devices out on a CPU; None: one a core, if they fit into memory
    stacks: ClassVar[bool] = True
    networks: ClassVar[bool] = False  # it stacks devices of one network

    def check(self) -> None:
        """Raise ConfigError if torch has no such device, or so many processes do not fit into memory."""
        if self._processes > 1:
            nbytes = self._processes * PROCESS_BYTES
            check_memory("backend.workers", nbytes, f"{self._processes:,} processes with PyTorch")
        check_device(self.device)

    def prepare(self) -> None:
        """Start loading the modules of processes; may be called before the trainer exists."""
        if self._processes > 1:
            warm_up()

    def alone(self) -> dict[str, Any]:
        """Return the table of the backend with this process only, which gives the same results up to rounding."""
        return {"name": "cohort", "device": self.device, "size": self.size, "workers": 1}

    @property
    def processes(self) -> int:
        """Number of training processes beside this one; 0: this process trains."""
        return self._processes if self._processes > 1 else 0

    @property
    def _processes(self) -> int:
        if self.device != "cpu":
            return 1
        return self.workers or max(1, min(os.cpu_count() or 1, int(memory_bytes() // PROCESS_BYTES)))

    @property
    def rounding(self) -> str:
        """Facts that decide the last bits of results: runs that differ in them share no cached answers."""
        return f"cohort on {self.device}, {self.size} in a call, {self._processes} processes"

    def open(self, make_trainer: Callable[[str], Trainer]) -> CohortBackend | CohortsBackend:
        """Return the backend. Raises ConfigError if torch has no such device."""
        self.check()
        trainer = make_trainer(self.device)
        if self._processes == 1:
            return CohortBackend(Cohort(trainer, self.size))
        return CohortsBackend(trainer, self.size, self._processes)


PLUGINS = {"cohort": CohortTraining}
