"""Methods from outside the package that use every hook and every kind of memory a method may have.

Source: Li et al., "Federated Optimization in Heterogeneous Networks" (2020), for the proximal term; the rest is
made up to exercise the contract.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from edgesim.core.local_sgd import LocalSGD
from edgesim.core.method import Aggregate, Finished, LocalPhase, LocalRule, LocalState, Method, Needs, ServerContext
from edgesim.core.rng import Key
from edgesim.core.task import Order, Payload, Plan, Task
from edgesim.core.update import ModelState, Update
from edgesim.core.view import Setting, View
from edgesim.learning.aggregate.mean import finite, mean_of_holders
from edgesim.learning.train.context import Batch, Context
from edgesim.learning.train.loop import gradients
from edgesim.learning.train.rules import objective_loss

ROUNDS = frozenset({"sync", "deadline"})
EVERYWHERE = ROUNDS | {"buffered"}


@dataclass(frozen=True, kw_only=True)
class Proximal(Method):
    """Devices start ahead in the direction they drifted to before, then train with a proximal term."""

    mu: float = 0.1
    needs: ClassVar[Needs] = Needs(protocols=EVERYWHERE, device_state="computed")

    def init(self, setting: Setting, key: Key) -> Any:
        """Return a state without history."""
        return {"rounds": 0, "moved": {}, "span": (0.0, float("inf")), "drift": None}

    def plan(self, state: Any, view: View, key: Key) -> Plan:
        """Ask the selected devices for an epoch and two steps more."""
        training = view.setting.training
        more = LocalSGD(batch=training.batch, lr=training.lr_at(view.round), steps=2)
        task = Task("proximal", local_sgd=(training.local_sgd(view.round), more), config={"mu": self.mu})
        return Plan(tuple(Order(device, task) for device in view.choose(key).tolist()))

    def local(self, task: Task) -> LocalRule:
        """Return two phases: the first adjusts its gradients, the second enters half-way and takes its own."""

        def pull(grads: list[Tensor], local: LocalState, context: Context) -> list[Tensor]:
            mu, w, received = context.task.config["mu"], local.weights["params"], context.global_model["params"]
            return [g + mu * (w[n] - received[n]) for g, n in zip(grads, context.trained, strict=True)]

        first = LocalPhase(adjust_gradients=pull)
        second = LocalPhase(on_enter=_half_way, gradient=_gradient_of_a_copy)
        return LocalRule(phases=(first, second), on_start=_ahead, on_finish=_drifted)

    def aggregate(
        self, state: Any, global_model: ModelState, updates: Sequence[Update], server: ServerContext, key: Key
    ) -> Aggregate:
        """Average by data size and remember how far everybody moved."""
        usable, metrics = finite(updates)
        if not usable:
            return Aggregate(state, None, metrics=metrics)
        model = mean_of_holders(global_model, usable, [m.samples * m.weight for m in usable])
        moved = {m.device: m.statistics["moved"] for m in usable}
        drift = {name: tensor - global_model["params"][name] for name, tensor in model["params"].items()}
        new = {"rounds": state["rounds"] + 1, "moved": moved, "span": (min(moved.values()), 0.0), "drift": drift}
        return Aggregate(new, model, 0.0, {"moved": moved, **metrics})


@dataclass(frozen=True, kw_only=True)
class Delivered(Proximal):
    """The same, but a device's memory changes only if its update arrived."""

    needs: ClassVar[Needs] = Needs(protocols=EVERYWHERE, device_state="delivered")


@dataclass(frozen=True, kw_only=True)
class Forgetful(Proximal):
    """Keeps something although it says that it does not."""

    needs: ClassVar[Needs] = Needs()


@dataclass(frozen=True, kw_only=True)
class Greedy(Proximal):
    """Says that it plans from results of training."""

    needs: ClassVar[Needs] = Needs(feedback=True, device_state="computed")


@dataclass(frozen=True, kw_only=True)
class Backwards(Proximal):
    """Asks the devices in descending order."""

    def plan(self, state: Any, view: View, key: Key) -> Plan:
        """Return the orders of Proximal from the last device to the first."""
        return Plan(tuple(reversed(super().plan(state, view, key).orders)))


@dataclass(frozen=True, kw_only=True)
class Teacher(Proximal):
    """Looks at the received model before and after training, as distillation methods do."""

    def local(self, task: Task) -> LocalRule:
        """Return one phase of plain SGD between two looks at other weights."""
        return LocalRule((LocalPhase(),), on_start=_look_first, on_finish=_look_again)

    def plan(self, state: Any, view: View, key: Key) -> Plan:
        """Ask the selected devices for one epoch."""
        task = Task("taught", local_sgd=(view.setting.training.local_sgd(view.round),))
        return Plan(tuple(Order(device, task) for device in view.choose(key).tolist()))


@dataclass(frozen=True, kw_only=True)
class Asking(Proximal):
    """Every round has two exchanges: a probe of the model without training, then training."""

    needs: ClassVar[Needs] = Needs(protocols=ROUNDS, device_state="computed")

    def plan(self, state: Any, view: View, key: Key) -> Plan:
        """Return the probe, or the orders of Proximal."""
        if view.exchange:
            return super().plan(state, view, key)
        probe = Task("probe", up=Payload(collections=frozenset(), extra_bytes=8), passes=())
        return Plan(tuple(Order(device, probe) for device in view.choose(key).tolist()), more=True)

    def local(self, task: Task) -> LocalRule:
        """Return a rule without phases for the probe, whose answer is one number."""
        return super().local(task) if task.local_sgd else LocalRule(on_finish=_look_only)

    def aggregate(
        self, state: Any, global_model: ModelState, updates: Sequence[Update], server: ServerContext, key: Key
    ) -> Aggregate:
        """Merge the messages that carry a model."""
        return super().aggregate(state, global_model, [m for m in updates if m.body], server, key)


def _ahead(context: Context) -> LocalState:
    w, kept = context.copy(context.global_model), context.device_state
    if kept is None:
        return LocalState(w)
    return LocalState({**w, "params": {n: t + 0.1 * kept["drift"][n] for n, t in w["params"].items()}})


def _half_way(local: LocalState, context: Context) -> LocalState:
    received = context.global_model["params"]
    return LocalState(
        {**local.weights, "params": {n: t.lerp(received[n], 0.5) for n, t in local.weights["params"].items()}}
    )


def _gradient_of_a_copy(local: LocalState, batch: Batch, context: Context) -> list[Tensor]:
    w = local.weights
    leaves = {n: t.clone().requires_grad_(n in context.trained) for n, t in w["params"].items()}
    loss = objective_loss({**w, "params": leaves}, batch, context)
    return gradients(loss, [leaves[n] for n in context.trained])


def _drifted(local: LocalState, context: Context) -> Finished:
    drift = {n: t - context.global_model["params"][n] for n, t in local.weights["params"].items()}
    lengths = np.array([float(d.norm()) for d in drift.values()])
    statistics = {"moved": float(lengths.sum()), "by_tensor": lengths}
    return Finished({**local.weights, "drift": drift}, {"drift": drift}, statistics)


def _look_first(context: Context) -> LocalState:
    return LocalState(context.copy(context.global_model), float(_look(context.global_model, context)))


def _look_again(local: LocalState, context: Context) -> Finished:
    seen = [local.scratch, float(_look(context.global_model, context))]
    return Finished(local.weights, statistics={"moved": sum(seen), "seen": np.array(seen)})


def _look_only(local: LocalState, context: Context) -> Finished:
    return Finished(local.weights, statistics={"loss": float(_look(local.weights, context))})


def _look(w: ModelState, context: Context) -> Tensor:
    with torch.no_grad():
        batch = context.batch(torch.arange(8), torch.Generator().manual_seed(context.key.at(9).word()))
        return objective_loss(w, batch, context)
