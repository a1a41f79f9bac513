"""FedNova: devices that take more local steps no longer pull the average towards themselves.

Source: Wang et al., "Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization" (NeurIPS
2020), equation 7 and its authors' published code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
import torch
from annotated_types import Ge, Lt
from torch import Tensor

from edgesim.core.arrays import Arr
from edgesim.core.errors import ConfigError
from edgesim.core.limits import NonNegativeFactor
from edgesim.core.method import Aggregate, LocalRule, Method, ServerContext
from edgesim.core.rng import Key
from edgesim.core.task import Payload, Task
from edgesim.core.update import ModelState, Update
from edgesim.core.view import Setting, View
from edgesim.learning.train.rules import proximal_sgd
from edgesim.methods.fedprox import proximal_passes

_COUNT_BYTES = 4  # a device's number of steps


@dataclass(frozen=True, kw_only=True)
class FedNova(Method):
    """w + tau_eff sum_k p_k (w_k - w) / |a_k|: p are shares of the data, |a_k| says how far k steps lead.

    |a_k| is the number of steps that the device really took, or with `training.momentum` or the proximal term `mu` what
    these make of it, and tau_eff = sum_k p_k |a_k|; with `mu` it is the mean number of steps, as in the published code.
    With `server_momentum` the server moves by v <- server_momentum v + the move above. A device that took no step does
    not count. Running statistics of normalisation layers are averaged by data size.
    Differs: for momentum and `mu` together the published code adds one recursion on top of the other; here |a_k| is
    that of the steps really taken.
    """

    mu: NonNegativeFactor = 0.0
    """The proximal variant of Wang et al. is off in FedDHAD's comparison."""
    server_momentum: Annotated[float, Ge(0), Lt(1)] = 0.0
    """The global momentum factor of the published code (`gmf`), which is 0 there too."""

    def init(self, setting: Setting, key: Key) -> Any:
        """Return a server at rest. Raises ConfigError unless devices train by SGD, with plain momentum if any."""
        setting.training.check_sgd("it has to know how far steps lead")
        if setting.training.nesterov:
            raise ConfigError(
                "training.nesterov: must be false for this method, found true; it has to know how far steps lead"
            )
        return {**super().init(setting, key), "velocity": {}}

    def task(self, view: View) -> Task:
        """Return the training of the whole model, after which a device tells the number of its steps."""
        return replace(super().task(view), passes=proximal_passes(self.mu), up=Payload(extra_bytes=_COUNT_BYTES))

    def local(self, task: Task) -> LocalRule:
        """Return SGD on the cross-entropy with the proximal term, if there is one."""
        return proximal_sgd(self.mu)

    def combine(
        self, state: Any, global_model: ModelState, updates: Sequence[Update], server: ServerContext, key: Key
    ) -> Aggregate:
        """Apply the normalised mean of the moves of those that took a step; the model stays where nobody did."""
        moved = [update for update in updates if update.steps]
        if not moved:
            return Aggregate(state, global_model)
        sizes = self.update_weights(moved, server.setting)
        weights = self._weights(moved, np.array(sizes) / sum(sizes))
        step = {name: _weighted_moves(name, old, moved, weights) for name, old in global_model["params"].items()}
        if self.server_momentum:
            before = state["velocity"]
            step = {name: s + self.server_momentum * before[name] if before else s for name, s in step.items()}
            state = {"velocity": step}
        params = {name: (old + step[name]).to(old.dtype) for name, old in global_model["params"].items()}
        buffers = server.mean({"buffers": global_model["buffers"]}, moved, sizes)["buffers"]
        return Aggregate(state, {"params": params, "buffers": buffers})

    def _weights(self, updates: Sequence[Update], shares: Arr) -> Arr:
        """Return what each move is multiplied by, shape (k,); for equal numbers of steps these are the shares."""
        steps = np.array([message.steps for message in updates])
        lengths = np.array([self._length(message) for message in updates])
        effective = shares @ (steps if self.mu else lengths)
        weights: Arr = effective * shares / lengths
        return weights

    def _length(self, message: Update) -> float:
        (sgd,) = message.task.local_sgd
        return normaliser(message.steps, sgd.momentum, sgd.lr * self.mu)


def normaliser(steps: int, momentum: float = 0.0, pull: float = 0.0) -> float:
    """Return |a|: how far so many steps lead along gradients of 1 at a learning rate of 1.

    `pull`: learning rate times the weight of the proximal term.
    """
    moved = velocity = 0.0
    for _ in range(steps):
        velocity = momentum * velocity + 1.0 - pull * moved
        moved += velocity
    return moved


def _weighted_moves(name: str, old: Tensor, updates: Sequence[Update], weights: Arr) -> Tensor:
    """Return the weighted sum of the moves of one parameter, float64."""
    total = torch.zeros_like(old, dtype=torch.float64)
    for message, weight in zip(updates, weights.tolist(), strict=True):
        total.add_(message.body["params"][name].double() - old, alpha=weight)
    return total


PLUGINS = {"fednova": FedNova}
