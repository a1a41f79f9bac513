"""DepthFL: weak devices train the first blocks of a network and their exits, which learn from each other.

Source: Kim et al., "DepthFL: Depthwise Federated Learning for Heterogeneous Clients" (ICLR 2023), and its first
author's published code.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch.nn.functional as F
from torch import Tensor

from edgesim.core.errors import ConfigError
from edgesim.core.limits import CountOrZero
from edgesim.core.method import Aggregate, LocalPhase, LocalRule, LocalState, Method, Needs, ServerContext
from edgesim.core.model_state import mapped
from edgesim.core.networks import joined, part_of
from edgesim.core.price_list import SeveralProfiles
from edgesim.core.rng import Key
from edgesim.core.task import Task
from edgesim.core.update import ModelState, Update
from edgesim.core.view import Setting, View
from edgesim.learning.train.context import Batch, Context


@dataclass(frozen=True, kw_only=True)
class DepthFL(Method):
    """For fleets of unequal speed: weak devices train only the first blocks of a network, each with exits of its own.

    All exits learn the labels and, if `distil`, the outputs of the other exits of the device. The server averages
    blocks and exits by name. The loss is the sum over the exits of their cross-entropy and the mean KL divergence to
    the others, without a gradient through these, times exp(-5 (1 - t/T)^2) in round t = 0, 1, ... up to
    T = `rampup_rounds`, 1 from then on. These losses, a few numbers a class, are not priced; the exits themselves are.

    Family: smaller networks. Formula: `loss = sum_i (CE_i + a_t mean_(j != i) KL(q_j, q_i)) over the exits i of a
    device`.
    """

    distil: bool = True  # exits also learn from each other
    """Kim et al.'s self-distillation, at temperature 1; they also try without."""
    rampup_rounds: CountOrZero = 300  # rounds until the distillation between exits counts in full
    """Published code, for 1000 rounds."""
    weights: Literal["equal", "samples"] = "equal"  # weights of devices in a mean
    """In the published code a parameter is averaged over the devices that have it, with equal weights."""
    needs: ClassVar[Needs] = Needs(networks=True)

    @property
    def needs_classes(self) -> str:
        """The reason why labels must be classes, a verb phrase for the error message."""
        return "lets exits learn the classes that others see" if self.distil else ""

    def init(self, setting: Setting, key: Key) -> Any:
        """Raise ConfigError if networks have layers of one name but other sizes."""
        found: dict[str, tuple[str, Any]] = {}
        several = setting.cost_profile if isinstance(setting.cost_profile, SeveralProfiles) else None
        for network, profile in several.networks.items() if several else ():
            for layer in profile.layers:
                first, other = found.setdefault(layer.name, (network, layer))
                if _shape(layer) != _shape(other):
                    raise ConfigError(
                        f"fleet.model: layers of one name are averaged, so must be alike; {layer.name} is a "
                        f"{layer.kind} of {layer.params} parameters in {network}, of another shape than in {first}"
                    )
        return super().init(setting, key)

    def task(self, view: View) -> Task:
        """Return training with this round's weight of the distillation between exits."""
        left = max(0.0, 1 - view.round / self.rampup_rounds) if self.rampup_rounds else 0.0
        weight = math.exp(-5 * left**2) if self.distil else 0.0
        return Task(local_sgd=(view.setting.training.local_sgd(view.round),), config={"weight": weight})

    def local(self, task: Task) -> LocalRule:
        """Return SGD on the sum of the losses of all exits; a network without exits has the loss of its logits."""

        def loss(local: LocalState, batch: Batch, context: Context) -> Tensor:
            names = [name for name in context.layers if re.fullmatch(r"exit\d+", name)]
            logits, seen = context.forward_seen(local.weights, batch.x, names)
            exits, weight = [seen[name] for name in names] or [logits], context.task.config["weight"]
            losses = [context.objective.loss(each, batch.y) for each in exits]
            if weight and len(exits) > 1:
                told = [each.detach().softmax(dim=1) for each in exits]
                for place, each in enumerate(exits):
                    said = F.log_softmax(each, dim=1)
                    apart = [F.kl_div(said, other, reduction="batchmean") for i, other in enumerate(told) if i != place]
                    losses.append(weight / len(apart) * sum(apart[1:], apart[0]))
            return sum(losses[1:], losses[0])

        return LocalRule((LocalPhase(loss=loss),))

    def combine(
        self, state: Any, global_model: ModelState, updates: Sequence[Update], server: ServerContext, key: Key
    ) -> Aggregate:
        """Average each parameter over the devices that have it, whatever their networks."""
        parts = {name: part_of(global_model, name) for name in server.tools.networks}
        old = {kind: {n: t for part in parts.values() for n, t in part.get(kind, {}).items()} for kind in global_model}
        own = [each._replace(body=part_of(each.body, each.task.submodel.network)) for each in updates]
        mean = server.mean(old, own, self.update_weights(updates, server.setting))
        new = {name: mapped(lambda _, averaged: averaged, part, mean) for name, part in parts.items()}
        return Aggregate(state, joined(new))

    def update_weights(self, updates: Sequence[Update], setting: Setting) -> Sequence[float]:
        """Return data sizes or ones, times the protocol's weights."""
        return [each.weight * (each.samples if self.weights == "samples" else 1) for each in updates]


def _shape(layer: Any) -> tuple[Any, ...]:
    """Return a key that is equal for layers of one shape. Kernels of one size but other sides differ in their FLOPs."""
    return layer.kind, layer.params, layer.weights, layer.matrices, layer.forward_flops


PLUGINS = {"depthfl": DepthFL}
