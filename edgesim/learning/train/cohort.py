"""Trains many devices in one stacked call. That changes rounding alone: results agree with serial ones within it.

An assignment is stacked with others that train the same network with the same settings, if its rule takes the gradients
of the loss; other hooks of rules are called device by device. What cannot be stacked is carried out alone.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from edgesim.core.backend import Assignment, Result, Score
from edgesim.core.limits import memory_bytes
from edgesim.core.method import Finished, LocalRule
from edgesim.core.price_list import WHOLE
from edgesim.core.task import Submodel
from edgesim.core.update import ModelState
from edgesim.learning.models.seeding import Stream
from edgesim.learning.train.probe import DEVICES, SAMPLES, Stackable, probed
from edgesim.learning.train.stacked import StackedJob, StackedNetwork, quick, run_stacked_sgd
from edgesim.learning.train.trainer import CHUNK, ChunkScore, Trainer, started

_MEMORY_SHARE = 0.5  # of a machine or GPU, that stacked calls may take
_CACHE_BYTES = 2**22  # of what a network computes of a batch of tests: more leaves a CPU's cache
_MOST_CHUNKS = 50  # of the test set in a batch
_KEPT_BYTES = 2**27  # of test samples as networks take them, which are held as bytes


class _Ready(NamedTuple):
    """An assignment and the rule that it is carried out by."""

    place: int  # among those given
    assignment: Assignment
    rule: LocalRule


class _Tests:
    """Chunks of the test set, in batches. Their samples are made once and kept, if they take little memory."""

    def __init__(self, trainer: Trainer, most_bytes: float) -> None:
        self._data = trainer.data
        self._chunks = torch.split(trainer.test_rows, CHUNK)
        self._at_once = _chunks_at_once(trainer)
        floats = len(trainer.test_rows) * math.prod(trainer.data.input_shape)
        self._keeps = floats * torch.float32.itemsize <= most_bytes
        self._kept: dict[tuple[int, ...], tuple[Tensor, Tensor]] = {}

    def __len__(self) -> int:
        return len(self._chunks)

    def sums(self, chunks: Sequence[int], of: Callable[[Tensor, Tensor], Tensor]) -> Iterator[Tensor]:
        """Yield what `of` gives for the samples and labels of each batch of these chunks."""
        for start in range(0, len(chunks), self._at_once):
            batch = tuple(chunks[start : start + self._at_once])
            x, y = self._kept.pop(batch) if batch in self._kept else self._made(batch)
            before = x._version
            yield of(x, y)
            if self._keeps and x._version == before:  # else the network works in place on what it is given
                self._kept[batch] = x, y

    def _made(self, batch: Sequence[int]) -> tuple[Tensor, Tensor]:
        return self._data.batch("test", torch.cat([self._chunks[chunk] for chunk in batch]))


class Cohort:
    """Trains on a device of torch, stacked where that can be. An equal size gives equal results, bit for bit."""

    def __init__(self, trainer: Trainer, size: int, memory_share: float = 1.0) -> None:
        """`size`: how many devices one call trains at most; `memory_share`: of what cohorts of a machine may take."""
        self._device = next(trainer.module.parameters()).device
        trainer = replace(trainer, data=trainer.data.to(self._device))
        self._size, self._memory_share = size, memory_share
        self._trainer = replace(trainer, module=copy.deepcopy(trainer.module))
        self._tester = replace(trainer, module=quick(trainer.module))
        self._tests = _Tests(trainer, memory_share * _KEPT_BYTES)
        self._part: tuple[Submodel, nn.Module, StackedNetwork, Stackable] | None = None
        self.alone: dict[str, None] = {}  # why assignments were not stacked, in the order in which it showed

    def train(self, assignments: Sequence[Assignment]) -> list[Result]:
        """Train assignments; return their results in the order given."""
        stacks, alone = self._sorted(assignments)
        found = dict(row for ready in stacks for row in self._train_stack(ready))
        found |= {place: self._trainer.run(assignments[place]) for place in alone}
        return [found[place] for place in range(len(assignments))]

    def score_chunks(self, model: ModelState, chunks: Sequence[int]) -> list[ChunkScore]:
        """Return loss and hits of a model on some chunks of the test set."""
        network = self._tester.load_for_test(model)
        with torch.no_grad():
            sums = list(self._tests.sums(chunks, lambda x, y: _sums(network, self._tester, x, y)))
        rows = torch.cat(sums).tolist() if sums else []
        return [ChunkScore(loss, hits, int(samples), tuple(more)) for loss, hits, samples, *more in rows]

    def scores(self, model: ModelState) -> Mapping[str, Score]:
        """Return the scores of a model on the whole test set."""
        return self._tester.scores(self.score_chunks(model, range(len(self._tests))))

    def score_personal(self, device: int, model: ModelState) -> Score:
        """Return the score of a device's model on the device's own test set."""
        return self._tester.score_personal(device, model)

    def _train_stack(self, ready: Sequence[_Ready]) -> list[tuple[int, Result]]:
        """Train assignments together; return results by their places."""
        first = ready[0].assignment.task
        module, stacked, _ = self._network(first.submodel)
        jobs = [self._started(each, module) for each in ready]
        for phase in range(len(first.local_sgd)):
            for job in jobs:
                job.enter(phase)
            run_stacked_sgd(jobs, phase, stacked, self._trainer.data)
        return [(each.place, self._result(job)) for each, job in zip(ready, jobs, strict=True)]

    def _network(self, submodel: Submodel) -> tuple[nn.Module, StackedNetwork, Stackable]:
        """Return the network of a part, plain and stacked, and whether it can be stacked. That of the last is kept."""
        if self._part is None or self._part[0] != submodel:
            module = self._trainer.network(submodel)
            stacked = StackedNetwork(module)
            rows = torch.arange(DEVICES * SAMPLES) % len(self._trainer.data.y_train)
            x, y = (each.to(self._device) for each in self._trainer.data.batch("train", rows))
            found = probed(stacked, module, submodel.frozen, x, y, self._trainer.objective)
            self._part = submodel, module, stacked, found
        return self._part[1:]

    def _started(self, ready: _Ready, module: nn.Module) -> StackedJob:
        context, stream = self._trainer.context(ready.assignment, module), Stream(ready.assignment.key)
        with stream.read() if ready.rule.on_start else nullcontext():
            local = started(ready.rule, context)
        return StackedJob(ready.assignment, ready.rule, context, local, stream)

    def _result(self, job: StackedJob) -> Result:
        finished, report = Finished(job.local.weights), self._trainer.report(job.context, job.local)
        if job.rule.on_finish:
            with job.stream.read():
                finished = job.rule.on_finish(job.local, job.context)
        return self._trainer.result(job.context, job.assignment, finished, job.steps, report)

    def _sorted(self, assignments: Sequence[Assignment]) -> tuple[list[list[_Ready]], list[int]]:
        """Return which assignments are trained together, and the places of those that are trained alone."""
        groups: dict[Any, list[_Ready]] = {}
        stacks: list[list[_Ready]] = []
        alone: list[int] = []
        for place, assignment in enumerate(assignments):
            rule = self._trainer.rule(assignment.task)
            if why_not := _why_not(rule, assignment):
                self.alone.setdefault(why_not)
                alone.append(place)
            else:
                task = assignment.task
                groups.setdefault((task.submodel, task.local_sgd), []).append(_Ready(place, assignment, rule))
        for group in groups.values():
            found = self._stacks(group)
            stacks += found
            if not found:
                alone += (each.place for each in group)
        return stacks, sorted(alone)

    def _stacks(self, group: list[_Ready]) -> list[list[_Ready]]:
        """Return which of a group are trained in one call each; none if they cannot be."""
        if len(group) == 1:
            return []
        stackable = self._network(group[0].assignment.task.submodel)[2]
        if stackable.why_not:
            self.alone.setdefault(f"the network: {stackable.why_not}")
            return []
        shards = self._trainer.shards

        def trained_on(each: _Ready) -> int:
            return len(shards[each.assignment.device]) - each.assignment.task.held_out

        by_samples = sorted(group, key=lambda each: -trained_on(each))
        kinds = {0: by_samples} if stackable.pads else _by(by_samples, trained_on)
        parts = [(same, -(-len(same) // self._most(same))) for same in kinds.values()]
        return [same[part::count] for same, count in parts for part in range(count)]

    def _most(self, ready: Sequence[_Ready]) -> int:
        """Return how many assignments one call may train: `size`, or less where they would not fit into memory."""
        task, profile = ready[0].assignment.task, self._trainer.cost_profile
        each = max(profile.memory_bytes(task.submodel, sgd.batch, sgd.moments).total for sgd in task.local_sgd)
        here = (
            memory_bytes()
            if self._device.type == "cpu"
            else torch.cuda.get_device_properties(self._device).total_memory
        )
        return max(1, min(self._size, int(self._memory_share * _MEMORY_SHARE * here / each)))


def _sums(network: nn.Module, tester: Trainer, x: Tensor, y: Tensor) -> Tensor:
    """Return summed loss, hits, samples and counts of each chunk of a batch, shape (chunks, 3 + counts)."""
    logits, objective = network(x), tester.objective
    losses = objective.losses(logits, y)
    each = torch.stack([losses, objective.hits(logits, y), torch.ones_like(losses)], 1)
    if tester.metrics:
        each = torch.cat([each, objective.counts(logits, y)], 1)
    return F.pad(each, (0, 0, 0, -len(y) % CHUNK)).view(-1, CHUNK, each.shape[1]).sum(1)


def _why_not(rule: LocalRule, assignment: Assignment) -> str | None:
    """Return why an assignment cannot be stacked whatever its network is; None if it can."""
    if not assignment.task.local_sgd:
        return "tasks without local SGD"
    if any(phase.loss or phase.gradient for phase in rule.phases):
        return "the method: its devices take other gradients than those of the cross-entropy"
    if any(phase.frozen for phase in rule.phases):
        return "the method: its devices train other layers in each phase"
    return None


def _chunks_at_once(trainer: Trainer) -> int:
    """Return how many chunks of the test set go through the network in one call: the more, the fewer calls."""
    if next(trainer.module.parameters()).device.type != "cpu":
        return _MOST_CHUNKS
    computed = trainer.cost_profile.memory_bytes(WHOLE, CHUNK).activations
    return min(max(_CACHE_BYTES // max(computed, 1), 1), _MOST_CHUNKS)


def _by(ready: Sequence[_Ready], kind: Callable[[_Ready], int]) -> dict[int, list[_Ready]]:
    found: dict[int, list[_Ready]] = {}
    for each in ready:
        found.setdefault(kind(each), []).append(each)
    return found
