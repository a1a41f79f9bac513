"""1-bit Adam: after some rounds of Adam the second moment is frozen, and devices send only the signs of momenta.

Source: Tang et al., "1-bit Adam: Communication Efficient Large-Scale Training with Adam's Convergence Speed" (ICML
2021), algorithm 1, with error feedback.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import torch
from annotated_types import Ge, Lt

from edgesim.core.encoding import Encoding
from edgesim.core.limits import Count, PositiveFactor
from edgesim.core.method import Aggregate, Finished, LocalPhase, LocalRule, LocalState, Needs, ServerContext
from edgesim.core.model_state import mapped, minus, named, stepped, tensors_in, weighted_sum
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
_ADAM_FLOPS, _STEP_FLOPS, _SIGN_FLOPS = 7.0, 5.0, 3.0  # FLOPs of moments, of a step, of the signs' scale and error


@dataclass(frozen=True, kw_only=True)
class OneBitAdam(FedSGD):
    """Adam on the server with a second moment frozen after `warm_up` rounds, so that devices send signs of momenta.

    m <- `beta1` m + (1 - `beta1`) g, x <- x - lr m / (sqrt(v) + `eps`).
    Each device computes one gradient a round, with batches and weights of devices as in `fedsgd`. In the warm-up
    devices send the gradient, and the server takes Adam's step with it, v <- `beta2` v + (1 - `beta2`) g^2. As in the
    authors' code, neither moment has a bias correction. After the warm-up a device computes m_k from the server's m
    and its own gradient. It sends the signs of m_k plus the error of its last message, with a scale for each layer, the
    root of the mean square. The server takes the mean of the messages, adds the error of its own last message, and
    keeps the signs of the sum as m. It sends m and steps along it. The learning rate is the round's rate of
    `training`. Weight decay and clipping of `training` apply to the gradient.
    Here devices may come and go, so the server also sends the model. The paper's workers take part in every step and
    need m alone. A device keeps its error until its next job. The first m that devices get is the m of the warm-up in
    signs. Its bytes are charged even if no update arrived in the warm-up and there is no m. Each layer has its own
    scale, and biases and normalisation travel in float32, as in other encodings here. A parameter whose v is 0 does not
    move, because its sign is no direction. In the authors' code (DeepSpeed) the user gives a mask for this.

    Family: few bytes. Formula: `m <- sign(mean_k sign(m_k + error_k) + error); x <- x - lr m / (sqrt(v) + eps), with
    scales`. Paper: arXiv 2102.02888.
    """

    warm_up: Count = 20  # rounds of Adam
    """A small number chosen here. Each task has its own best number, and the authors' code begins at 100,000. Fewer
    rounds make steps longer: after n rounds of similar gradients v is 1 - beta2^n of their squares, 2 % after 20.
    """
    beta1: Annotated[float, Ge(0), Lt(1)] = 0.9  # decay factor of the first moment
    """As in the authors' code and in Adam."""
    beta2: Annotated[float, Ge(0), Lt(1)] = 0.999  # decay factor of the second moment, in the warm-up
    """As in the authors' code and in Adam."""
    eps: PositiveFactor = 1e-4  # added to the root of the second moment
    """The authors' code and Adam have 1e-8. With it the signs destroy what small networks had learned, because units
    that rarely fire have a v near 0: docs/explanation/methods.md has the numbers.
    """
    needs: ClassVar[Needs] = Needs(device_state="delivered")
    no_update_encoding: ClassVar[str] = "sends signs already"

    def init(self, setting: Setting, key: Key) -> Any:
        """Return a state without moments. Raises ConfigError as `fedsgd` does, and if uplinks are encoded."""
        refuse_encoding(setting, "onebit_adam says itself how momenta are written")
        return {**super().init(setting, key), "first": {}, "second": {}, "error": {}}

    def plan(self, state: Any, view: View, key: Key) -> Plan:
        """Ask the selected devices for one gradient, or after the warm-up for the signs of momenta."""
        if view.round < self.warm_up:
            changes: dict[str, Any] = {"up": _GRADIENT}
        else:
            down = Payload(extra_bytes=view.setting.cost_profile.nbytes(_PARAMS, usual=_SIGNS))
            work = (Pass(), Pass("param_step", times=3.0, samples=1))  # a momentum takes 3 FLOPs for each parameter
            changes = {"name": _COMPRESSED, "down": down, "up": _MOMENTUM, "passes": work}
        orders = super().plan(state, view, key).orders
        tasks = {id(order.task): replace(order.task, **changes) for order in orders}  # one object for equal tasks
        return Plan(tuple(order._replace(task=tasks[id(order.task)]) for order in orders))

    def local(self, task: Task) -> LocalRule:
        """Return the rule of a step whose gradient is sent, or whose momentum is sent."""
        finish = self._momentum if task.name == _COMPRESSED else _gradient
        return LocalRule((LocalPhase(adjust_gradients=keep_gradient),), on_finish=finish)

    def combine(
        self, state: Any, global_model: ModelState, updates: Sequence[Update], server: ServerContext, key: Key
    ) -> Aggregate:
        """Return the model after a step, with the momentum in signs for the devices."""
        warm = server.round < self.warm_up
        weights = self.update_weights(updates, server.setting)
        if not sum(weights):  # as stale ones may count nothing
            return Aggregate(state, None)
        total = sum(weights)
        sent: list[Mapping[str, Tensor]] = []
        for body in (update.body for update in updates):
            if "momentum" in body:
                sent.append(body["momentum"])
            else:  # after the warm-up: a late job's gradient
                sent.append(body["gradient"] if warm else self._made(global_model, body["gradient"]))
        # of gradients in the warm-up, else of momenta
        mean = weighted_sum(sent, [weight / total for weight in weights])
        if warm:
            along = _nearer(state["first"], mean, self.beta1)
            second = _nearer(state["second"], mapped(torch.square, mean), self.beta2)
        else:
            along = named(lambda name, m: m + state["error"].get(name, 0.0), mean)
            second = state["second"] or mapped(torch.square, mean)  # if no update came in the warm-up
        signs = decoded({"momentum": mapped(torch.Tensor.float, along)}, _SIGNS, key)["momentum"]
        error = minus(along, signs)
        # x - lr m / (sqrt(v) + eps), x where v is 0
        lr, old, m = server.setting.training.lr_at(server.round), global_model["params"], along if warm else signs
        steps = mapped(lambda m, v: (m / (v.sqrt() + self.eps)).masked_fill(v == 0, 0.0), m, second)
        params = stepped(old, steps, -lr)
        statistics = [u._replace(body={"buffers": u.body.get("buffers", {})}) for u in updates]
        buffers = mean_of_holders({"buffers": global_model.get("buffers", {})}, statistics, weights)
        momentum = {"momentum": signs} if any(bool(m.any()) for m in tensors_in(along)) else {}
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
        """Return the server's momentum updated by this device's gradient, and the running statistics."""
        known = context.copy({"momentum": context.global_model.get("momentum", {})})
        made = self._made(known, _gradient(local, context).body["gradient"])
        return Finished({"momentum": made, "buffers": local.weights["buffers"]})

    def _made(self, known: ModelState, gradient: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return beta1 m + (1 - beta1) g for the momentum m of a model, 0 if it has none."""
        m = known.get("momentum", {})
        own = mapped(lambda g: (1.0 - self.beta1) * g, gradient)
        return named(lambda name, t: t.add(m[name], alpha=self.beta1) if name in m else t, own)


def _gradient(local: LocalState, context: Context) -> Finished:
    """Return the gradient of the step, and the running statistics."""
    return Finished({"gradient": kept_gradient(local), "buffers": local.weights["buffers"]})


def _nearer(before: Mapping[str, Tensor], new: Mapping[str, Tensor], beta: float) -> dict[str, Tensor]:
    """Return beta times the old values, 0 at first, plus 1 - beta times the new ones."""
    return named(lambda name, t: beta * before.get(name, 0.0) + (1.0 - beta) * t, new)


PLUGINS = {"onebit_adam": OneBitAdam}
