"""Cost of training any network of torch: FLOPs, bytes, kinds of work, memory, and seconds on catalogue devices.

from edgesim import cost
print(cost.of(module, (3, 224, 224), train=["fc"], batch=16).train_flops)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from edgesim.config import device_profiles
from edgesim.config.plugin_fields import Foreign
from edgesim.config.plugins import meant
from edgesim.core.errors import ConfigError
from edgesim.core.price_list import CostProfile, MemoryNeed
from edgesim.core.task import Pass, Submodel
from edgesim.core.work import PRICED
from edgesim.learning.cost_models.measured import Measured

if TYPE_CHECKING:
    from torch import nn

    from edgesim.learning.objectives.base import Objective


@dataclass(frozen=True)
class StepCost:
    """Cost of one SGD step on a batch, in which some layers are trained and all others are frozen.

    Frozen layers run forward as in a test: their normalisation uses its running statistics.
    """

    profile: CostProfile
    trained: tuple[str, ...]  # layers with parameters that are trained, in forward order
    batch: int

    @property
    def trained_params(self) -> int:
        """Number of parameters that are trained."""
        return self.profile.submodel_params(self._part, trained_only=True)

    @property
    def forward_flops(self) -> float:
        """FLOPs of a forward pass, of one sample."""
        return self.profile.forward_flops()

    @property
    def train_flops(self) -> float:
        """FLOPs of forward and backward of the step, of one sample, without the update of the weights."""
        return self.profile.train_flops(self._part)

    @cached_property
    def work(self) -> Mapping[str, float]:
        """Amounts of the whole step by kind of work. The kinds are those of `edgesim.core.work.KINDS`."""
        samples, steps = np.array([float(self.batch)]), np.ones(1)
        amounts = Measured().amounts(self.profile, Pass(), self._part, samples, steps)
        return {kind: float(amounts[kind][0]) if kind in amounts else 0.0 for kind in PRICED}

    @property
    def memory(self) -> MemoryNeed:
        """Bytes at the peak of the step with plain SGD: weights, gradients, optimiser, activations and temporaries."""
        return self.profile.memory_bytes(self._part, self.batch)

    def seconds(self, device: str) -> float:
        """Return the seconds of the step on a device of the catalogue at its highest frequency.

        Raises ConfigError if there is no such device.
        """
        profile = device_profiles.find(device)
        prices = {kind: profile.si[f"terms.{kind}"] for kind in PRICED if f"terms.{kind}" in profile.si}
        if not prices:
            return self.work["flops"] / profile.flops_per_s
        return sum(price * self.work[kind] for kind, price in prices.items())

    @property
    def _part(self) -> Submodel:
        return Submodel(frozen=frozenset(self.profile.layer_names).difference(self.trained))


def of(
    module: nn.Module,
    input_shape: Sequence[int],
    train: Sequence[str] | None = None,
    batch: int = 1,
    objective: Objective | None = None,
) -> StepCost:
    """Return the cost of a training step of a network. Its weights are neither read nor changed.

    `input_shape`: shape of one sample. `train`: names of the layers to train, or of modules whose layers are trained;
    None: all. Parameters that do not require gradients are never trained. `objective`: default cross-entropy, at every
    position if the output has more than two dimensions. Raises ConfigError if the network has no price, or no layer of
    a name.
    """
    from edgesim.learning.measure.step import measure
    from edgesim.learning.models.build import bare_copy, output_shape
    from edgesim.learning.objectives.classification import CLASSIFICATION
    from edgesim.learning.objectives.next_token import NextToken

    bare, name = bare_copy(module), type(module).__name__
    shape = output_shape(bare, input_shape)
    objective = objective or (NextToken() if len(shape) > 1 else CLASSIFICATION)
    profile = measure(bare, name, input_shape, shape[0] if shape else 1, objective=objective, kinds=True)
    return step_cost(profile, train, batch)


def of_users(plugin: Foreign, input_shape: Sequence[int], train: Sequence[str] | None, batch: int) -> StepCost:
    """Return the same for a user's class of networks, or a function that makes one, as scenarios name them.

    Its weights are made only if it computes with them before it runs.
    """
    import torch

    from edgesim.learning.models.build import users_network

    with suppress(ConfigError):  # raised again below, unless numbers are all that it lacks
        with torch.device("meta"):
            module = users_network(plugin)
        return of(module, input_shape, train, batch)
    return of(users_network(plugin), input_shape, train, batch)


def step_cost(profile: CostProfile, train: Sequence[str] | None = None, batch: int = 1) -> StepCost:
    """Return the cost of a step from a cost profile with kinds of work. `train` and errors are those of `of`."""
    layers = tuple(layer.name for layer in profile.layers if layer.params)
    for wanted in train or ():
        if not any(_within(layer, wanted) for layer in layers):
            raise ConfigError(
                f"train: {profile.model} has no trainable layer {wanted!r}{meant(wanted, layers)} "
                f"(layers: {', '.join(layers)})"
            )
    profile.check_batch("batch", batch)
    trained = tuple(each for each in layers if train is None or any(_within(each, wanted) for wanted in train))
    return StepCost(profile, trained, batch)


def _within(layer: str, module: str) -> bool:
    return layer == module or layer.startswith(f"{module}.")
