"""Trains many devices in one stacked call. That changes rounding alone: results agree with serial ones within it.

An assignment is stacked with others that train the same network with the same settings, if its rule takes the gradients
of the loss; other hooks of rules are called device by device. What cannot be stacked is carried out alone.
"""

from __future__ import annotations

import copy
import queue
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from edgesim.core.backend import Assignment, Result, Score
from edgesim.core.limits import memory_bytes
from edgesim.core.method import Finished, LocalRule
from edgesim.core.task import Submodel
from edgesim.core.update import ModelState
from edgesim.cost.profile import WHOLE
from edgesim.learning.models.seeding import Stream
from edgesim.learning.train.probe import DEVICES, SAMPLES, Stackable, probed
from edgesim.learning.train.stacked import StackedNetwork, in_whole_calls, quick
from edgesim.learning.train.stacked_sgd import StackedJob, run_stacked_sgd
from edgesim.learning.train.torch_settings import torch_threads
from edgesim.learning.train.trainer import CHUNK, ChunkScore, Trainer, started

_Given = TypeVar("_Given")
_Got = TypeVar("_Got")
_MEMORY_SHARE = 0.5  # of a machine or GPU, that stacked calls may take
_CACHE_BYTES = 2**22  # of what a network computes of a batch of tests: more leaves a CPU's cache
_MOST_CHUNKS = 50  # of the test set in a batch


class _Ready(NamedTuple):
    """An assignment and the rule that it is carried out by."""

    place: int  # among those given
    assignment: Assignment
    rule: LocalRule


class _Stacks(NamedTuple):
    """How assignments are trained."""

    in_whole_calls: list[list[_Ready]]  # one stack after another, torch's threads share each of its operations
    by_lanes: list[list[_Ready]]  # several stacks at a time, a lane each
    alone: list[int]  # their places


class _Lane:
    """What one thread works with: networks of its own."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = replace(trainer, module=copy.deepcopy(trainer.module))
        self.tester = replace(trainer, module=quick(trainer.module))
        self._part: tuple[Submodel, nn.Module, StackedNetwork, Stackable] | None = None

    def network(self, submodel: Submodel) -> tuple[nn.Module, StackedNetwork, Stackable]:
        """Return the network of a part, plain and stacked, and whether it can be stacked. That of the last is kept."""
        if self._part is None or self._part[0] != submodel:
            module = self.trainer.network(submodel)
            stacked = StackedNetwork(module)
            data, device = self.trainer.data, next(module.parameters()).device
            rows = torch.arange(DEVICES * SAMPLES) % len(data.y_train)
            x, y = (each.to(device) for each in data.batch("train", rows))
            self._part = (
                submodel,
                module,
                stacked,
                probed(stacked, module, submodel.frozen, x, y, self.trainer.objective),
            )
        return self._part[1:]

    def train(self, ready: Sequence[_Ready]) -> list[tuple[int, Result]]:
        """Train assignments together; return results by their places."""
        first = ready[0].assignment.task
        module, stacked, _ = self.network(first.submodel)
        jobs = [self._started(each, module) for each in ready]
        for phase in range(len(first.local_sgd)):
            for job in jobs:
                job.enter(phase)
            run_stacked_sgd(jobs, phase, stacked, self.trainer.data)
        return [(each.place, self._result(job)) for each, job in zip(ready, jobs, strict=True)]

    def score(self, model: ModelState, batches: Sequence[Tensor]) -> list[ChunkScore]:
        """Return loss and hits of a model on each chunk of test samples, given by their rows in batches of chunks."""
        network = self.tester.load_for_test(model)
        with torch.no_grad():
            sums = [_sums(network, self.tester, *self.tester.data.batch("test", rows)) for rows in batches]
        chunks = torch.cat(sums).tolist()
        return [ChunkScore(loss, hits, int(samples), tuple(more)) for loss, hits, samples, *more in chunks]

    def _started(self, ready: _Ready, module: nn.Module) -> StackedJob:
        context, stream = self.trainer.context(ready.assignment, module), Stream(ready.assignment.key)
        with stream.read() if ready.rule.on_start else nullcontext():
            local = started(ready.rule, context)
        return StackedJob(ready.assignment, ready.rule, context, local, stream)

    def _result(self, job: StackedJob) -> Result:
        finished, report = Finished(job.local.weights), self.trainer.report(job.context, job.local)
        if job.rule.on_finish:
            with job.stream.read():
                finished = job.rule.on_finish(job.local, job.context)
        return self.trainer.result(job.context, job.assignment, finished, job.steps, report)


def _sums(network: nn.Module, tester: Trainer, x: Tensor, y: Tensor) -> Tensor:
    """Return summed loss, hits, samples and counts of each chunk of a batch, shape (chunks, 3 + counts)."""
    logits, objective = network(x), tester.objective
    losses = objective.losses(logits, y)
    each = torch.stack([losses, objective.hits(logits, y), torch.ones_like(losses)], 1)
    if tester.metrics:
        each = torch.cat([each, objective.counts(logits, y)], 1)
    return F.pad(each, (0, 0, 0, -len(y) % CHUNK)).view(-1, CHUNK, each.shape[1]).sum(1)


class Cohort:
    """Trains on a device of torch, stacked where that can be, in threads that each have an even share of the devices.

    Equal sizes and threads give equal results, bit for bit.
    """

    def __init__(self, trainer: Trainer, size: int, threads: int) -> None:
        """`size`: how many devices one call trains at most."""
        device = next(trainer.module.parameters()).device
        trainer = replace(trainer, data=trainer.data.to(device))
        self._size, self._device = size, device
        self._lanes = [_Lane(trainer) for _ in range(threads)]
        self._tests = torch.split(trainer.test_rows, CHUNK * _chunks_at_once(trainer))
        self._tests_whole = in_whole_calls(trainer.module)
        self._free: queue.SimpleQueue[_Lane] = queue.SimpleQueue()
        for lane in self._lanes:
            self._free.put(lane)
        self._threads = ThreadPoolExecutor(threads, "cohort")
        self.alone: dict[str, None] = {}  # why assignments were not stacked, in the order in which it showed

    def train(self, assignments: Sequence[Assignment]) -> list[Result]:
        """Train assignments; return their results in the order given."""
        stacks = self._sorted(assignments)
        first = self._lanes[0]
        with torch_threads(len(self._lanes)):
            rows = [first.train(ready) for ready in stacks.in_whole_calls]
        rows += self._in_threads(_Lane.train, stacks.by_lanes)
        found = dict(row for some in rows for row in some)
        found |= {place: first.trainer.run(assignments[place]) for place in stacks.alone}
        return [found[place] for place in range(len(assignments))]

    def chunks(self) -> int:
        """Return the number of chunks of the test set."""
        return self._lanes[0].trainer.chunks()

    def score(self, model: ModelState) -> list[ChunkScore]:
        """Return loss and hits of a model on each chunk of the test set."""
        if self._tests_whole:
            with torch_threads(len(self._lanes)):
                return self._lanes[0].score(model, self._tests)
        lanes = min(len(self._lanes), len(self._tests))
        cuts = [len(self._tests) * lane // lanes for lane in range(lanes + 1)]
        spans = [self._tests[start:end] for start, end in pairwise(cuts)]
        scored = self._in_threads(lambda lane, span: lane.score(model, span), spans)
        return [chunk for span in scored for chunk in span]

    def total(self, chunks: Sequence[ChunkScore]) -> Score:
        """Return the score over chunks."""
        return self._lanes[0].trainer.total(chunks)

    def score_personal(self, models: Mapping[int, ModelState]) -> dict[int, Score]:
        """Return the score of each device's model on the device's own test set."""
        scored = self._in_threads(lambda lane, row: lane.tester.score_personal(*row), list(models.items()))
        return dict(zip(models, scored, strict=True))

    def close(self) -> None:
        """End the threads. May be called twice."""
        self._threads.shutdown()

    def _in_threads(self, work: Callable[[_Lane, _Given], _Got], given: Sequence[_Given]) -> list[_Got]:
        def on_a_lane(each: _Given) -> _Got:
            lane = self._free.get()
            try:
                return work(lane, each)
            finally:
                self._free.put(lane)

        return list(self._threads.map(on_a_lane, given))

    def _sorted(self, assignments: Sequence[Assignment]) -> _Stacks:
        """Return which assignments are trained together, and how, and which alone."""
        groups: dict[Any, list[_Ready]] = {}
        found = _Stacks([], [], [])
        for place, assignment in enumerate(assignments):
            rule = self._lanes[0].trainer.rule(assignment.task)
            if why_not := _why_not(rule, assignment):
                self.alone.setdefault(why_not)
                found.alone.append(place)
            else:
                task = assignment.task
                groups.setdefault((task.submodel, task.local_sgd), []).append(_Ready(place, assignment, rule))
        for group in groups.values():
            self._split(group, found)
        found.alone.sort()
        return found

    def _split(self, group: list[_Ready], found: _Stacks) -> None:
        """Add to `found` which of a group are trained in one call each, and who is trained alone."""
        first = group[0].assignment.task
        if len(group) == 1:
            found.alone.append(group[0].place)
            return
        _, network, stackable = self._lanes[0].network(first.submodel)
        if stackable.why_not:
            self.alone.setdefault(f"the network: {stackable.why_not}")
            found.alone.extend(each.place for each in group)
            return
        shards = self._lanes[0].trainer.shards

        def trained_on(each: _Ready) -> int:
            return len(shards[each.assignment.device]) - each.assignment.task.held_out

        by_samples = sorted(group, key=lambda each: -trained_on(each))
        kinds = {0: by_samples} if stackable.pads else _by(by_samples, trained_on)
        lanes, stacks = (1, found.in_whole_calls) if network.in_whole_calls else (len(self._lanes), found.by_lanes)
        for same in kinds.values():
            parts = max(-(-len(same) // self._most(same)), min(lanes, len(same)))
            stacks += (same[part::parts] for part in range(parts))

    def _most(self, ready: Sequence[_Ready]) -> int:
        """Return how many assignments one call may train: `size`, or less where they would not fit into memory."""
        task, profile = ready[0].assignment.task, self._lanes[0].trainer.cost_profile
        each = max(profile.memory_bytes(task.submodel, sgd.batch, sgd.moments).total for sgd in task.local_sgd)
        here = (
            memory_bytes()
            if self._device.type == "cpu"
            else torch.cuda.get_device_properties(self._device).total_memory
        )
        return max(1, min(self._size, int(_MEMORY_SHARE * here / len(self._lanes) / each)))


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
