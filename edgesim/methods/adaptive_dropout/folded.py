"""Multipliers of kept units: the weights that read these units are multiplied before training and divided after it.

Source: Algorithm 2 of arXiv 2507.10430, whose "the weight is updated" can be read so.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from edgesim.core.method import Finished, LocalPhase, LocalRule, LocalState
from edgesim.core.price_list import CostProfile
from edgesim.core.task import Submodel
from edgesim.core.update import ModelState
from edgesim.learning.train.context import Context


def factors_of(submodel: Submodel, cost_profile: CostProfile) -> dict[str, float]:
    """Return the multipliers of a submodel as a task's config: for each layer that reads a group, one per kept unit."""
    return {
        f"{layer.name}:{place}": factor
        for group, factors in submodel.scale
        for layer in cost_profile.layers
        if layer.columns == group
        for place, factor in enumerate(factors)
    }


def _fold(context: Context) -> LocalState:
    """Return the model received with the task's multipliers in its weights."""
    weights = context.copy(context.global_model)
    for weight, factors in _each(weights, context.task.config):
        weight.mul_(factors)
    return LocalState(weights)


def _unfold(local: LocalState, context: Context) -> Finished:
    """Return the trained model without the multipliers."""
    for weight, factors in _each(local.weights, context.task.config):
        weight.div_(factors)
    return Finished(local.weights)


def _each(weights: ModelState, config: Mapping[str, float]) -> list[tuple[Tensor, Tensor]]:
    """Return each weight that reads thinned units, and the factors of its columns."""
    layers: dict[str, list[float]] = {}
    for key, factor in config.items():
        layers.setdefault(key.rpartition(":")[0], []).append(factor)
    found = []
    for layer, factors in layers.items():
        weight = weights["params"][f"{layer}.weight"]
        columns = torch.tensor(factors).repeat_interleave(weight.shape[1] // len(factors))
        found.append((weight, columns.to(weight).view(-1, *(1,) * (weight.dim() - 2))))
    return found


FOLDED = LocalRule(phases=(LocalPhase(),), on_start=_fold, on_finish=_unfold)
