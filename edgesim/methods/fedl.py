"""FEDL: devices train on a surrogate whose gradient is corrected towards the gradient of all devices.

Source: Dinh et al., "Federated Learning Over Wireless Networks: Convergence Analysis and Resource Allocation" (IEEE/ACM
Trans. Netw. 29(1), 2021), algorithm 1 and its authors' published code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from edgesim.core.limits import PositiveFactor
from edgesim.core.method import Aggregate, Finished, LocalPhase, LocalRule, LocalState, Method, ServerContext
from edgesim.core.model_state import MODEL, mapped, model_in
from edgesim.core.rng import Key
from edgesim.core.task import Pass, Payload, Plan, Task
from edgesim.core.update import ModelState, Update
from edgesim.core.view import View
from edgesim.learning.aggregate.mean import mean_of_holders
from edgesim.learning.train.context import Context
from edgesim.methods.scaffold import whole_gradient

_WITH_GRADIENT = Payload(collections=frozenset({*MODEL, "gradient"}))


@dataclass(frozen=True, kw_only=True)
class Fedl(Method):
    """For unequal data: each device replaces its own gradient at the received model by `eta` times the mean one.

    A device minimises F_k(w) + <eta G - F_k'(w received), w> by local SGD, so it steps along g + eta G - F_k'(w
    received). Then it sends its model and the gradient of all its samples there. The new model and G are the means by
    data size. Without a G, before the first merge, devices train by plain SGD, as in the published code. For a single
    device and `eta` = 1 it is FedAvg, as G is then the device's own gradient at the received model.

    The paper trains until the surrogate's gradient has shrunk to a share theta. Here the scenario's epochs or steps say
    how long, as in the published code. A device takes two passes more: the gradients before and after its steps. A
    device that took no step sends its model alone. The choice of frequencies and uploads of the same papers is
    `resources = "fedl"`.

    Family: correction of local steps. Formula: `w_k <- w_k - lr (g(w_k) + eta G - F_k'(w)); G <- sum_k n_k F_k'(w_k) /
    sum_k n_k`. Paper: arXiv 1910.13067.
    """

    eta: PositiveFactor = 0.2
    """The published commands for MNIST have 0.2, 2 and 4, those for linear regression 0.01 to 0.07."""

    def plan(self, state: Any, view: View, key: Key) -> Plan:
        """Ask the selected devices to train, with the passes that give their gradients."""
        setting, ids = view.setting, view.choose(key)
        sgd = setting.training.local_sgd(view.round)
        seen, _ = sgd.for_epochs(1).amount(setting.samples[ids], setting.cost_profile.drop_single)

        def task_of(samples: int) -> Task:
            task = Task(local_sgd=(sgd,), passes=(Pass(), Pass("train", samples=samples)), up=_WITH_GRADIENT)
            if not view.version:  # before the first merge
                return task
            passes = (Pass(), Pass("param_step", times=2.0), Pass("train", samples=2 * samples))
            return replace(task, passes=passes, down=_WITH_GRADIENT)

        return Plan.by_kind(ids.tolist(), seen.tolist(), task_of)

    def local(self, task: Task) -> LocalRule:
        """Return SGD along corrected gradients."""

        def start(context: Context) -> LocalState:
            model = context.copy(model_in(context.global_model))
            if "gradient" not in context.global_model:
                return LocalState(model, _Correction({}))
            own = whole_gradient(model, context)
            of_all = context.copy(context.global_model["gradient"])
            return LocalState(model, _Correction(mapped(lambda g, mine: self.eta * g - mine, of_all, own)))

        def corrected(grads: list[Tensor], local: LocalState, context: Context) -> list[Tensor]:
            correction = local.scratch.by_name
            if not correction:
                return grads
            return [g + correction[name] for name, g in zip(context.trained, grads, strict=True)]

        def after_step(local: LocalState, context: Context) -> None:
            local.scratch.stepped = True

        def finish(local: LocalState, context: Context) -> Finished:
            model = local.weights
            return Finished({**model, "gradient": whole_gradient(model, context)} if local.scratch.stepped else model)

        return LocalRule((LocalPhase(adjust_gradients=corrected, after_step=after_step),), start, finish)

    def combine(
        self, state: Any, global_model: ModelState, updates: Sequence[Update], server: ServerContext, key: Key
    ) -> Aggregate:
        """Return the mean model with the mean gradient."""
        sizes = self.update_weights(updates, server.setting)
        models = [update._replace(body=model_in(update.body)) for update in updates]
        mean = server.mean(model_in(global_model), models, sizes)
        gradients = [each._replace(body={"params": each.body.get("gradient", {})}) for each in updates]
        if not any(each.body["params"] for each in gradients):
            kept = {"gradient": global_model["gradient"]} if "gradient" in global_model else {}
            return Aggregate(state, {**mean, **kept})
        zeros = {"params": mapped(torch.zeros_like, global_model["params"])}
        gradient = mean_of_holders(zeros, gradients, sizes)["params"]
        return Aggregate(state, {**mean, "gradient": gradient})


@dataclass(slots=True)
class _Correction:
    """Scratch of a job: eta G - F_k'(w received), empty without a G, and whether it took a step."""

    by_name: dict[str, Tensor]
    stepped: bool = False


PLUGINS = {"fedl": Fedl}
