"""Training of many devices in one stacked call. Results differ from serial ones only by rounding.

An assignment is stacked with others that train the same network with the same settings, if its rule uses the gradients
of the loss. Other hooks of rules are called device by device. Assignments that cannot be stacked run alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from edgesim.core.backend import CHUNK, Assignment, Classes, Result, Score
from edgesim.core.limits import memory_bytes
from edgesim.core.local_sgd import Precision
from edgesim.core.method import Finished, LocalRule
from edgesim.core.price_list import WHOLE
from edgesim.core.task import Submodel
from edgesim.core.update import BASE, ModelState
from edgesim.learning.models.build import copy_of
from edgesim.learning.models.seeding import Stream
from edgesim.learning.train.context import restore_base
from edgesim.learning.train.probe import DEVICES, SAMPLES, Stackable, probed
from edgesim.learning.train.stacked import StackedJob, StackedNetwork, quick, run_stacked_sgd
from edgesim.learning.train.trainer import ChunkScore, Trainer, started

_MEMORY_SHARE = 0.5  # share of the memory of a machine or GPU that stacked calls may use
_CACHE_BYTES = 2**22  # activations of a batch of tests: more would not fit into a CPU's cache
_MOST_CHUNKS = 50  # chunks of the test set in a batch
_KEPT_BYTES = 2**27  # test samples kept as float32 inputs of networks, beside the bytes of the data set


class _Ready(NamedTuple):
    """An assignment and its rule."""

    place: int  # among the given assignments
    assignment: Assignment
    rule: LocalRule


class _Tests:
    """Chunks of the test set, in batches. Their samples are made once and kept if they need little memory."""

    def __init__(self, trainer: Trainer, most_bytes: float) -> None:
        self._data = trainer.data
        self._chunks = torch.split(trainer.test_rows, CHUNK)
        self._at_once = _MOST_CHUNKS  # chunks that go through the network in one call
        if next(trainer.module.parameters()).device.type == "cpu":
            computed = trainer.cost_profile.saved_bytes(WHOLE, CHUNK)
            self._at_once = min(max(_CACHE_BYTES // max(computed, 1), 1), _MOST_CHUNKS)
        floats = len(trainer.test_rows) * math.prod(trainer.data.input_shape)
        self._keeps = floats * torch.float32.itemsize <= most_bytes
        self._kept: dict[tuple[int, ...], tuple[Tensor, Tensor]] = {}

    def __len__(self) -> int:
        return len(self._chunks)

    def sums(self, chunks: Sequence[int], of: Callable[[Tensor, Tensor], Tensor]) -> Iterator[Tensor]:
        """Yield the value of `of` for the samples and labels of each batch of these chunks."""
        for start in range(0, len(chunks), self._at_once):
            batch = tuple(chunks[start : start + self._at_once])
            if batch in self._kept:
                x, y = self._kept.pop(batch)
            else:
                x, y = self._data.batch("test", torch.cat([self._chunks[chunk] for chunk in batch]))
            before = x._version
            yield of(x, y)
            if self._keeps and x._version == before:  # else the network changes its inputs in place
                self._kept[batch] = x, y


class Cohort:
    """A trainer on a device of torch that stacks assignments where possible. Equal sizes give bit-identical results."""

    def __init__(self, trainer: Trainer, size: int, memory_share: float = 1.0) -> None:
        """`size`: most devices in one call. `memory_share`: this cohort's share of the memory allowed for cohorts."""
        self._device = next(trainer.module.parameters()).device
        trainer = replace(trainer, data=trainer.data.to(self._device))
        self._size, self._memory_share = size, memory_share
        self._trainer = replace(trainer, module=copy_of(trainer.module))
        self._tester = replace(trainer, module=quick(trainer.module))
        self._tests = _Tests(trainer, memory_share * _KEPT_BYTES)
        self._part: tuple[Submodel, nn.Module, StackedNetwork, Stackable] | None = None
        self.alone: dict[str, None] = {}  # reasons why assignments were not stacked, in order of appearance

    def train(self, assignments: Sequence[Assignment]) -> list[Result]:
        """Train assignments and return their results in the same order."""
        groups: dict[Any, list[_Ready]] = {}
        alone: list[int] = []  # places of assignments that run alone
        for place, assignment in enumerate(assignments):
            task, rule = assignment.task, self._trainer.rule(assignment.task)
            if why_not := _why_not(rule, assignment, self._trainer.precision):
                self.alone.setdefault(why_not)
                alone.append(place)
            else:
                groups.setdefault((task.submodel, task.local_sgd), []).append(_Ready(place, assignment, rule))
        stacks: list[list[_Ready]] = []
        for group in groups.values():
            own = self._stacks(group)
            stacks += own
            if not own:
                alone += (each.place for each in group)
        found = dict(row for ready in stacks for row in self._train_stack(ready))
        found |= {place: self._trainer.run(assignments[place]) for place in sorted(alone)}
        return [found[place] for place in range(len(assignments))]

    def score_chunks(self, model: ModelState, chunks: Sequence[int], classes: Classes = None) -> list[ChunkScore]:
        """Return loss and hits of a model over the samples of these classes in chunks of the test set."""
        network, objective = self._tester.load_for_test(model), self._tester.objective

        def summed(x: Tensor, y: Tensor) -> Tensor:
            """Return summed loss, hits, samples, amount and counts of each chunk, shape (chunks, 4 + counts)."""
            logits = network(x)
            losses, hits, counted = objective.losses(logits, y), objective.hits(logits, y), objective.counted(y)
            ones = torch.ones_like(losses)
            counted = ones if counted is None else counted
            each = torch.stack([losses * counted, hits * counted, ones, counted], 1)
            if self._tester.metrics:
                each = torch.cat([each, objective.counts(logits, y)], 1)
            if classes is not None:
                each = torch.where(torch.isin(y, torch.tensor(classes, device=y.device)).unsqueeze(1), each, 0.0)
            return F.pad(each, (0, 0, 0, -len(y) % CHUNK)).view(-1, CHUNK, each.shape[1]).sum(1)

        with torch.no_grad():
            sums = list(self._tests.sums(chunks, summed))
        rows = torch.cat(sums).tolist() if sums else []
        return [ChunkScore(loss, hits, int(n), amount, tuple(more)) for loss, hits, n, amount, *more in rows]

    def scores(self, model: ModelState, classes: Classes = None) -> Mapping[str, Score]:
        """Return the scores of a model on the test samples of these classes."""
        return self._tester.scores(self.score_chunks(model, range(len(self._tests)), classes))

    def score_personal(self, device: int, model: ModelState) -> Score:
        """Return the score of a device's model on the device's own test set."""
        return self._tester.score_personal(device, model)

    def _train_stack(self, ready: Sequence[_Ready]) -> list[tuple[int, Result]]:
        """Train assignments together. Return (place, result) pairs."""
        trainer, first = self._trainer, ready[0].assignment.task
        module, stacked, _ = self._network(first.submodel)
        jobs: list[StackedJob] = []
        for each in ready:
            context, stream = trainer.context(each.assignment, module), Stream(each.assignment.key)
            with stream.read() if each.rule.on_start else nullcontext():
                local = started(each.rule, context)
            jobs.append(StackedJob(each.assignment, each.rule, context, local, stream))
        for phase in range(len(first.local_sgd)):
            for job in jobs:
                job.enter(phase)
            run_stacked_sgd(jobs, phase, stacked, trainer.data)
        results: list[tuple[int, Result]] = []
        for each, job in zip(ready, jobs, strict=True):
            finished, report = Finished(job.local.weights), trainer.report(job.context, job.local)
            if job.rule.on_finish:
                with job.stream.read():
                    finished = job.rule.on_finish(job.local, job.context)
            results.append((each.place, trainer.result(job.context, job.assignment, finished, job.steps, report)))
        return results

    def _network(self, submodel: Submodel) -> tuple[nn.Module, StackedNetwork, Stackable]:
        """Return the plain and the stacked network of a part, and if it can be stacked. The last answer is kept."""
        if self._part is None or self._part[0] != submodel:
            restore_base(self._trainer.module)
            module = self._trainer.network(submodel)
            stacked = StackedNetwork(module)
            rows = torch.arange(DEVICES * SAMPLES) % len(self._trainer.data.y_train)
            x, y = (each.to(self._device) for each in self._trainer.data.batch("train", rows))
            found = probed(stacked, module, submodel.frozen, x, y, self._trainer.objective)
            self._part = submodel, module, stacked, found
        return self._part[1:]

    def _stacks(self, group: list[_Ready]) -> list[list[_Ready]]:
        """Split a group into the assignments of one call each. Return none if they cannot be stacked."""
        if len(group) == 1:
            return []
        stackable = self._network(group[0].assignment.task.submodel)[2]
        if stackable.why_not:
            self.alone.setdefault(f"the network: {stackable.why_not}")
            return []

        def trained_on(each: _Ready) -> int:
            return len(self._trainer.shard(each.assignment)) - each.assignment.task.held_out

        kinds: dict[int, list[_Ready]] = {}  # without padding, by the number of samples
        for each in sorted(group, key=lambda each: -trained_on(each)):
            kinds.setdefault(0 if stackable.pads else trained_on(each), []).append(each)
        task, profile = group[0].assignment.task, self._trainer.cost_profile
        needed = max(profile.memory_bytes(task.submodel, sgd.batch, sgd.moments).total for sgd in task.local_sgd)
        cpu = self._device.type == "cpu"
        here = memory_bytes() if cpu else torch.cuda.get_device_properties(self._device).total_memory
        most = max(1, min(self._size, int(self._memory_share * _MEMORY_SHARE * here / needed)))
        parts = [(same, -(-len(same) // most)) for same in kinds.values()]
        return [same[part::count] for same, count in parts for part in range(count)]


def _why_not(rule: LocalRule, assignment: Assignment, precision: Precision) -> str | None:
    """Return the reason why an assignment cannot be stacked whatever its network is, or None if it can."""
    if precision != "float32":
        return f"training.precision: it trains in {precision}"
    if not assignment.task.local_sgd:
        return "tasks without local SGD"
    if BASE in assignment.global_model:
        return "the method: it moves the base of the network"
    if any(phase.run for phase in rule.phases):
        return "the method: its devices train by a loop of the user's own"
    if any(phase.loss or phase.gradient for phase in rule.phases):
        return "the method: its devices take other gradients than those of the cross-entropy"
    if any(phase.frozen for phase in rule.phases):
        return "the method: its devices train other layers in each phase"
    return None
