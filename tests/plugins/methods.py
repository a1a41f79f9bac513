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

from edgesim.contracts import (
    Bundle,
    LocalPhase,
    LocalRule,
    Merged,
    Message,
    Needs,
    Order,
    Payload,
    Plan,
    Setting,
    Stretch,
    Task,
    View,
)
from edgesim.learning.context import Batch, Context
from edgesim.learning.loop import gradients
from edgesim.learning.merge import finite, mean_of_holders
from edgesim.learning.rules import cross_entropy
from edgesim.rng import Key

ROUNDS = frozenset({"sync", "deadline"})
EVERYWHERE = ROUNDS | {"buffered"}


@dataclass(frozen=True, kw_only=True)
class Proximal:
    """Devices start ahead in the direction they drifted to before, then train with a proximal term."""

    mu: float = 0.1
    needs: ClassVar[Needs] = Needs(coordinators=EVERYWHERE, keep="computed")

    def init(self, setting: Setting, key: Key) -> Any:
        """Return a state without history."""
        return {"rounds": 0, "moved": {}, "span": (0.0, float("inf")), "drift": None}

    def plan(self, state: Any, view: View, key: Key) -> Plan:
        """Ask the selected devices for an epoch and two steps more."""
        training = view.setting.training
        more = Stretch(batch=training.batch, lr=training.lr_at(view.round), steps=2)
        task = Task("proximal", stretches=(training.stretch(view.round), more), knobs={"mu": self.mu})
        return Plan(tuple(Order(device, task) for device in view.choose(key).tolist()))

    def local(self, task: Task) -> LocalRule:
        """Return two phases: the first adjusts its gradients, the second enters half-way and takes its own."""

        def pull(grads: list[Tensor], w: Bundle, context: Context) -> list[Tensor]:
            mu, names = context.task.knobs["mu"], context.trained
            return [g + mu * (w["params"][n] - context.base["params"][n]) for g, n in zip(grads, names, strict=True)]

        first = LocalPhase(loss=cross_entropy, adjust=pull)
        second = LocalPhase(loss=cross_entropy, enter=_half_way, gradient=_gradient_of_a_copy)
        return LocalRule(phases=(first, second), start=_ahead, finish=_drifted)

    def merge(self, state: Any, base: Bundle, got: Sequence[Message], view: View, tools: Any, key: Key) -> Merged:
        """Average by data size and remember how far everybody moved."""
        usable, notes = finite(got)
        if not usable:
            return Merged(state, None, notes=notes)
        model = mean_of_holders(base, usable, [m.samples * m.weight for m in usable])
        moved = {m.device: m.signals["moved"] for m in usable}
        drift = {name: tensor - base["params"][name] for name, tensor in model["params"].items()}
        new = {"rounds": state["rounds"] + 1, "moved": moved, "span": (min(moved.values()), 0.0), "drift": drift}
        return Merged(new, model, 0.0, {"moved": moved, **notes})


@dataclass(frozen=True, kw_only=True)
class Delivered(Proximal):
    """The same, but a device's memory changes only if its update arrived."""

    needs: ClassVar[Needs] = Needs(coordinators=EVERYWHERE, keep="delivered")


@dataclass(frozen=True, kw_only=True)
class Forgetful(Proximal):
    """Keeps something although it says that it does not."""

    needs: ClassVar[Needs] = Needs()


@dataclass(frozen=True, kw_only=True)
class Greedy(Proximal):
    """Says that it plans from results of training."""

    needs: ClassVar[Needs] = Needs(feedback=True, keep="computed")


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
        return LocalRule((LocalPhase(loss=cross_entropy),), start=_look_first, finish=_look_again)

    def plan(self, state: Any, view: View, key: Key) -> Plan:
        """Ask the selected devices for one epoch."""
        task = Task("taught", stretches=(view.setting.training.stretch(view.round),))
        return Plan(tuple(Order(device, task) for device in view.choose(key).tolist()))


@dataclass(frozen=True, kw_only=True)
class Asking(Proximal):
    """Every round has two exchanges: a probe of the model without training, then training."""

    needs: ClassVar[Needs] = Needs(coordinators=ROUNDS, keep="computed")

    def plan(self, state: Any, view: View, key: Key) -> Plan:
        """Return the probe, or the orders of Proximal."""
        if view.exchange:
            return super().plan(state, view, key)
        probe = Task("probe", up=Payload(kinds=frozenset(), extra_bytes=8), passes=())
        return Plan(tuple(Order(device, probe) for device in view.choose(key).tolist()), more=True)

    def local(self, task: Task) -> LocalRule:
        """Return a rule without phases for the probe, whose answer is one number."""
        return super().local(task) if task.stretches else LocalRule(finish=_look_only)

    def merge(self, state: Any, base: Bundle, got: Sequence[Message], view: View, tools: Any, key: Key) -> Merged:
        """Merge the messages that carry a model."""
        return super().merge(state, base, [m for m in got if m.body], view, tools, key)


def _ahead(base: Bundle, own: Bundle | None, context: Context) -> Bundle:
    w = context.copy(base)
    if own is None:
        return w
    return {**w, "params": {n: t + 0.1 * own["drift"][n] for n, t in w["params"].items()}}


def _half_way(w: Bundle, context: Context) -> Bundle:
    return {**w, "params": {n: t.lerp(context.base["params"][n], 0.5) for n, t in w["params"].items()}}


def _gradient_of_a_copy(w: Bundle, batch: Batch, context: Context) -> list[Tensor]:
    leaves = {n: t.clone().requires_grad_(n in context.trained) for n, t in w["params"].items()}
    loss = cross_entropy({**w, "params": leaves}, batch, context)
    return gradients(loss, [leaves[n] for n in context.trained])


def _drifted(w: Bundle, context: Context) -> tuple[Bundle, Bundle, dict[str, Any]]:
    drift = {n: t - context.base["params"][n] for n, t in w["params"].items()}
    lengths = np.array([float(d.norm()) for d in drift.values()])
    return {**w, "drift": drift}, {"drift": drift}, {"moved": float(lengths.sum()), "by_tensor": lengths}


def _look_first(base: Bundle, own: Bundle | None, context: Context) -> Bundle:
    return {**context.copy(base), "seen": {"first": _look(base, context)}}


def _look_again(w: Bundle, context: Context) -> tuple[Bundle, None, dict[str, Any]]:
    seen = [float(w["seen"]["first"]), float(_look(context.base, context))]
    return w, None, {"moved": sum(seen), "seen": np.array(seen)}


def _look_only(w: Bundle, context: Context) -> tuple[Bundle, None, dict[str, Any]]:
    return w, None, {"loss": float(_look(w, context))}


def _look(w: Bundle, context: Context) -> Tensor:
    with torch.no_grad():
        batch = context.batch(torch.arange(8), torch.Generator().manual_seed(context.key.at(9).word()))
        return cross_entropy(w, batch, context)
