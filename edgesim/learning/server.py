"""Tools of a method's server besides averaging: losses on samples of its own, and training of networks."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from edgesim.core.backend import CHUNK
from edgesim.core.local_sgd import LocalSGD
from edgesim.core.method import Absent
from edgesim.core.price_list import CostProfile
from edgesim.core.rng import Key
from edgesim.core.task import Submodel
from edgesim.core.update import ModelState, Update
from edgesim.learning.aggregate.mean import finite, mean_of_holders
from edgesim.learning.data.dataset import Dataset
from edgesim.learning.models.side_by_side import SideBySide
from edgesim.learning.models.trace import layer_of
from edgesim.learning.objectives.base import Objective
from edgesim.learning.objectives.classification import CLASSIFICATION
from edgesim.learning.server_networks import ServerFlops, ServerNetwork, TrainedWeights
from edgesim.learning.train.context import copy_for, load
from edgesim.learning.train.loop import batch_order, descend, gradients


class Soft(NamedTuple):
    """Target outputs of a model in place of labels: a teacher's softened `logits`, shape (samples, classes).

    Source: Hinton, Vinyals and Dean, "Distilling the Knowledge in a Neural Network" (2015).
    """

    logits: Tensor
    temperature: float

    def split(self, size: int) -> list[Soft]:
        """Return the same targets in pieces of `size` samples."""
        return [self._replace(logits=piece) for piece in torch.split(self.logits, size)]

    def distance(self, logits: Tensor) -> Tensor:
        """Return T^2 KL(teacher || model) at temperature T, summed over samples."""
        told, wanted = logits / self.temperature, self.logits.to(logits.device) / self.temperature
        divergence = F.kl_div(F.log_softmax(told, 1), F.log_softmax(wanted, 1), reduction="sum", log_target=True)
        return self.temperature**2 * divergence


class Averaging:
    """Computations of any server on updates: selection of the finite ones, and the mean."""

    def finite(self, updates: Sequence[Update]) -> tuple[list[Update], dict[str, float]]:
        """Return the updates whose tensors are all finite, and the metric `left_out` if any were left out."""
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
class TorchServerTools(Averaging):
    """Tools of a method's server. They count the FLOPs of losses and gradients, for the server's time and energy."""

    module: nn.Module
    data: Dataset
    cost_profile: CostProfile
    split: Literal["train", "test"] = "test"
    rows: Tensor | None = None  # the server's samples; None: it has none
    objective: Objective = CLASSIFICATION
    _spent: ServerFlops = field(default_factory=ServerFlops)

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
        profile = self.cost_profile
        self._spent.flops += profile.forward_flops() * len(rows) + profile.step_forward_flops * len(losses)
        return total / self._amount(rows)

    def gradient(
        self,
        model: ModelState,
        places: Tensor | None = None,
        layers: Collection[str] | None = None,
        soft: Soft | None = None,
    ) -> dict[str, Tensor]:
        """Return the gradient of `loss` with respect to the parameters of these layers, or all, by name, float64.

        `soft`: target outputs, one for each sample. The gradient is then of the mean distance to these targets.
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
        self._spent.flops += self.cost_profile.train_flops(frozen) * len(rows)
        self._spent.flops += self.cost_profile.step_flops(Submodel(frozen=frozen)) * len(chunks)
        amount = self._amount(rows) if soft is None else len(rows)
        return {name: (sum_ / amount).cpu() for name, sum_ in zip(wrt, total, strict=True)}

    def take_flops(self) -> float:
        """Return the FLOPs spent since the last call."""
        return self._spent.take()

    # --- networks -------------------------------------------------------------------------------------------------

    @property
    def network(self) -> ServerNetwork:
        """The network of a run that has a single one."""
        return ServerNetwork(self.module, self._spent)

    @property
    def networks(self) -> dict[str, ServerNetwork]:
        """The networks of the run by name. A single network has the name "".

        `edgesim.core.networks` splits a global model or an update by network, and joins the parts.
        """
        several = isinstance(self.module, SideBySide)
        modules = dict(self.module.named_children()) if several else {"": self.module}
        return {name: ServerNetwork(module, self._spent) for name, module in modules.items()}

    def own(self, module: nn.Module) -> ServerNetwork:
        """Return a module of the method's own, such as a generator or a part of the network of the run.

        A method must create a new module inside `edgesim.learning.models.seeding.seeded`.
        """
        return ServerNetwork(module.to(self.network.device), self._spent)

    def inputs(self, places: Tensor | None = None) -> Tensor:
        """Return the inputs of the server's own samples, or of those at `places`: images NCHW, float32."""
        return self.data.batch(self.split, self._rows(places))[0]

    def step(
        self, loss: Callable[[], Tensor], *models: TrainedWeights, rate: float = 1.0, like: Hashable = None
    ) -> float:
        """Take one step of these models, at least one, down a scalar loss. Return the loss before the step.

        `rate`: factor of their learning rates. `like`: any name of steps that all do equal work in this aggregation,
        such as steps on batches of one size. Such steps are faster, because only the FLOPs of the first are counted.
        Dropout in the loss draws from the stream of the first model.
        """
        with models[0].dropout.read(), self._spent.counting(like):
            found = loss()
            descend(found, [model.descent for model in models], rate)
        return float(found.detach())

    def fit(
        self,
        network: ServerNetwork,
        model: ModelState,
        local_sgd: LocalSGD,
        loss: Callable[[TrainedWeights, Tensor], Tensor],
        samples: int,
        key: Key,
        rate: Callable[[int], float] = lambda step: 1.0,
    ) -> ModelState:
        """Return a model after the steps of `local_sgd` over `samples` samples.

        Steps on batches of one size must do equal work. `loss`: maps the model in training and the places in
        [0, samples) of a batch, int64 on the CPU, to a scalar. `rate`: factor of the learning rate in each step,
        counted from 0. `key`: streams 0 the batches, 1 dropout.
        """
        trained, name = network.trained(model, local_sgd, key.at(1)), object()
        for step, places in enumerate(batch_order(key.at(0), samples, local_sgd, network.drop_single)):
            self.step(partial(loss, trained, places), trained, rate=rate(step), like=(name, len(places)))
        return trained.model

    def _load(self, model: ModelState) -> None:
        load(self.module, copy_for(self.module, model))
        self.module.eval()

    def _amount(self, rows: Tensor) -> float:
        return self.objective.amount(self.data.labels_at(self.split, rows))

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
