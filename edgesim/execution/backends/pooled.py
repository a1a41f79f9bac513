"""The common part of backends whose processes train while their caller goes on."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np

from edgesim.core.backend import (
    Assignment,
    Classes,
    FuturesBackend,
    LocalTraining,
    PersonalScoring,
    Result,
    Score,
    Scoring,
    Work,
)
from edgesim.core.errors import EdgesimError
from edgesim.core.update import ModelState
from edgesim.execution.backends.compiling import told
from edgesim.execution.processes import Pool
from edgesim.learning.train.trainer import ChunkScore, Trainer

DEPTH = 2  # items that a process has at once, so that it can start the next one immediately
_MOST_SCORINGS = 4  # waiting scorings per process; more go before training, as each keeps a model in memory


Kind: TypeAlias = Callable[[Any, Any, Mapping[int, ModelState]], Any]  # of trainer, own data, and models by id


class Item(NamedTuple):
    """A part of a piece of work, for one process; its models are sent separately."""

    work: int  # number of the piece of work
    part: int  # place in the work's parts
    models: tuple[int, ...]  # ids of the models that it needs
    kind: Kind
    given: Any


class Trained(NamedTuple):
    """The results of assignments of one process, and all warnings of the process so far."""

    results: Sequence[Any]  # each a Result
    told: Sequence[str]


class Tester(Protocol):
    """The object with which a process scores models."""

    def score_chunks(self, model: ModelState, chunks: Sequence[int], classes: Classes = None) -> list[ChunkScore]:
        """Return loss and hits of a model over the samples of these classes in chunks of the test set."""

    def score_personal(self, device: int, model: ModelState) -> Score:
        """Return the score of a device's model on the device's own test set."""


@dataclass
class Parts:
    """Results of the parts of a piece of work so far."""

    join: Callable[[list[Any]], Any]
    found: list[Any]
    missing: int = field(init=False)

    def __post_init__(self) -> None:
        self.missing = len(self.found)


class PooledBackend(FuturesBackend):
    """A pool of processes. Jobs are pure, so results do not depend on the process or the order of training."""

    rounds_ahead = 64

    def __init__(self, trainer: Trainer, workers: int, pool: Pool, models: HeldModels) -> None:
        """`models`: the store in which processes of the pool find models."""
        self._trainer = trainer
        self._chunks = trainer.chunks()
        self._workers = workers
        self._pool = pool
        self._models = models
        self._parts: dict[int, Parts] = {}  # of unfinished pieces of work, by number
        self._jobs: list[tuple[tuple[float, ...], Item, Assignment]] = []  # a heap: jobs needed first, then long ones
        self._scorings: deque[Item] = deque()
        self._order = count()
        self._died: EdgesimError | None = None
        self._told: dict[str, None] = {}  # warnings of the processes
        self._own = count(-1, -1)  # numbers of work that `_all` submits
        self._pool.begin()

    @property
    def warnings(self) -> Sequence[str]:
        """Warnings of the processes so far: why jobs were trained one by one, or steps were not compiled."""
        return sorted(self._told)  # in an order that does not depend on the timing of processes

    def close(self) -> None:
        """End the worker processes, whatever they are doing."""
        self._pool.close()

    @abstractmethod
    def _give(self, item: Item, given: Any) -> None:
        """Send an item to a process of the pool; `given`: its own data, for a job the assignment with ids as models."""

    def _received(self, found: Any) -> Any:
        """Return the result that a process sent, with the models that it sent separately."""
        return found

    # --- work ahead -------------------------------------------------------------------------------------------------

    def submit(self, number: int, work: Work) -> None:
        """Take a piece of work; see edgesim.core.backend.FuturesBackend."""
        if isinstance(work, LocalTraining):
            self._submit_training(number, work)
        elif isinstance(work, Scoring):
            spans = np.array_split(np.arange(self._chunks), min(self._workers, self._chunks))
            self._parts[number] = Parts(  # sums in chunk order, whichever process computed the chunks
                lambda found: self._trainer.scores([chunk for chunks in found for chunk in chunks]), [None] * len(spans)
            )
            for part, span in enumerate(spans):
                wanted = id(work.model), span.tolist(), work.classes
                self._scorings.append(self._item(number, part, [work.model], _score, wanted))
        else:
            devices = list(work.models)
            spans = [span for span in np.array_split(np.arange(len(devices)), 2 * self._workers) if len(span)]
            self._parts[number] = Parts(lambda found: dict(row for rows in found for row in rows), [None] * len(spans))
            for part, span in enumerate(spans):
                rows = [(devices[place], id(work.models[devices[place]])) for place in span]
                models = [work.models[devices[place]] for place in span]
                self._scorings.append(self._item(number, part, models, _score_personal, rows))

    def collect(self, wait: bool) -> Sequence[tuple[int, Any]]:
        """Return finished work; see edgesim.core.backend.FuturesBackend."""
        done: list[tuple[int, Any]] = []
        while True:
            self._hand_out()
            with self._noting_deaths():
                taken = self._pool.take(wait and not done)
            for item, found in taken:
                self._models.release(item.models)
                done += self._joined(item, found)
            if done or not wait or not self._parts:
                self._hand_out()
                return done

    def _submit_training(self, number: int, work: LocalTraining) -> None:
        assignment = work.assignment
        item = self._item(number, 0, models_of(assignment), _train, None)
        rank = (float(work.turn), -self._flops(assignment), float(next(self._order)))
        self._parts[number] = Parts(lambda found: found[0].results[0], [None])
        heappush(self._jobs, (rank, item, assignment))

    def _item(self, number: int, part: int, models: Sequence[ModelState | None], kind: Kind, given: Any) -> Item:
        return Item(number, part, self._models.hold(models), kind, given)

    def _hand_out(self) -> None:
        """Give the next items to processes that are done or nearly done."""
        while self._pool.has_room(DEPTH) and (found := self._next()):
            with self._noting_deaths():
                self._give(*found)

    def _next(self) -> tuple[Item, Any] | None:
        """Return the next item for a process, and the item's own data; None: there is none."""
        if self._scorings and (not self._jobs or len(self._scorings) > _MOST_SCORINGS * self._workers):
            return self._next_scoring()
        if not self._jobs:
            return None
        _, item, assignment = heappop(self._jobs)
        return item, with_ids(assignment)

    def _next_scoring(self) -> tuple[Item, Any] | None:
        if not self._scorings:
            return None
        item = self._scorings.popleft()
        return item, item.given

    @contextmanager
    def _noting_deaths(self) -> Iterator[None]:
        """Raise EdgesimError if a process dies, and in all later calls, as its work will never be finished."""
        if self._died is not None:
            raise self._died
        try:
            yield
        except EdgesimError as error:
            self._died = error
            raise

    def _joined(self, item: Item, found: Any) -> list[tuple[int, Any]]:
        """Store the result of a part; return the piece of work and its value if the part completes it."""
        parts = self._parts.get(item.work)
        if parts is None:  # another part of it has failed
            return []
        if isinstance(found, Exception):
            del self._parts[item.work]
            return [(item.work, found)]
        parts.found[item.part] = self._received(found)
        if isinstance(found, Trained):
            self._told.update(dict.fromkeys(found.told))
        parts.missing -= 1
        if parts.missing:
            return []
        del self._parts[item.work]
        return [(item.work, parts.join(parts.found))]

    def _flops(self, assignment: Assignment) -> float:
        """Return the approximate FLOPs of an assignment."""
        trainer, task = self._trainer, assignment.task
        samples = np.array([len(trainer.shard(assignment)) - task.held_out])
        cost_profile = trainer.cost_of(task.submodel)
        amounts = (sgd.amount(samples, cost_profile.drop_single)[0] for sgd in task.local_sgd)
        return float(sum(amount[0] for amount in amounts)) * cost_profile.train_flops(task.submodel)

    # --- all at once --------------------------------------------------------------------------------------------------

    def train(self, assignments: Sequence[Assignment]) -> Sequence[Result]:
        """Train in all processes in parallel. No other work may be in progress."""
        return self._all([LocalTraining(each) for each in assignments])

    def evaluate(self, model: ModelState, classes: Classes = None) -> Mapping[str, Score]:
        """Score on the test set in all processes in parallel."""
        scores: Mapping[str, Score] = self._all([Scoring(model, classes)])[0]
        return scores

    def evaluate_personal(self, models: Mapping[int, ModelState]) -> Mapping[int, Score]:
        """Score in all processes in parallel."""
        scores: Mapping[int, Score] = self._all([PersonalScoring(models)])[0]
        return scores

    def _all(self, works: Sequence[Work]) -> list[Any]:
        """Return the results of pieces of work in their order; raise the first error among them."""
        numbers = [next(self._own) for _ in works]
        for number, work in zip(numbers, works, strict=True):
            self.submit(number, work)
        found: dict[int, Any] = {}
        while len(found) < len(works):
            found.update(self.collect(wait=True))
        for number in numbers:
            if isinstance(found[number], Exception):
                raise found[number]
        return [found[number] for number in numbers]


class HeldModels:
    """Models of unfinished items; each is stored for the processes when its first item is handed out."""

    def __init__(self, put: Callable[[ModelState], Any], free: Callable[[Any], None]) -> None:
        """`put`: stores a model and returns its place; `free`: removes it."""
        self._put = put
        self._free = free
        self._models: dict[int, ModelState] = {}  # by id, while an item needs it
        self._places: dict[int, Any] = {}
        self._items: Counter[int] = Counter()

    def hold(self, models: Sequence[ModelState | None]) -> tuple[int, ...]:
        """Return the ids of models that an item needs until `release`."""
        needed = {id(model): model for model in models if model is not None}
        self._models.update(needed)
        self._items.update(needed.keys())
        return tuple(needed)

    def places(self, models: Sequence[int]) -> dict[int, Any]:
        """Return the places of an item's models, by id."""
        for model in models:
            if model not in self._places:
                self._places[model] = self._put(self._models[model])
        return {model: self._places[model] for model in models}

    def release(self, models: Sequence[int]) -> None:
        """Release the models of a finished item."""
        for model in models:
            self._items[model] -= 1
            if not self._items[model]:
                del self._items[model], self._models[model]
                self._free(self._places.pop(model))


def models_of(assignment: Assignment) -> list[ModelState | None]:
    """Return the models that an assignment uses."""
    return [assignment.global_model, assignment.device_state, *(each.body for each in assignment.received)]


def with_ids(assignment: Any) -> Any:
    """Return an assignment with ids in the place of models."""
    return assignment._replace(
        global_model=id(assignment.global_model),
        device_state=None if assignment.device_state is None else id(assignment.device_state),
        received=[m._replace(body=id(m.body), own_model=None) for m in assignment.received],
    )


# --- in a worker process ----------------------------------------------------------------------------------------------


def with_models(assignment: Any, models: Mapping[int, ModelState]) -> Assignment:
    """Return an assignment with models in the place of ids."""
    given: Assignment = assignment._replace(
        global_model=models[assignment.global_model],
        device_state=None if assignment.device_state is None else models[assignment.device_state],
        received=[m._replace(body=models[m.body]) for m in assignment.received],
    )
    return given


def _train(trainer: Trainer, assignment: Any, models: Mapping[int, ModelState]) -> Trained:
    return Trained([trainer.run(with_models(assignment, models))], told(trainer))


def _score(
    trainer: Tester, work: tuple[int, Sequence[int], Classes], models: Mapping[int, ModelState]
) -> list[ChunkScore]:
    model, chunks, classes = work
    return trainer.score_chunks(models[model], chunks, classes)


def _score_personal(
    trainer: Tester, rows: Sequence[tuple[int, int]], models: Mapping[int, ModelState]
) -> list[tuple[int, Score]]:
    return [(device, trainer.score_personal(device, models[model])) for device, model in rows]
