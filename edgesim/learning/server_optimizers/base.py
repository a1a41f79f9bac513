"""Base class of server optimisers: the step of the server, given the move of an aggregation."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from edgesim.core.task import Payload
from edgesim.core.update import ModelState
from edgesim.core.view import Setting

if TYPE_CHECKING:
    from torch import Tensor

Moments: TypeAlias = "Mapping[str, Mapping[str, Tensor]]"  # parameter -> name -> tensor; empty before the first step

_PARAMS = Payload(collections=frozenset({"params"}))


@dataclass(frozen=True, kw_only=True)
class ServerOptimizer(ABC):
    """Base class of server optimisers: frozen dataclasses of hyper-parameters and pure functions.

    The *move* of a parameter is its value after the aggregation minus its value before it. The optimiser takes the
    negative move as the gradient. Moves, moments and steps are float64.
    Source: Reddi et al., "Adaptive Federated Optimization" (ICLR 2021), algorithm 1.
    """

    @property
    def is_identity(self) -> bool:
        """True if every step is the move itself, so that nothing is computed."""
        return False

    @property
    @abstractmethod
    def flops_per_parameter(self) -> float:
        """FLOPs of a step per parameter: one for each product, quotient, sum and root."""

    @abstractmethod
    def step(self, kept: Mapping[str, Tensor], move: Tensor) -> tuple[Mapping[str, Tensor], Tensor]:
        """Return the new moments of a parameter and its step, of the move's shape. `kept`: moments, empty at first."""


def stepped(
    optimizer: ServerOptimizer, moments: Moments, old: ModelState, new: ModelState
) -> tuple[Moments, ModelState]:
    """Return the new moments, and the model after a step of the optimiser from the old model towards the new one.

    The optimiser moves parameters. Buffers and a method's own collections are taken from the new model.
    """
    if optimizer.is_identity:
        return moments, new
    kept, params = {}, {}
    for name, before in old["params"].items():
        move = new["params"][name].double() - before
        kept[name], step = optimizer.step(moments.get(name, {}), move)
        params[name] = (before + step).to(before.dtype)
    return kept, {**new, "params": params}


def step_flops(optimizer: ServerOptimizer, setting: Setting) -> float:
    """Return the FLOPs of a step of the whole model, by its cost profile."""
    if optimizer.is_identity:
        return 0.0
    return optimizer.flops_per_parameter * float(setting.cost_profile.numbers(_PARAMS))
