"""FedNova: moves of devices are divided by their local steps, so that more steps do not mean more weight.

Source: Wang et al., "Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization" (NeurIPS
2020), equation 7 and its authors' published code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge, Lt

from edgesim.core.errors import ConfigError
from edgesim.core.limits import NonNegativeFactor
from edgesim.core.method import Aggregate, LocalRule, Method, ServerContext
from edgesim.core.model_state import mapped, moves, stepped, weighted_sum
from edgesim.core.rng import Key
from edgesim.core.task import Payload, Task
from edgesim.core.update import ModelState, Update
from edgesim.core.view import Setting, View
from edgesim.learning.train.rules import proximal_sgd
from edgesim.methods.fedprox import proximal_passes

_COUNT_BYTES = 4  # a device's number of steps


@dataclass(frozen=True, kw_only=True)
class FedNova(Method):
    """FedAvg that normalises the move of each device by its local steps, for devices with different numbers of steps.

    The new model is w + tau_eff sum_k p_k (w_k - w) / |a_k|, where p_k are shares of the data.
    |a_k| is the number of steps that device k actually took. With `training.momentum` or the proximal term `mu` it is
    the length of these steps along constant gradients. tau_eff = sum_k p_k |a_k|, but with `mu` it is the mean number
    of steps, as in the published code. With `server_momentum` the server moves by v <- server_momentum v + the move
    above. A device that took no step does not count. Running statistics of normalisation layers are averaged by data
    size.
    Differs: for momentum and `mu` together the published code adds one recursion to the other. Here |a_k| is computed
    for the steps actually taken.

    Family: correction of local steps. Formula: `w <- w + tau_eff sum_k p_k (w_k - w) / |a_k|, tau_eff = sum_k p_k
    |a_k|`. Paper: arXiv 2007.07481.
    """

    mu: NonNegativeFactor = 0.0
    """Factor of the proximal term, mu / 2 times the squared distance from the received model. The FedDHAD paper's
    comparison does not use it.
    """
    server_momentum: Annotated[float, Ge(0), Lt(1)] = 0.0
    """Momentum of the server: the share of the last move that the next one repeats. The published code calls it `gmf`
    and has 0, too.
    """

    def init(self, setting: Setting, key: Key) -> Any:
        """Return a state without velocity. Raises ConfigError unless devices train by SGD without Nesterov momentum."""
        setting.training.check_sgd("it has to know how far steps lead")
        if setting.training.nesterov:
            raise ConfigError(
                "training.nesterov: must be false for this method, found true; it has to know how far steps lead"
            )
        return {**super().init(setting, key), "velocity": {}}

    def task(self, view: View) -> Task:
        """Return the training of the whole model, after which a device sends its number of steps."""
        return replace(super().task(view), passes=proximal_passes(self.mu), up=Payload(extra_bytes=_COUNT_BYTES))

    def local(self, task: Task) -> LocalRule:
        """Return SGD on the cross-entropy, with the proximal term unless `mu` is 0."""
        return proximal_sgd(self.mu)

    def combine(
        self, state: Any, global_model: ModelState, updates: Sequence[Update], server: ServerContext, key: Key
    ) -> Aggregate:
        """Apply the normalised mean of the moves of devices that took a step. Without such devices the model stays."""
        moved = [update for update in updates if update.steps]
        if not moved:
            return Aggregate(state, global_model)
        sizes = self.update_weights(moved, server.setting)
        shares = np.array(sizes) / sum(sizes)
        lengths = np.array(
            [
                normaliser(update.steps, update.task.local_sgd[0].momentum, update.task.local_sgd[0].lr * self.mu)
                for update in moved
            ]
        )
        effective = shares @ (np.array([update.steps for update in moved]) if self.mu else lengths)
        weights = effective * shares / lengths  # for equal numbers of steps the shares
        old = global_model["params"]
        step = weighted_sum((moves(update.body["params"], old) for update in moved), weights.tolist())
        if self.server_momentum:
            if state["velocity"]:
                step = mapped(lambda s, before: s + self.server_momentum * before, step, state["velocity"])
            state = {"velocity": step}
        params = stepped(old, step)
        buffers = server.mean({"buffers": global_model["buffers"]}, moved, sizes)["buffers"]
        return Aggregate(state, {"params": params, "buffers": buffers})


def normaliser(steps: int, momentum: float = 0.0, pull: float = 0.0) -> float:
    """Return |a|, the length of `steps` steps along gradients of 1 at a learning rate of 1.

    `pull`: learning rate times the weight of the proximal term.
    """
    moved = velocity = 0.0
    for _ in range(steps):
        velocity = momentum * velocity + 1.0 - pull * moved
        moved += velocity
    return moved


PLUGINS = {"fednova": FedNova}
