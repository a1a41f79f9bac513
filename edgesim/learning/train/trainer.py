"""Assignments and evaluations on one network. Every backend that trains uses this trainer."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from edgesim.core.attack import HONEST, Attack
from edgesim.core.backend import CHUNK, Assignment, Classes, Report, Result, Score
from edgesim.core.encoding import FLOAT32, Encoding
from edgesim.core.errors import ContractError
from edgesim.core.local_sgd import Precision
from edgesim.core.method import Finished, LocalRule, LocalState, Method
from edgesim.core.networks import Networks, as_part, part_of
from edgesim.core.price_list import CostProfile, profile_of
from edgesim.core.task import Submodel, Task
from edgesim.core.update import ModelState
from edgesim.learning.codec.encode import downlinked, left_of_part, left_with_part, update_uplinked, uplinked
from edgesim.learning.codec.kept import Kept
from edgesim.learning.codec.packed import packed
from edgesim.learning.data.dataset import Dataset, Side
from edgesim.learning.models.seeding import seeded
from edgesim.learning.objectives.base import Objective
from edgesim.learning.objectives.classification import CLASSIFICATION
from edgesim.learning.submodel.slicing import extract, thinner
from edgesim.learning.train.attacked import attacked
from edgesim.learning.train.context import Context, PublicRows, copy_for, load
from edgesim.learning.train.loop import run_local_sgd
from edgesim.learning.train.meter import Meter

if TYPE_CHECKING:
    from edgesim.learning.compiled.programs import Programs


class ChunkScore(NamedTuple):
    """Sums over one chunk of test samples."""

    loss: float
    correct: float
    samples: int
    amount: float  # samples, each times its share that counts, see Objective.counted
    counts: Sequence[float] = ()  # sums from which metrics follow, see Objective.counts


def total(chunks: Sequence[ChunkScore], objective: Objective = CLASSIFICATION, metrics: Collection[str] = ()) -> Score:
    """Return mean loss, accuracy and these metrics of the objective over chunks, summed in the given order."""
    chunks = [chunk for chunk in chunks if chunk.samples]
    samples = sum(chunk.samples for chunk in chunks)
    amount = math.fsum(chunk.amount for chunk in chunks)
    loss = math.fsum(chunk.loss for chunk in chunks) / amount
    accuracy = sum(chunk.correct for chunk in chunks) / amount
    if not metrics:
        return Score(loss, accuracy, samples)
    sums = [math.fsum(column) for column in zip(*(chunk.counts for chunk in chunks), strict=True)]
    found = {"loss": loss, "accuracy": accuracy, **objective.scores(loss, accuracy, sums, samples)}
    goal = found[objective.goal]
    merit = goal if objective.metrics[objective.goal] == "higher" else -goal
    return Score(loss, accuracy, samples, {name: found[name] for name in metrics}, merit)


def started(rule: LocalRule, context: Context) -> LocalState:
    """Return the state in which a job starts: a copy of the received model, unless the rule has an `on_start`."""
    return rule.on_start(context) if rule.on_start else LocalState(context.copy(context.global_model))


@dataclass(frozen=True)
class Trainer:
    """Trainer of a network on the data, by a method. Equal assignments give equal results."""

    module: nn.Module
    data: Dataset
    shards: Sequence[Tensor]  # sample indices of every device
    method: Method
    cost_profile: CostProfile
    test_rows: Tensor  # samples of the test set that models are scored on
    personal_rows: Sequence[Tensor] = ()  # samples of every device's own test set, if devices are scored
    encoding_up: Encoding = FLOAT32  # of payloads that name none
    encoding_down: Encoding = FLOAT32
    public: PublicRows | None = None  # samples that the server shares with all devices
    reports: bool = False  # whether devices report the losses of their training
    attacks: Mapping[int, Attack] = field(default_factory=dict)  # of malicious devices
    networks: Networks | None = None  # several networks, side by side in `module`, and the devices of each
    objective: Objective = CLASSIFICATION
    metrics: Collection[str] = ()  # metrics of the objective that tests return beside loss and accuracy
    precision: Precision = "float32"  # in which jobs run the network; tests run it in float32
    programs: Programs | None = None  # compiled steps of jobs; None: no step is compiled

    def run(self, assignment: Assignment) -> Result:
        """Train one assignment. Return the message that the device sends and the state that it keeps."""
        task, key = assignment.task, assignment.key
        rule, context = self.rule(task), self.context(assignment, self.network(task.submodel))
        steps = 0
        with seeded(key):  # dropout layers draw from torch's own stream
            local = started(rule, context)
            for place, (sgd, phase) in enumerate(zip(task.local_sgd, rule.phases, strict=True)):
                local = phase.on_enter(local, context) if phase.on_enter else local
                steps += run_local_sgd(local, sgd, phase, context, key.at(place), assignment.left_after(steps))
            report = self.report(context, local)
            finished = rule.on_finish(local, context) if rule.on_finish else Finished(local.weights)
        return self.result(context, assignment, finished, steps, report)

    def shard(self, assignment: Assignment) -> Tensor:
        """Return the samples with which a device trains, in the order in which they arrive."""
        return self.shards[assignment.device][: assignment.samples]

    def rule(self, task: Task) -> LocalRule:
        """Return the method's rule for a task. Raises ContractError if it is not a LocalRule."""
        rule = self.method.local(task)
        if not isinstance(rule, LocalRule):
            name = self.method.label
            raise ContractError(f"{name}.local() must return a LocalRule, got {type(rule).__name__}")
        return rule

    def network(self, submodel: Submodel) -> nn.Module:
        """Return the network that trains a part."""
        module = self.module.get_submodule(submodel.network)
        return thinner(module, submodel, self.cost_of(submodel)) if submodel.channels else module

    def cost_of(self, submodel: Submodel) -> CostProfile:
        """Return the cost profile of the network that a part belongs to."""
        return profile_of(self.cost_profile, submodel)

    def context(self, assignment: Assignment, module: nn.Module) -> Context:
        """Return the argument of hooks, with the model as the device receives it, cut to its part.

        The device's state and the messages of peers are not cut, because they may belong to other parts.
        """
        task, cost_profile = assignment.task, self.cost_of(assignment.task.submodel)
        model = part_of(assignment.global_model, task.submodel.network)
        model = extract(model, task.submodel, cost_profile) if task.submodel.channels else model
        received = downlinked(model, task, self.encoding_down, assignment.key)
        shard, drop_single = self.shard(assignment), cost_profile.drop_single
        shard = shard.to(self._device, non_blocking=True)
        given = assignment._replace(global_model=received, device_state=Kept.of(assignment.device_state).own)
        context = Context(
            module, self._resident, shard, given, drop_single, self.public, self.objective, self.precision
        )
        context.meter = Meter(self.objective) if self.reports else None
        context.programs = self.programs
        labels = self.attacks.get(assignment.device, HONEST).relabelled(self.data.classes)
        if labels is not None:
            context.relabelled = torch.tensor(labels, device=self._resident.y_train.device)
        return context

    def report(self, context: Context, local: LocalState) -> Report | None:
        """Return the report of a finished job, or None if devices do not report."""
        if context.meter is None:
            return None
        return context.meter.report(local.weights["params"], context.global_model["params"])

    def result(
        self,
        context: Context,
        assignment: Assignment,
        finished: Finished,
        steps: int,
        report: Report | None = None,
    ) -> Result:
        """Return the result of a finished job."""
        task, factor = assignment.task, self.attacks.get(assignment.device, HONEST).factor
        body = finished.body if factor == 1.0 else attacked(finished.body, context.global_model, factor)
        moves = finished.moves if factor == 1.0 else {}  # an attacker's moves follow from its body
        state = finished.new_device_state
        encoding = task.up.encoding or self.encoding_up
        if encoding.of_update:
            before, cost_profile = Kept.of(assignment.device_state), self.cost_of(task.submodel)
            part = left_of_part(before.left, task.submodel, cost_profile)
            sent, left = update_uplinked(body, context.global_model, part, assignment, encoding, moves)
            if left:
                model = part_of(assignment.global_model, task.submodel.network)
                whole = left_with_part(before.left, left, task.submodel, cost_profile, model)
                state = Kept(before.own if state is None else state, whole).state()
            elif state is not None:  # nothing was encoded: the residuals of earlier updates stay
                state = Kept(state, before.left).state()
        else:
            sent = uplinked(body, task, encoding, assignment.key)
        body, kept = packed(as_part(sent, task.submodel.network), state)
        return Result(body, kept, finished.statistics, steps, finished.own_model, report)

    @cached_property
    def _device(self) -> torch.device:
        return next(self.module.parameters()).device

    @cached_property
    def _resident(self) -> Dataset:
        """The data on the network's device. An accelerator gets all of them at first use."""
        return self.data.to(self._device)

    def chunks(self) -> int:
        """Return the number of chunks of the test set, counted once for each of several networks."""
        return len(self._names) * self._chunks_each

    def score_chunks(self, model: ModelState, chunks: Sequence[int], classes: Classes = None) -> list[ChunkScore]:
        """Return loss and hits of a model over the samples of these classes in chunks of the test set, one by one."""
        found: list[ChunkScore] = []
        for place, name in enumerate(self._names):
            own = [chunk % self._chunks_each for chunk in chunks if chunk // self._chunks_each == place]
            rows = [self.test_rows[chunk * CHUNK : (chunk + 1) * CHUNK] for chunk in own]
            if classes is not None:
                labels = torch.as_tensor(self.data.labels("test"))
                rows = [each[torch.isin(labels[each], torch.tensor(classes))] for each in rows]
            scored = iter(self._scored(part_of(model, name), "test", [each for each in rows if len(each)], name))
            found += (next(scored) if len(each) else ChunkScore(0.0, 0.0, 0, 0.0) for each in rows)
        return found

    def scores(self, chunks: Sequence[ChunkScore]) -> dict[str, Score]:
        """Return the score over all chunks of the test set, in order. Several networks: the mean and each one's own."""
        each = self._chunks_each
        own = {
            f"test_{name}": self.total(chunks[i * each : (i + 1) * each]) for i, name in enumerate(self._names) if name
        }
        return {"test": self.total(chunks), **own}

    def score_personal(self, device: int, model: ModelState) -> Score:
        """Return mean loss and accuracy of a model on a device's own test set."""
        name = "" if self.networks is None else self.networks.of(device)
        return self.score_rows(model, "test", self.personal_rows[device], name)

    def score_rows(self, model: ModelState, side: Side, rows: Tensor, network: str = "") -> Score:
        """Return mean loss and accuracy of a model in a test on these rows of a split."""
        return self.total(self._scored(model, side, torch.split(rows, CHUNK), network))

    def total(self, chunks: Sequence[ChunkScore]) -> Score:
        """Return the score over chunks, by the function `total`."""
        return total(chunks, self.objective, self.metrics)

    def load_for_test(self, model: ModelState, network: str = "") -> nn.Module:
        """Return a network in test mode with a copy of these weights."""
        module = self.module.get_submodule(network)
        load(module, copy_for(module, model))
        return module.eval()

    @property
    def _names(self) -> tuple[str, ...]:
        return ("",) if self.networks is None else self.networks.names

    @property
    def _chunks_each(self) -> int:
        return -(-len(self.test_rows) // CHUNK)

    def _scored(self, model: ModelState, side: Side, chunks: Sequence[Tensor], network: str) -> list[ChunkScore]:
        if not chunks:
            return []
        module, objective = self.load_for_test(model, network), self.objective
        rows: list[tuple[Tensor, ...]] = []  # summed loss and hits of each chunk, with metrics its counts
        amounts: list[Tensor] = []  # of each chunk, if samples do not all count alike
        with torch.no_grad():
            for x, y in self._resident.batches(side, chunks):
                logits = module(x)
                hits, counted = objective.hits(logits, y), objective.counted(y)
                if counted is not None:
                    hits = hits * counted
                    amounts.append(counted.sum())
                sums = objective.summed(logits, y), hits.sum()
                rows.append((*sums, objective.counts(logits, y).sum(0)) if self.metrics else sums)
        losses, correct, *counts = (torch.stack(column).tolist() for column in zip(*rows, strict=True))
        of_each = torch.stack(amounts).tolist() if amounts else map(float, map(len, chunks))
        more = (map(tuple, each) for each in counts)
        return list(map(ChunkScore, losses, correct, map(len, chunks), of_each, *more))
