"""Local SGD of many devices at once: as `run_local_sgd`, but a step is one step of every device."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap
from torch.optim.sgd import sgd

from edgesim.core.backend import Assignment
from edgesim.core.local_sgd import LocalSGD
from edgesim.core.method import LocalPhase, LocalRule, LocalState
from edgesim.core.numbers import MOST_FACTOR
from edgesim.learning.data.dataset import Dataset
from edgesim.learning.models.seeding import Stream
from edgesim.learning.train.adam import Moments, adam_step
from edgesim.learning.train.context import Context
from edgesim.learning.train.loop import batch_order, clipped, output_gradients
from edgesim.learning.train.stacked import Descent, StackedNetwork


@dataclass(slots=True, eq=False)
class StackedJob:
    """An assignment that is carried out with others."""

    assignment: Assignment
    rule: LocalRule
    context: Context
    local: LocalState
    stream: Stream  # of torch's generator, for the rule's hooks
    steps: int = 0  # taken so far

    def enter(self, place: int) -> None:
        """Do what comes before a phase of the rule."""
        enter = self.rule.phases[place].on_enter
        if enter:
            with self.stream.read():
                self.local = enter(self.local, self.context)


def run_stacked_sgd(jobs: Sequence[StackedJob], place: int, network: StackedNetwork, data: Dataset) -> None:
    """Run a phase of local SGD in place on the weights of jobs, each on its own samples, and count their steps.

    All have the same network and settings. They may take different numbers of steps, and if each logit depends on one
    sample alone, on batches of different sizes. Hooks get each job's own tensors, as in `run_local_sgd`.
    """
    jobs, batches = _sorted(jobs, place, data)
    task, phases = jobs[0].assignment.task, [job.rule.phases[place] for job in jobs]
    hooked = any(phase.adjust_gradients or phase.after_step for phase in phases)
    objective = jobs[0].context.objective
    stack = _Stack(jobs, network, task.local_sgd[place], lent=hooked)
    for step, (x, y) in enumerate(batches):
        active = batches.active(step)
        if active != stack.active:
            stack.bind(active, jobs[0].context.trained, task.submodel.frozen)
        logits = network(x)
        if jobs[0].context.meter is not None:
            _note(jobs[:active], batches.sizes(step), logits.detach(), y)
        grads = network.gradients(logits, output_gradients(objective, logits, y, batches.shares(step)))
        each = list(zip(jobs[:active], phases[:active], strict=True)) if hooked else []
        for row, (job, phase) in enumerate(each):
            _adjust([g[row] for g in grads], job, phase)
        with torch.no_grad():
            stack.descend(grads)
            for job, phase in each:
                _call(phase.after_step, job)
    stack.give_back(jobs)
    for job, steps in zip(jobs, batches.lengths, strict=True):
        job.steps += steps


def _note(jobs: Sequence[StackedJob], sizes: Sequence[int], logits: Tensor, y: Tensor) -> None:
    """Let each job note the losses of its own samples, which come before what a short batch is filled up with."""
    losses = jobs[0].context.objective.losses(logits, y)
    rows = (each.reshape(len(jobs), -1, *each.shape[1:]) for each in (logits, losses, y))
    for job, size, *own in zip(jobs, sizes, *rows, strict=True):
        assert job.context.meter is not None
        job.context.meter.add(*(each[:size] for each in own))


def _adjust(grads: list[Tensor], job: StackedJob, phase: LocalPhase) -> None:
    """Let a rule's hook change a job's gradients, in place."""
    if phase.adjust_gradients:
        for g, new in zip(grads, _call(phase.adjust_gradients, job, grads), strict=True):
            g.copy_(new)


def _call(hook: Callable[..., Any] | None, job: StackedJob, *given: Any) -> Any:
    if hook is None:
        return None
    with job.stream.read():
        job.context.bind(job.local.weights)
        return hook(*given, job.local, job.context)


class _Stack:
    """The weights of jobs, stacked; `lent`: the jobs' own tensors are rows of the stack until it is given back."""

    def __init__(self, jobs: Sequence[StackedJob], network: StackedNetwork, settings: LocalSGD, lent: bool) -> None:
        self.active = 0
        self._network, self._settings = network, settings
        self._own = {name: [network.own(name, job.local.weights) for job in jobs] for name in network.names}
        self._all = {name: torch.stack(own) for name, own in self._own.items()}
        self._memory = {name: [each.data for each in own] for name, own in self._own.items()}
        self._bound: list[Tensor] = []
        self._momenta: list[Tensor | None] = []
        self._momentum = {n: torch.zeros_like(t) for n, t in self._all.items()} if settings.momentum else {}
        self._moments = {n: Moments(t) for n, t in self._all.items()} if settings.optimizer != "sgd" else {}
        self._bound_moments: list[Moments] = []
        plain = not lent and not settings.moments and settings.clip_norm == math.inf
        plain = plain and settings.lr * settings.weight_decay < MOST_FACTOR
        self._descent = Descent(settings.lr, 1.0 - settings.lr * settings.weight_decay) if plain else None
        if lent:
            for name, own in self._own.items():
                for row, tensor in enumerate(own):
                    tensor.data = self._all[name][row]

    def bind(self, active: int, trained: Sequence[str], frozen: frozenset[str]) -> None:
        """Let the network use the weights of the first so many jobs."""
        now = {name: tensor[:active] for name, tensor in self._all.items()}
        names = self._network.bind(now, trained, frozen, self._descent)
        self.active, self._bound = active, [now[name] for name in names]
        self._momenta = [self._momentum[name][:active] if self._momentum else None for name in names]
        self._bound_moments = [self._moments[name].first(active) for name in names if self._moments]

    def descend(self, grads: Sequence[Tensor]) -> None:
        """Take a step with the weights whose gradients these are; the network has done so with the others."""
        settings = self._settings
        if settings.clip_norm < math.inf:
            grads = vmap(partial(clipped, norm=settings.clip_norm))(list(grads))
        if self._moments:
            adam_step(self._bound, grads, self._bound_moments, settings)
            return
        sgd(
            self._bound, list(grads), list(self._momenta), foreach=None, weight_decay=settings.weight_decay,
            momentum=settings.momentum, lr=settings.lr, dampening=0.0, nesterov=settings.nesterov, maximize=False,
        )  # fmt: skip

    def give_back(self, jobs: Sequence[StackedJob]) -> None:
        """Write the weights into the jobs' own tensors."""
        for name, own in self._own.items():
            for tensor, memory, row in zip(own, self._memory[name], self._all[name].unbind(), strict=True):
                memory.copy_(row)
                tensor.data = memory


class _Batches:
    """The batches of jobs, those with the most steps first, gathered step by step."""

    def __init__(self, jobs: Sequence[StackedJob], orders: Sequence[Sequence[Tensor]], place: int, data: Dataset):
        self.lengths = [len(order) for order in orders]
        self._steps = max(self.lengths)
        self._data = data
        self._sizes = np.zeros((self._steps, len(jobs)), dtype=np.int64)
        for at, order in enumerate(orders):
            self._sizes[: len(order), at] = [len(positions) for positions in order]
        self._active = np.count_nonzero(self._sizes, axis=1).tolist()
        self._widths = self._sizes.max(axis=1).tolist()
        widest = max(self._widths, default=0)
        rows = torch.zeros(self._steps, len(jobs), widest, dtype=torch.int64, device=data.y_train.device)
        for at, (job, order) in enumerate(zip(jobs, orders, strict=True)):
            if order:
                rows[: len(order), at] = job.context.shard[_filled(order, widest).to(rows.device)]
        sizes = torch.from_numpy(self._sizes)[:, :, None]
        share = (torch.arange(widest) < sizes) / sizes.clamp(min=1)
        self._rows, self._share = rows, share.to(rows.device)
        streams = [job.assignment.key.at(place, 1) for job in jobs if data.augment is not None]
        self._augmenting = [torch.Generator().manual_seed(key.word()) for key in streams]
        relabelled = ((at, job.context.relabelled) for at, job in enumerate(jobs))
        self._relabelled = {at: labels for at, labels in relabelled if labels is not None}

    def active(self, step: int) -> int:
        """Return how many jobs take this step."""
        active: int = self._active[step]
        return active

    def sizes(self, step: int) -> list[int]:
        """Return the samples of each job that takes this step."""
        sizes: list[int] = self._sizes[step, : self.active(step)].tolist()
        return sizes

    def shares(self, step: int) -> Tensor:
        """Return what the loss of each sample of a step counts in its job's mean."""
        return self._share[step, : self._active[step], : self._widths[step]].flatten()

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield samples and labels of each step, job after job."""
        sizes = zip(self._rows, self._active, self._widths, strict=True)
        rows = (places[:active, :width].flatten() for places, active, width in sizes)
        for step, (x, y) in enumerate(self._data.batches("train", rows)):
            width = self._widths[step]
            if self._data.augment is not None:
                x = torch.cat([self._augmented(at, mine, step) for at, mine in enumerate(torch.split(x, width))])
            for at, labels in self._relabelled.items():
                if at < self._active[step]:
                    mine = y[at * width : (at + 1) * width]
                    mine.copy_(labels[mine])
            yield x, y

    def _augmented(self, at: int, x: Tensor, step: int) -> Tensor:
        """Return a job's samples of a step augmented, filled up again with the first of them."""
        assert self._data.augment is not None
        size = int(self._sizes[step, at])
        found = self._data.augment.apply(x[:size], self._augmenting[at])
        return torch.cat([found, found[:1].expand(len(x) - size, *found.shape[1:])])


def _filled(order: Sequence[Tensor], width: int) -> Tensor:
    """Return batches as rows of one matrix; a short one is filled up with its first number, which counts nothing."""
    sizes = np.array([len(batch) for batch in order])[:, None]
    column = np.arange(width)
    starts = np.cumsum(sizes)[:, None] - sizes
    return torch.cat(list(order))[torch.from_numpy(starts + np.where(column < sizes, column, 0))]


def _sorted(jobs: Sequence[StackedJob], place: int, data: Dataset) -> tuple[list[StackedJob], _Batches]:
    """Return jobs by falling numbers of steps, and their batches."""
    orders = [_order(job, place) for job in jobs]
    ranks = sorted(range(len(jobs)), key=lambda at: -len(orders[at]))
    jobs = [jobs[at] for at in ranks]
    return jobs, _Batches(jobs, [orders[at] for at in ranks], place, data)


def _order(job: StackedJob, place: int) -> list[Tensor]:
    """Return the positions of a job's samples in each of its steps."""
    given, context = job.assignment, job.context
    key = given.key.at(place, 0)
    batches = batch_order(key, len(context.shard), given.task.local_sgd[place], context.drop_single)
    return list(islice(batches, given.left_after(job.steps)))
