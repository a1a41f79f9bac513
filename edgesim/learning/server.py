"""What a method's server can compute besides averaging: losses and gradients on labelled samples of its own."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from edgesim.core.method import Absent
from edgesim.core.task import Submodel
from edgesim.core.update import ModelState, Update
from edgesim.cost.profile import CostProfile
from edgesim.learning.aggregate.mean import finite, mean_of_holders
from edgesim.learning.data.dataset import Dataset
from edgesim.learning.models.trace import layer_of
from edgesim.learning.objectives.base import Objective
from edgesim.learning.objectives.classification import CLASSIFICATION
from edgesim.learning.train.context import copy_for, load
from edgesim.learning.train.loop import gradients
from edgesim.learning.train.trainer import CHUNK


class Soft(NamedTuple):
    """What a model is to answer instead of labels: a teacher's `logits`, shape (samples, classes), softened.

    Source: Hinton, Vinyals and Dean, "Distilling the Knowledge in a Neural Network" (2015).
    """

    logits: Tensor
    temperature: float

    def split(self, size: int) -> list[Soft]:
        """Return the same in pieces of so many samples."""
        return [self._replace(logits=piece) for piece in torch.split(self.logits, size)]

    def distance(self, logits: Tensor) -> Tensor:
        """Return T^2 KL(teacher || model) at temperature T, summed over samples."""
        told, wanted = logits / self.temperature, self.logits.to(logits.device) / self.temperature
        divergence = F.kl_div(F.log_softmax(told, 1), F.log_softmax(wanted, 1), reduction="sum", log_target=True)
        return self.temperature**2 * divergence


class Averaging:
    """What any server can compute with updates: which of them are finite, and their mean."""

    def finite(self, updates: Sequence[Update]) -> tuple[list[Update], dict[str, float]]:
        """Return the updates whose tensors are all finite, and the metric `left_out` if there are others."""
        return finite(updates)

    def mean(
        self,
        model: ModelState,
        updates: Sequence[Update],
        weights: Sequence[float],
        *,
        absent: Absent = "average_over_holders",
        cost_profile: CostProfile | None = None,
    ) -> ModelState:
        """Return the weighted mean of updates, parameter by parameter, as `mean_of_holders` does."""
        return mean_of_holders(model, updates, weights, absent=absent, cost_profile=cost_profile)


@dataclass
class ServerTools(Averaging):
    """What a method's server computes with. Counts the FLOPs of losses and gradients, for its time and energy."""

    module: nn.Module
    data: Dataset
    cost_profile: CostProfile
    split: Literal["train", "test"] = "test"
    rows: Tensor | None = None  # the server's samples; None: it has none
    objective: Objective = CLASSIFICATION
    _spent_flops: float = 0.0

    @property
    def labels(self) -> Tensor:
        """Labels of the server's samples: classes, int64 (samples,), or those of another objective."""
        return self.data.batch(self.split, self._rows(None))[1]

    def loss(self, model: ModelState, places: Tensor | None = None) -> float:
        """Return the mean loss of a model in eval mode on the server's samples, or on those at `places`."""
        rows = self._rows(places)
        with torch.no_grad():
            self._load(model)
            losses = [self._loss(chunk) for chunk in torch.split(rows, CHUNK)]
        total = math.fsum(torch.stack(losses).tolist())  # the only time that the CPU waits for a device
        self._spent_flops += self.cost_profile.forward_flops() * len(rows) + self.cost_profile.step_forward_flops * len(
            losses
        )
        return total / len(rows)

    def gradient(
        self,
        model: ModelState,
        places: Tensor | None = None,
        layers: Collection[str] | None = None,
        soft: Soft | None = None,
    ) -> dict[str, Tensor]:
        """Return the gradient of that loss with respect to the parameters of these layers, or all, by name, float64.

        `soft`: of the mean distance to these outputs instead, one for each sample that is looked at.
        """
        rows = self._rows(places)
        chunks = torch.split(rows, CHUNK)
        targets = [None] * len(chunks) if soft is None else soft.split(CHUNK)
        frozen = frozenset[str]() if layers is None else frozenset(self.cost_profile.layer_names).difference(layers)
        self._load(model)
        for name, parameter in self.module.named_parameters():
            parameter.requires_grad_(layer_of(name) not in frozen)
        wrt = {name: parameter for name, parameter in self.module.named_parameters() if parameter.requires_grad}
        total = [torch.zeros_like(p, dtype=torch.float64) for p in wrt.values()]
        for chunk, target in zip(chunks, targets, strict=True):
            for sum_, gradient in zip(total, gradients(self._loss(chunk, target), list(wrt.values())), strict=True):
                sum_ += gradient
        self._spent_flops += self.cost_profile.train_flops(frozen) * len(rows)
        self._spent_flops += self.cost_profile.step_flops(Submodel(frozen=frozen)) * len(chunks)
        return {name: (sum_ / len(rows)).cpu() for name, sum_ in zip(wrt, total, strict=True)}

    def take_flops(self) -> float:
        """Return the FLOPs spent since the last call."""
        spent, self._spent_flops = self._spent_flops, 0.0
        return spent

    def _load(self, model: ModelState) -> None:
        load(self.module, copy_for(self.module, model))
        self.module.eval()

    def _loss(self, rows: Tensor, soft: Soft | None = None) -> Tensor:
        """Return the sum of the losses of some samples."""
        device = next(self.module.parameters()).device
        x, y = self.data.batch(self.split, rows)
        logits = self.module(x.to(device))
        return self.objective.summed(logits, y.to(device)) if soft is None else soft.distance(logits)

    def _rows(self, places: Tensor | None) -> Tensor:
        if self.rows is None:
            raise LookupError("the method has no server_set")
        return self.rows if places is None else self.rows[places]
