"""FedNova: devices that take more local steps no longer pull the average towards themselves.

Source: Wang et al., "Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization" (NeurIPS
2020), equation 7 and its authors' published code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from annotated_types import Ge, Lt
from torch import Tensor

from edgesim.contracts import Arr, Bundle, LocalRule, Merged, Message, Needs, Order, Payload, Plan, Setting, Task, View
from edgesim.learning.merge import finite, mean_of_holders
from edgesim.learning.rules import proximal_sgd
from edgesim.methods.fedprox import proximal_passes
from edgesim.numbers import NonNegativeNumber
from edgesim.rng import Key

_COUNT_BYTES = 4  # a device's number of steps


@dataclass(frozen=True, kw_only=True)
class FedNova:
    """w + tau_eff sum_k p_k (w_k - w) / |a_k|: p are shares of the data, |a_k| says how far k steps lead.

    |a_k| is the number of steps that the device really took, or with `training.momentum` or the proximal term `mu` what
    these make of it, and tau_eff = sum_k p_k |a_k|; with `mu` it is the mean number of steps, as in the published code.
    With `server_momentum` the server moves by v <- server_momentum v + the move above. A device that took no step does
    not count. Running statistics of normalisation layers are averaged by data size.
    Differs: for momentum and `mu` together the published code adds one recursion on top of the other; here |a_k| is
    that of the steps really taken.
    """

    mu: NonNegativeNumber = 0.0
    server_momentum: Annotated[float, Ge(0), Lt(1)] = 0.0
    needs: ClassVar[Needs] = Needs()

    def init(self, setting: Setting, key: Key) -> Any:
        """Return a server at rest."""
        setting.cost.check(widths=0)
        return {"velocity": {}}

    def plan(self, state: Any, view: View, key: Key) -> Plan:
        """Ask the selected devices to train the whole model, and for the number of their steps."""
        task = Task(
            stretches=(view.setting.training.stretch(view.round),),
            passes=proximal_passes(self.mu),
            up=Payload(extra_bytes=_COUNT_BYTES),
        )
        return Plan(tuple(Order(device, task) for device in view.choose(key).tolist()))

    def local(self, task: Task) -> LocalRule:
        """Return SGD on the cross-entropy with the proximal term, if there is one."""
        return proximal_sgd(self.mu)

    def merge(self, state: Any, base: Bundle, got: Sequence[Message], view: View, tools: Any, key: Key) -> Merged:
        """Apply the normalised mean of the moves of those that took a step; the old model stays if nothing arrived."""
        arrived, notes = finite(got)
        usable = [message for message in arrived if message.steps]
        if not usable:
            return Merged(state, base if arrived else None, notes=notes)
        sizes = [message.samples * message.weight for message in usable]
        weights = self._weights(usable, np.array(sizes) / sum(sizes))
        step = {name: _weighted_moves(name, old, usable, weights) for name, old in base["params"].items()}
        if self.server_momentum:
            before = state["velocity"]
            step = {name: s + self.server_momentum * before[name] if before else s for name, s in step.items()}
            state = {"velocity": step}
        params = {name: (old + step[name]).to(old.dtype) for name, old in base["params"].items()}
        buffers = mean_of_holders({"buffers": base["buffers"]}, usable, sizes)["buffers"]
        return Merged(state, {"params": params, "buffers": buffers}, notes=notes)

    def _weights(self, got: Sequence[Message], shares: Arr) -> Arr:
        """Return what each move is multiplied by, shape (k,); for equal numbers of steps these are the shares."""
        steps = np.array([message.steps for message in got])
        lengths = np.array([self._length(message) for message in got])
        effective = shares @ (steps if self.mu else lengths)
        weights: Arr = effective * shares / lengths
        return weights

    def _length(self, message: Message) -> float:
        (stretch,) = message.task.stretches
        return normaliser(message.steps, stretch.momentum, stretch.lr * self.mu)


def normaliser(steps: int, momentum: float = 0.0, pull: float = 0.0) -> float:
    """Return |a|: how far so many steps lead along gradients of 1 at a learning rate of 1.

    `pull`: learning rate times the weight of the proximal term.
    """
    moved = velocity = 0.0
    for _ in range(steps):
        velocity = momentum * velocity + 1.0 - pull * moved
        moved += velocity
    return moved


def _weighted_moves(name: str, old: Tensor, got: Sequence[Message], weights: Arr) -> Tensor:
    """Return the weighted sum of the moves of one parameter, float64."""
    total = torch.zeros_like(old, dtype=torch.float64)
    for message, weight in zip(got, weights.tolist(), strict=True):
        total.add_(message.body["params"][name].double() - old, alpha=weight)
    return total


PARTS = {"fednova": FedNova}
