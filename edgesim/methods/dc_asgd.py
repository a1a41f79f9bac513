"""DC-ASGD: the server corrects each late gradient for the moves of the model since it was sent out.

Source: Zheng et al., "Asynchronous Stochastic Gradient Descent with Delay Compensation" (ICML 2017), algorithms 1 and
2 and the adaptive lambda of its section on experiments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import torch
from annotated_types import Ge, Lt
from torch import Tensor

from edgesim.core.limits import Count, NonNegativeFactor
from edgesim.core.method import Aggregate, Finished, LocalPhase, LocalRule, LocalState, Needs, ServerContext
from edgesim.core.model_state import lerp, mapped, minus, stepped
from edgesim.core.rng import Key
from edgesim.core.task import Payload, Plan, Task
from edgesim.core.update import ModelState, Update
from edgesim.core.view import Setting, View
from edgesim.learning.train.context import Context
from edgesim.learning.train.rules import keep_gradient, kept_gradient
from edgesim.methods.fedsgd import BatchSize, FedSGD

_UP = Payload(collections=frozenset({"gradient", "buffers"}))
_USUAL_LAM = {True: 2.0, False: 0.04}  # of the paper's experiments with CIFAR-10, by `adaptive`


@dataclass(frozen=True, kw_only=True)
class DCASGD(FedSGD):
    """Asynchronous: devices send gradients, and the server corrects each for the moves since its device got the model.

    w <- w - lr (g + `lam` g^2 (w - w_k)) for each arriving gradient g, which its device took at the model w_k. The
    squares approximate the diagonal of the Hessian. With `adaptive` the factor is `lam` / sqrt(v + 1e-7) in each
    number, where v <- `decay` v + (1 - `decay`) g^2. Gradients of one merge are applied one after the other. The
    learning rate is the rate of the merge, and clipping and weight decay of `training` apply to the gradient.

    The protocol's weight of staleness is a factor of the step. The paper has none: set `protocol.staleness` =
    "constant". Running statistics move to those of the device, by this weight. The paper's server keeps the model that
    it sent to each worker. Here it keeps its last `memory` models, and corrects a staler gradient from the oldest one.

    Family: asynchronous. Formula: `w <- w - lr (g_k + lam g_k^2 (w - w_k))`. Paper: arXiv 1609.08326.
    """

    batch_size: BatchSize = 128
    """Zheng et al. train CIFAR-10 with 128 samples a worker. "full" takes all samples of a device."""
    lam: NonNegativeFactor | None = None  # weight of the correction; None: 2 if `adaptive`, else 0.04
    """As in the experiments of Zheng et al. with CIFAR-10. At 0 it is asynchronous SGD."""
    adaptive: bool = True  # divide `lam` by the root of the mean square of gradients
    """Zheng et al. have both: DC-ASGD-a and, with a constant factor, DC-ASGD-c."""
    decay: Annotated[float, Ge(0), Lt(1)] = 0.95  # of the mean square, with `adaptive`
    """As in the experiments of Zheng et al. with CIFAR-10. They have 0 with ImageNet."""
    memory: Count = 32  # earlier models that the server keeps
    """Chosen here. More than the staleness that occurs changes nothing."""
    needs: ClassVar[Needs] = Needs(protocols=frozenset({"buffered"}))

    def init(self, setting: Setting, key: Key) -> Any:
        """Return a state without earlier models. Raises ConfigError as `fedsgd` does."""
        return {**super().init(setting, key), "models": [], "mean_square": {}}

    def plan(self, state: Any, view: View, key: Key) -> Plan:
        """Ask the selected devices for one gradient."""
        orders = super().plan(state, view, key).orders
        tasks = {id(order.task): replace(order.task, up=_UP) for order in orders}  # one object for equal tasks
        return Plan(tuple(order._replace(task=tasks[id(order.task)]) for order in orders))

    def local(self, task: Task) -> LocalRule:
        """Return the rule of a step whose gradient is sent."""

        def finish(local: LocalState, context: Context) -> Finished:
            return Finished({"gradient": kept_gradient(local), "buffers": local.weights["buffers"]})

        return LocalRule((LocalPhase(adjust_gradients=keep_gradient),), on_finish=finish)

    def aggregate(
        self, state: Any, global_model: ModelState, updates: Sequence[Update], server: ServerContext, key: Key
    ) -> Aggregate:
        """Return the model after the steps, and a state that remembers the old model."""
        made = super().aggregate(state, global_model, updates, server, key)
        if not updates:  # no new version
            return made
        models = [global_model["params"], *state["models"]][: self.memory]
        return made._replace(state={**made.state, "models": models})

    def combine(
        self, state: Any, global_model: ModelState, updates: Sequence[Update], server: ServerContext, key: Key
    ) -> Aggregate:
        """Take a step along each corrected gradient."""
        lam = _USUAL_LAM[self.adaptive] if self.lam is None else self.lam
        lr, sent = server.setting.training.lr_at(server.round), [global_model["params"], *state["models"]]
        params, buffers, square = global_model["params"], global_model["buffers"], state["mean_square"]

        def nearer(g: Tensor, v: Tensor) -> Tensor:
            return self.decay * v + (1.0 - self.decay) * g * g

        def corrected(g: Tensor, moved: Tensor, v: Tensor) -> Tensor:
            return g + (lam / torch.sqrt(v + 1e-7) if self.adaptive else lam) * g * g * moved

        for update in updates:
            g = update.body["gradient"]
            if self.adaptive:
                square = mapped(nearer, g, square or mapped(torch.zeros_like, g))
            moved = minus(params, sent[min(update.staleness, len(sent) - 1)])
            params = stepped(params, mapped(corrected, g, moved, square or g), -lr * update.weight)
            buffers = lerp(buffers, update.body["buffers"], update.weight)
        return Aggregate({**state, "mean_square": square}, {"params": params, "buffers": buffers})

    def merge_flops(self, updates: int, setting: Setting) -> float:
        """Return the FLOPs of corrections and steps: 7 for each parameter, and with `adaptive` 7 more."""
        each = 14.0 if self.adaptive else 7.0
        return updates * each * setting.cost_profile.numbers(Payload(collections=frozenset({"params"})))


PLUGINS = {"dc_asgd": DCASGD}
