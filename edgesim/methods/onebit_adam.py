"""1-bit Adam: after rounds of Adam its second moment stays as it is, and signs of momenta travel, with error feedback.

Source: Tang et al., "1-bit Adam: Communication Efficient Large-Scale Training with Adam's Convergence Speed" (ICML
2021), algorithm 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import torch
from annotated_types import Ge, Lt

from edgesim.core.encoding import Encoding
from edgesim.core.limits import Count, PositiveFactor
from edgesim.core.method import Aggregate, Finished, LocalPhase, LocalRule, LocalState, Needs, ServerContext
from edgesim.core.rng import Key
from edgesim.core.task import Pass, Payload, Plan, Task
from edgesim.core.update import ModelState, Update
from edgesim.core.view import Setting, View
from edgesim.learning.aggregate.mean import mean_of_holders
from edgesim.learning.codec.encode import decoded
from edgesim.learning.train.context import Context
from edgesim.learning.train.rules import keep_gradient, kept_gradient
from edgesim.methods.fedsgd import FedSGD, refuse_encoding

if TYPE_CHECKING:
    from torch import Tensor

_PARAMS = Payload(collections=frozenset({"params"}))
_SIGNS = Encoding(values="sign", scale="root_mean_square")
_GRADIENT = Payload(collections=frozenset({"gradient", "buffers"}))
_MOMENTUM = Payload(collections=frozenset({"momentum", "buffers"}), encoding=replace(_SIGNS, error_feedback=True))
_COMPRESSED = "compressed"  # the name of tasks after the warm-up
_ADAM_FLOPS, _STEP_FLOPS, _SIGN_FLOPS = 7.0, 5.0, 3.0  # of moments; a step; the scale of signs and what they leave


@dataclass(frozen=True, kw_only=True)
class OneBitAdam(FedSGD):
    """m <- `beta1` m + (1 - `beta1`) g, x <- x - lr m / (sqrt(v) + `eps`), with a v that is frozen after `warm_up`.

    One gradient a device and round, as in `fedsgd`, which gives batches and weights of devices. In the warm-up devices
    send it, and the server takes Adam's step, v <- `beta2` v + (1 - `beta2`) g^2 with it; neither moment is corrected
    for where it began, as in the authors' code. After it a device makes m_k of the server's m and its own gradient, and
    sends the signs of m_k and what its last message lacked, with a scale for each layer, the root of the mean square;
    the server takes their mean, adds what its own last message lacked, and keeps the signs of that as m, which it sends
    and steps along. The rate is `training`'s, of the round; its weight decay and clipping are the gradient's.
    Here devices may come and go, so the server also sends the model, where the paper's workers, who take part in every
    step, need m alone; a device's error stays until its next job. The first m that devices get is that of the warm-up
    in signs; its bytes are charged also if no update came in the warm-up and there is none. Scales are a layer's, and
    biases and normalisation travel in float32, as in other encodings here. A parameter whose v is 0 stays, as its sign
    is no direction; in the authors' code (DeepSpeed) a mask of the user's does it.
    """

    warm_up: Count = 20  # rounds of Adam
    """Some; a task's number is to be found, and the authors' code begins at 100,000. Fewer make steps longer: after n
    rounds of like gradients v is 1 - beta2^n of their squares, which is 2 % after 20.
    """
    beta1: Annotated[float, Ge(0), Lt(1)] = 0.9  # what the first moment keeps of itself
    """That of the authors' code, and of Adam."""
    beta2: Annotated[float, Ge(0), Lt(1)] = 0.999  # what the second moment keeps of itself, in the warm-up
    """That of the authors' code, and of Adam."""
    eps: PositiveFactor = 1e-4  # beside the root of the second moment
    """The authors' code and Adam have 1e-8, with which small networks lose in signs what they had learned: units that
    hardly fire have a v of next to nothing, and docs/explanation/methods.md the numbers.
    """
    needs: ClassVar[Needs] = Needs(device_state="delivered")
    no_update_encoding: ClassVar[str] = "sends signs already"

    def init(self, setting: Setting, key: Key) -> Any:
        """Return a server at rest. Raises ConfigError if the scenario encodes uplinks, and where `fedsgd` does."""
        refuse_encoding(setting, "onebit_adam says itself how momenta are written")
        return {**super().init(setting, key), "first": {}, "second": {}, "error": {}}

    def plan(self, state: Any, view: View, key: Key) -> Plan:
        """Ask the selected devices for one gradient, or after the warm-up for the signs of momenta."""
        change = _warm if view.round < self.warm_up else partial(_compressed, setting=view.setting)
        orders = super().plan(state, view, key).orders
        tasks = {id(order.task): change(order.task) for order in orders}  # one object for equal tasks
        return Plan(tuple(order._replace(task=tasks[id(order.task)]) for order in orders))

    def local(self, task: Task) -> LocalRule:
        """Return the rule of a step of which the gradient is sent, or the momentum that it makes."""
        finish = self._momentum if task.name == _COMPRESSED else _gradient
        return LocalRule((LocalPhase(adjust_gradients=keep_gradient),), on_finish=finish)

    def combine(
        self, state: Any, global_model: ModelState, updates: Sequence[Update], server: ServerContext, key: Key
    ) -> Aggregate:
        """Return the model a step further, with the momentum that devices get in signs."""
        warm = server.round < self.warm_up
        weights = self.update_weights(updates, server.setting)
        if not sum(weights):  # as stale ones may count nothing
            return Aggregate(state, None)
        mean = _mean([self._told(update, global_model, warm) for update in updates], weights)
        if warm:
            along = _nearer(state["first"], mean, self.beta1)
            second = _nearer(state["second"], {name: g * g for name, g in mean.items()}, self.beta2)
        else:
            along = {name: m + state["error"].get(name, 0.0) for name, m in mean.items()}
            second = state["second"] or {name: m * m for name, m in mean.items()}  # if no update came in the warm-up
        signs = _in_signs(along, key)
        error = {name: m - signs[name] for name, m in along.items()}
        params = self._stepped(global_model["params"], along if warm else signs, second, server)
        statistics = [u._replace(body={"buffers": u.body.get("buffers", {})}) for u in updates]
        buffers = mean_of_holders({"buffers": global_model.get("buffers", {})}, statistics, weights)
        momentum = {"momentum": signs} if any(bool(m.any()) for m in along.values()) else {}
        state = {**state, "first": along if warm else {}, "second": second, "error": error}
        return Aggregate(state, {**global_model, **buffers, "params": params, **momentum})

    def merge_flops(self, updates: int, setting: Setting) -> float:
        """Return the FLOPs of a step after the warm-up."""
        return (1.0 + _SIGN_FLOPS + _STEP_FLOPS) * setting.cost_profile.numbers(_PARAMS)

    def merge_flops_of(self, tasks: Sequence[Task], setting: Setting) -> float:
        """Return the FLOPs of a step, in the warm-up with both moments."""
        if any(task.name == _COMPRESSED for task in tasks):
            return self.merge_flops(len(tasks), setting)
        return (_ADAM_FLOPS + _SIGN_FLOPS + _STEP_FLOPS) * setting.cost_profile.numbers(_PARAMS)

    def _momentum(self, local: LocalState, context: Context) -> Finished:
        """Return the momentum that the server's becomes by this device's gradient, and the statistics."""
        known = context.copy({"momentum": context.global_model.get("momentum", {})})
        made = self._made(known, _gradient(local, context).body["gradient"])
        return Finished({"momentum": made, "buffers": local.weights["buffers"]})

    def _made(self, known: ModelState, gradient: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return beta1 m + (1 - beta1) g for the momentum m of a model, 0 if it has none."""
        m = known.get("momentum", {})
        own = {name: (1.0 - self.beta1) * g for name, g in gradient.items()}
        return {name: t.add(m[name], alpha=self.beta1) if name in m else t for name, t in own.items()}

    def _told(self, update: Update, global_model: ModelState, warm: bool) -> Mapping[str, Tensor]:
        """Return what counts of an update: its gradient in the warm-up, else a momentum."""
        if "momentum" in update.body:
            return update.body["momentum"]
        gradient = update.body["gradient"]  # after the warm-up, of a job that is late
        return gradient if warm else self._made(global_model, gradient)

    def _stepped(
        self, params: Mapping[str, Tensor], along: Mapping[str, Tensor], second: Mapping[str, Tensor], server: Any
    ) -> dict[str, Tensor]:
        """Return x - lr m / (sqrt(v) + eps), x where v is 0."""
        lr = server.setting.training.lr_at(server.round)
        steps = {name: along[name] / (second[name].sqrt() + self.eps) for name in params}
        steps = {name: step.masked_fill(second[name] == 0, 0.0) for name, step in steps.items()}
        return {name: (x - lr * steps[name]).to(x.dtype) for name, x in params.items()}


# --- tasks --------------------------------------------------------------------------------------------------------


def _warm(task: Task) -> Task:
    """Return the task of a step whose gradient is sent."""
    return replace(task, up=_GRADIENT)


def _compressed(task: Task, setting: Setting) -> Task:
    """Return the task of a step whose momentum is sent in signs; a momentum takes 3 FLOPs for each parameter."""
    momentum_bytes = setting.cost_profile.nbytes(_PARAMS, usual=_SIGNS)
    down, work = Payload(extra_bytes=momentum_bytes), (Pass(), Pass("param_step", times=3.0, samples=1))
    return replace(task, name=_COMPRESSED, down=down, up=_MOMENTUM, passes=work)


def _gradient(local: LocalState, context: Context) -> Finished:
    """Return the gradient of the step, and the statistics."""
    return Finished({"gradient": kept_gradient(local), "buffers": local.weights["buffers"]})


# --- on the server ------------------------------------------------------------------------------------------------


def _mean(told: Sequence[Mapping[str, Tensor]], weights: Sequence[float]) -> dict[str, Tensor]:
    """Return the weighted mean of what updates tell, float64."""
    total, mean = sum(weights), {}
    for name, like in told[0].items():
        mean[name] = torch.zeros_like(like, dtype=torch.float64)
        for each, weight in zip(told, weights, strict=True):
            mean[name].add_(each[name], alpha=weight / total)
    return mean


def _nearer(before: Mapping[str, Tensor], new: Mapping[str, Tensor], beta: float) -> dict[str, Tensor]:
    """Return beta times what was before, 0 at first, and 1 - beta of what is new."""
    return {name: beta * before.get(name, 0.0) + (1.0 - beta) * tensor for name, tensor in new.items()}


def _in_signs(momentum: Mapping[str, Tensor], key: Key) -> Mapping[str, Tensor]:
    """Return a momentum as its signs have it: one scale for each layer, vectors as they are."""
    return decoded({"momentum": {name: m.float() for name, m in momentum.items()}}, _SIGNS, key)["momentum"]


PLUGINS = {"onebit_adam": OneBitAdam}
