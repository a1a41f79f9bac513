"""Carries out assignments and evaluations on one network. Every backend that trains does it through here."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from edgesim.card import ModelCard
from edgesim.contracts import Assignment, Bundle, Encoding, LocalRule, Method, Part, Result, Score
from edgesim.encoding import FLOAT32
from edgesim.errors import ContractError
from edgesim.learning.context import Context, copy_for, load
from edgesim.learning.data.dataset import Dataset
from edgesim.learning.encode import downlinked, uplinked
from edgesim.learning.loop import train_stretch
from edgesim.learning.packed import packed
from edgesim.learning.parts import extract, thinner
from edgesim.learning.seeding import seeded

CHUNK = 100  # test samples evaluated at once: fits the cache; fixed, as sums must not depend on who computes them


class ChunkScore(NamedTuple):
    """Sums over one chunk of test samples."""

    loss: float
    correct: int
    samples: int


def total(chunks: Sequence[ChunkScore]) -> Score:
    """Return mean loss and accuracy over chunks, summed in their order."""
    samples = sum(chunk.samples for chunk in chunks)
    loss = math.fsum(chunk.loss for chunk in chunks) / samples
    return Score(loss, sum(chunk.correct for chunk in chunks) / samples, samples)


@dataclass(frozen=True)
class Trainer:
    """A network, the data and the method. Running an assignment is pure: same assignment, same result."""

    module: nn.Module
    data: Dataset
    shards: Sequence[Tensor]  # sample indices of every device
    method: Method
    card: ModelCard
    test_rows: Tensor  # samples of the test set that models are scored on
    personal_rows: Sequence[Tensor] = ()  # those of every device's own test set, if devices are scored
    encoding_up: Encoding = FLOAT32  # of payloads that name none
    encoding_down: Encoding = FLOAT32

    def run(self, assignment: Assignment) -> Result:
        """Train one assignment and return what the device sends and keeps."""
        task, key = assignment.task, assignment.key
        rule = self.method.local(task)
        if not isinstance(rule, LocalRule):
            name = type(self.method).__name__
            raise ContractError(f"{name}.local() must return a LocalRule, got {type(rule).__name__}")
        module, assignment = self._cut(task.part, assignment)
        assignment = assignment._replace(base=downlinked(assignment.base, task, self.encoding_down, key))
        context = Context(module, self.data, self.shards[assignment.device], assignment, self.card.drop_single)
        steps = 0
        with seeded(key):  # dropout layers draw from torch's own stream
            start = rule.start or (lambda base, own, context: context.copy(base))
            w = start(assignment.base, assignment.own, context)
            for place, (stretch, phase) in enumerate(zip(task.stretches, rule.phases, strict=True)):
                w = phase.enter(w, context) if phase.enter else w
                steps += train_stretch(w, stretch, phase, context, key.at(place), assignment.left_after(steps))
            body, keep, signals = rule.finish(w, context) if rule.finish else (w, None, {})
        sent, kept = packed(uplinked(body, task, self.encoding_up, key), keep)
        return Result(sent, kept, signals, steps)

    def chunks(self) -> int:
        """Return the number of chunks of the test set."""
        return -(-len(self.test_rows) // CHUNK)

    def score_chunks(self, model: Bundle, chunks: Sequence[int]) -> list[ChunkScore]:
        """Return loss and hits of a model over these chunks of the test set, one by one."""
        return self._scored(model, [self.test_rows[chunk * CHUNK : (chunk + 1) * CHUNK] for chunk in chunks])

    def score_personal(self, device: int, model: Bundle) -> Score:
        """Return mean loss and accuracy of a model on a device's own test set."""
        return total(self._scored(model, torch.split(self.personal_rows[device], CHUNK)))

    def _scored(self, model: Bundle, chunks: Sequence[Tensor]) -> list[ChunkScore]:
        device = next(self.module.parameters()).device
        load(self.module, copy_for(self.module, model))
        self.module.eval()
        with torch.no_grad():
            return [self._score(indices, device) for indices in chunks]

    def _cut(self, part: Part, assignment: Assignment) -> tuple[nn.Module, Assignment]:
        """Return the network that a part trains, and the assignment with the model received cut to it.

        What the device kept and what peers sent stay as they are: they may be of other parts.
        """
        if not part.units:
            return self.module, assignment
        base = extract(assignment.base, part, self.card)
        return thinner(self.module, part, self.card), assignment._replace(base=base)

    def _score(self, indices: Tensor, device: torch.device) -> ChunkScore:
        x, y = self.data.batch("test", indices)
        logits, y = self.module(x.to(device)), y.to(device)
        loss = F.cross_entropy(logits, y, reduction="sum")
        return ChunkScore(float(loss), int((logits.argmax(1) == y).sum()), len(indices))
