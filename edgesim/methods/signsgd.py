"""signSGD with majority vote: devices send the signs of a gradient, and the server steps along the majority of signs.

Source: Bernstein, Wang, Azizzadenesheli and Anandkumar, "signSGD: Compressed Optimisation for Non-Convex Problems"
(ICML 2018), algorithm 3; Bernstein, Zhao, Azizzadenesheli and Anandkumar, "signSGD with Majority Vote is Communication
Efficient and Fault Tolerant" (ICLR 2019).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch

from edgesim.core.encoding import Encoding
from edgesim.core.method import Aggregate, Finished, LocalPhase, LocalRule, LocalState, ServerContext
from edgesim.core.model_state import mapped, stepped, weighted_sum
from edgesim.core.rng import Key
from edgesim.core.task import Payload, Plan, Task
from edgesim.core.update import ModelState, Update
from edgesim.core.view import Setting, View
from edgesim.learning.aggregate.mean import mean_of_holders
from edgesim.learning.train.context import Context
from edgesim.learning.train.rules import keep_gradient, kept_gradient
from edgesim.methods.fedsgd import FedSGD, refuse_encoding

_VOTES = frozenset({"descent", "buffers"})


@dataclass(frozen=True, kw_only=True)
class SignSGD(FedSGD):
    """Devices send the signs of one gradient a round, and the server moves each weight as the majority votes.

    w <- w - lr sign(sign(G_1) + ... + sign(G_n)): each device has one vote for each weight.
    Data sizes do not count. If the protocol gives an update a smaller weight, its votes have this weight. After a tie a
    weight stays. The learning rate is the scenario's rate of the round in which the newest update began. Running
    statistics are the mean of all devices. Devices send a bit for each weight, a scale for each layer, which the vote
    does not use, and biases and normalisation as float32, of which the server takes the signs. The papers send a bit
    for each of these too. The papers' server sends only the vote, as all workers take part in every step. Here devices
    may come and go, so the server sends the model. Momentum on devices (Signum) is not implemented. Gradients, batches
    and the use of `training` are as in `fedsgd`. Weight decay is part of the gradient whose sign is taken.

    Family: few bytes. Formula: `w <- w - lr sign(sum_k sign(G_k))`. Paper: arXiv 1802.04434 and arXiv 1810.05291.
    """

    values: Literal["sign", "float32"] = "sign"  # encoding of weights in uploads; the server takes signs of either
    """The papers send signs. "float32" is the same vote without savings, to separate the effect of fewer bits from the
    effect of the vote. With it a gradient of exactly 0 abstains. With one bit it votes for a larger weight.
    """
    no_update_encoding: ClassVar[str] = "sends signs already"

    def init(self, setting: Setting, key: Key) -> Any:
        """Return the empty state. Raises ConfigError if the scenario encodes uplinks, and where `fedsgd` does."""
        refuse_encoding(setting, "of signsgd, method.values says how weights are written")
        return super().init(setting, key)

    def plan(self, state: Any, view: View, key: Key) -> Plan:
        """Ask the selected devices for the signs of one gradient."""
        up = Payload(collections=_VOTES, encoding=Encoding(values=self.values))
        orders = super().plan(state, view, key).orders
        tasks = {id(order.task): replace(order.task, up=up) for order in orders}  # one object for equal tasks
        return Plan(tuple(order._replace(task=tasks[id(order.task)]) for order in orders))

    def local(self, task: Task) -> LocalRule:
        """Return the rule of a step whose negative gradient is sent."""
        return LocalRule((LocalPhase(adjust_gradients=keep_gradient),), on_finish=_descent)

    def combine(
        self, state: Any, global_model: ModelState, updates: Sequence[Update], server: ServerContext, key: Key
    ) -> Aggregate:
        """Return the model after a step along the majority of signs."""
        lr = max(updates, key=lambda update: update.job).task.local_sgd[0].lr
        signs = (mapped(torch.sign, update.body["descent"]) for update in updates)
        votes = weighted_sum(signs, [update.weight for update in updates])
        params = stepped(global_model["params"], mapped(torch.sign, votes), lr)
        statistics = [u._replace(body={"buffers": u.body.get("buffers", {})}) for u in updates]
        weights = self.update_weights(updates, server.setting)
        buffers = mean_of_holders({"buffers": global_model.get("buffers", {})}, statistics, weights)
        return Aggregate(state, {**global_model, **buffers, "params": params})

    def merge_flops(self, updates: int, setting: Setting) -> float:
        """Return the FLOPs of the step: sign, product and sum for each parameter. The vote is charged like a mean."""
        return 3.0 * setting.cost_profile.numbers(Payload(collections=frozenset({"params"})))


def _descent(local: LocalState, context: Context) -> Finished:
    """Return the negative gradient and the running statistics."""
    descent = mapped(torch.neg, kept_gradient(local))
    return Finished({"descent": descent, "buffers": local.weights["buffers"]})


PLUGINS = {"signsgd": SignSGD}
