"""Wrapper of a method whose devices also estimate the smoothness of their losses, for controllers of local steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from edgesim.core.method import Aggregate, Finished, LocalRule, LocalState, ServerContext
from edgesim.core.rng import Key
from edgesim.core.task import Pass, Payload, Plan, Task
from edgesim.core.update import ModelState, Update
from edgesim.core.view import Setting, View
from edgesim.methods.wrapped import Wrapped

if TYPE_CHECKING:
    from edgesim.learning.train.context import Context

GRADIENT = "estimate"  # collection of an update with the gradient at the received model
_NUMBERS_BYTES = 8  # of rho_i and beta_i
_PARAMS = Payload(collections=frozenset({"params"}))


@dataclass(frozen=True, kw_only=True)
class Estimated(Wrapped):
    """A method whose devices send a gradient and two estimates with each update, from which the server has three more.

    With w the received model and w_i the trained one, on one batch of the device's samples: rho_i = |F_i(w_i) - F_i(w)|
    / |w_i - w| and beta_i = |grad F_i(w_i) - grad F_i(w)| / |w_i - w|. The server weighs by data size: rho and beta are
    means, delta is the mean of |grad F_i(w) - grad F(w)|, where grad F(w) is the mean gradient. They become metrics.
    A device computes two more gradients of a batch, and sends as many more numbers as the model has parameters.
    Source: Wang et al., "Adaptive Federated Learning in Resource Constrained Edge Computing Systems" (JSAC 37(6),
    2019), algorithms 2 and 3. Difference: there w is the model after the aggregation of w_i. Here it is the model
    before the training, so that devices keep nothing between rounds and may differ from round to round.
    """

    def plan(self, state: Any, view: View, key: Key) -> Plan:
        """Return the method's orders, with the work and the payload of the estimates."""
        plan = super().plan(state, view, key)
        made: dict[tuple[int, int], Task] = {}
        orders = []
        for order in plan.orders:
            task = order.task
            if task.local_sgd:
                seen = min(task.local_sgd[0].batch, int(view.setting.samples[order.device]))
                if (id(task), seen) not in made:
                    up = replace(task.up, collections=task.up.collections | {GRADIENT})
                    up = replace(up, extra_bytes=up.extra_bytes + _NUMBERS_BYTES)
                    passes = (*task.passes, Pass("train", samples=2 * seen))
                    made[id(task), seen] = replace(task, up=up, passes=passes)
                order = order._replace(task=made[id(task), seen])
            orders.append(order)
        return plan._replace(orders=tuple(orders))

    def local(self, task: Task) -> LocalRule:
        """Return the method's rule, which ends with the estimates."""
        rule = self.method.local(task)
        return replace(rule, on_finish=partial(_measured, rule.on_finish)) if task.local_sgd else rule

    def aggregate(
        self, state: Any, global_model: ModelState, updates: Sequence[Update], server: ServerContext, key: Key
    ) -> Aggregate:
        """Return the method's aggregate, with the metrics rho, beta and delta."""
        made = self.method.aggregate(state, global_model, _without(updates), server, key)
        usable = [each for each in server.finite(updates)[0] if GRADIENT in each.body]
        if not isinstance(made, Aggregate) or not usable:
            return made
        samples = sum(each.samples for each in usable)
        shares = [each.samples / samples for each in usable]
        mean: dict[str, Any] = {}
        for share, each in zip(shares, usable, strict=True):
            for name, gradient in each.body[GRADIENT].items():
                mean[name] = mean[name] + share * gradient if name in mean else share * gradient
        found = {
            name: sum(share * each.statistics[name] for share, each in zip(shares, usable, strict=True))
            for name in ("rho", "beta")
        }
        found["delta"] = sum(
            share * _norm(each.body[GRADIENT][name] - mean[name] for name in each.body[GRADIENT])
            for share, each in zip(shares, usable, strict=True)
        )
        apart = 3.0 * len(usable) * server.setting.cost_profile.numbers(_PARAMS)  # a difference, a square and a sum
        return made._replace(metrics={**made.metrics, **found}, server_flops=made.server_flops + apart)

    def merge_flops_of(self, tasks: Sequence[Task], setting: Setting) -> float:
        """Return the method's FLOPs."""
        return self.method.merge_flops_of(tasks, setting)

    def on_exchange(self, state: Any, updates: Sequence[Update], server: ServerContext, key: Key) -> Any:
        """Return the method's state after an exchange."""
        return self.method.on_exchange(state, _without(updates), server, key)


def _without(updates: Sequence[Update]) -> list[Update]:
    """Return the updates as the method sent them."""
    return [
        each._replace(body={name: part for name, part in each.body.items() if name != GRADIENT}) for each in updates
    ]


def _norm(tensors: Any) -> float:
    return float(sum(float(tensor.double().square().sum()) for tensor in tensors)) ** 0.5


def _measured(inner: Callable[..., Finished] | None, local: LocalState, context: Context) -> Finished:
    """Return the results of the method's job, with the estimates of the device."""
    import torch

    from edgesim.core.model_state import model_in
    from edgesim.learning.submodel.masks import dense_gradient, one_batch
    from edgesim.learning.train.rules import objective_loss

    batch = one_batch(context, context.task.local_sgd[0].batch)
    models = context.copy(model_in(context.global_model)), model_in(local.weights)
    first, last = (dense_gradient(model, batch, context) for model in models)
    with torch.no_grad():
        losses = [float(objective_loss(model, batch, context)) for model in models]
    moved = _norm(models[1]["params"][name] - models[0]["params"][name] for name in first)
    estimates = {"rho": abs(losses[1] - losses[0]), "beta": _norm(last[name] - first[name] for name in first)}
    found = inner(local, context) if inner else Finished(local.weights)
    statistics = {name: value / moved if moved else 0.0 for name, value in estimates.items()}
    return found._replace(body={**found.body, GRADIENT: first}, statistics={**found.statistics, **statistics})
