"""ASO-Fed: each arriving model replaces the device's last one in a mean, and devices mix past gradients into steps.

Source: Chen, Ning, Slawski and Rangwala, "Asynchronous Online Federated Learning for Edge Devices with Non-IID Data"
(IEEE Big Data 2020), algorithm 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import torch
from annotated_types import Ge, Lt
from torch import Tensor

from edgesim.core.limits import NonNegativeFactor
from edgesim.core.method import Aggregate, Finished, LocalPhase, LocalRule, LocalState, Method, Needs, ServerContext
from edgesim.core.model_state import lerp, mapped, minus, stepped
from edgesim.core.rng import Key
from edgesim.core.task import Pass, Task
from edgesim.core.update import ModelState, Update
from edgesim.core.view import Setting, View
from edgesim.learning.aggregate.mean import finite_or_none
from edgesim.learning.train.context import Context
from edgesim.learning.train.rules import Anchored, pulled_to_anchor


@dataclass(slots=True)
class _Mixing(Anchored):
    """Scratch of a job: the received parameters, the last gradient and the decayed mean of those before, by name."""

    last: dict[str, Tensor]
    mean: dict[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class ASOFed(Method):
    """Asynchronous: the global model follows the newest model of each device, and devices mix in past gradients.

    w <- w + (n_k / n) (w_k - the last w_k) for each arriving model w_k, with data sizes n_k and their sum n over all
    devices. The last w_k of a device is the first model until its first update. So w is the mean of the newest models
    by data size.
    A device steps along g - g' + h, with the last gradient g' and h <- `beta` h + (1 - `beta`) g'. The gradient g has
    the proximal term `lam` (w - w received). g' and h are kept from job to job, and 0 at first. In the paper a device
    takes one such step for each model that it gets. Here it takes the steps of `training`.

    `features` = "softmax" is the paper's weighting of features: after each update row i of the first layer is
    multiplied by the softmax of its magnitudes. These factors are below 1, so that the layer shrinks at every update.

    The protocol's weight of staleness is a factor of the server's move. The paper has none: set `protocol.staleness` =
    "constant". Running statistics move n_k / n of the way to those of the device. The paper lengthens steps of slow
    devices by the logarithm of their mean delay in seconds. This is not implemented, because a method does not see
    delays. The mixed gradient costs 7 FLOPs a parameter and step with its proximal term, and 5 without.

    Family: asynchronous. Formula: `w <- w + (n_k / n) (w_k - w_k'); w_k <- w_k - lr (g - g' + h)`. Paper: arXiv
    1911.02134.
    """

    lam: NonNegativeFactor = 1.0  # weight of the proximal term; 0 leaves it out
    """The value of Chen et al. was not confirmed. 1 is chosen here."""
    beta: Annotated[float, Ge(0), Lt(1)] = 0.001  # decay factor of past gradients
    """The value of Chen et al. was not confirmed. At 0 h is the last gradient, so that a device takes plain steps."""
    features: Literal["none", "softmax"] = "none"  # weighting of the first layer on the server
    """Chen et al. have the softmax. Here it is off, because it shrinks the layer at every update."""
    needs: ClassVar[Needs] = Needs(protocols=frozenset({"buffered"}), device_state="computed")

    def init(self, setting: Setting, key: Key) -> Any:
        """Return a state without models of devices."""
        return {**super().init(setting, key), "first": {}, "models": {}}

    def task(self, view: View) -> Task:
        """Return the training of the whole model, with the work of mixing gradients and of the proximal term."""
        work = Pass("param_step", times=7.0 if self.lam else 5.0)
        return replace(super().task(view), passes=(Pass(), work))

    def local(self, task: Task) -> LocalRule:
        """Return SGD along mixed gradients, with the proximal term if there is one."""

        def start(context: Context) -> LocalState:
            anchor, kept = context.copy(context.global_model["params"]), context.device_state or {}
            last, mean = (context.copy(kept.get(kind) or mapped(torch.zeros_like, anchor)) for kind in ("last", "mean"))
            return LocalState(context.copy(context.global_model), _Mixing(anchor, last, mean))

        pulled = pulled_to_anchor(self.lam)

        def mixed(grads: list[Tensor], local: LocalState, context: Context) -> list[Tensor]:
            scratch, steps = local.scratch, []
            for name, g in zip(context.trained, pulled(grads, local, context) if self.lam else grads, strict=True):
                scratch.mean[name] = self.beta * scratch.mean[name] + (1.0 - self.beta) * scratch.last[name]
                steps.append(g - scratch.last[name] + scratch.mean[name])
                scratch.last[name] = g
            return steps

        def finish(local: LocalState, context: Context) -> Finished:
            kept = {"last": local.scratch.last, "mean": local.scratch.mean}
            return Finished(local.weights, finite_or_none(kept))

        return LocalRule(
            (LocalPhase(adjust_gradients=mixed if self.beta else (pulled if self.lam else None)),), start, finish
        )

    def combine(
        self, state: Any, global_model: ModelState, updates: Sequence[Update], server: ServerContext, key: Key
    ) -> Aggregate:
        """Let the model follow those of the devices, one after the other."""
        first = state["first"] or global_model["params"]
        models, total = dict(state["models"]), float(server.setting.samples[server.setting.ids].sum())
        params, buffers = global_model["params"], global_model["buffers"]
        for update in updates:
            share, device, new = update.weight * update.samples / total, str(update.device), update.body["params"]
            params = stepped(params, minus(new, models.get(device, first)), share)
            buffers, models[device] = lerp(buffers, update.body["buffers"], share), new
            if self.features == "softmax":
                layer = first_layer(params)
                params = {**params, layer: weighted(params[layer])}
        return Aggregate({"first": first, "models": models}, {"params": params, "buffers": buffers})


def first_layer(params: dict[str, Tensor]) -> str:
    """Return the name of the first weights of a network: the first tensor of two dimensions or more."""
    return next(name for name, tensor in params.items() if tensor.dim() >= 2)


def weighted(weights: Tensor) -> Tensor:
    """Return weights times the softmax of their magnitudes in each row. Source: Chen et al., feature learning."""
    rows = weights.flatten(1)
    return (torch.softmax(rows.abs(), dim=1) * rows).view_as(weights)


PLUGINS = {"aso_fed": ASOFed}
