"""Ditto: beside the model that it trains for everybody, each device has one of its own, held near the global one.

Source: Li et al., "Ditto: Fair and Robust Federated Learning Through Personalization" (ICML 2021), algorithm 1; as a
baseline of DA-DPFL, whose published code pulls in a step of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import torch
from annotated_types import Ge
from torch import Tensor

from edgesim.contracts import Bundle, LocalPhase, LocalRule, Needs, Order, Pass, Plan, Task, View
from edgesim.learning.context import Batch, Context
from edgesim.learning.merge import is_finite
from edgesim.learning.rules import cross_entropy, pulled_to_anchor
from edgesim.methods.fedavg import FedAvg
from edgesim.numbers import NonNegativeNumber
from edgesim.rng import Key

_PULL_FLOPS = 2.0  # per parameter and personal step


@dataclass(frozen=True, kw_only=True)
class Ditto(FedAvg):
    """FedAvg, after which the device trains v, its own model: v <- v - lr (g(v) + `lam` (v - w received)).

    v stays on the device, where it waits for the device's next turn. `evaluation.personal` tests it; a device that
    never had a turn is tested with the global model. `proximal`: the pull is part of the gradient ("joint"), or a step
    v <- v - lr lam (v - w) after that of the optimiser ("split"). `global_epochs` train the model that is sent and
    `personal_epochs` v, each `training.local_epochs` if unset. `first_personal`: v starts from the "initial" model of
    the run, or from the first that the device "received". A v that diverged is forgotten for the one before. A device
    that stops early misses the last of its personal steps first. Keys of the average: see FedAvg.
    """

    lam: NonNegativeNumber = 0.5
    proximal: Literal["joint", "split"] = "joint"
    global_epochs: Annotated[int, Ge(1)] | None = None
    personal_epochs: Annotated[int, Ge(1)] | None = None
    first_personal: Literal["initial", "received"] = "initial"
    needs: ClassVar[Needs] = Needs(keep="computed")

    def plan(self, state: Any, view: View, key: Key) -> Plan:
        """Ask the selected devices to train the global model, then their own."""
        usual = view.setting.training.stretch(view.round)
        shared, own = (replace(usual, epochs=n or usual.epochs) for n in (self.global_epochs, self.personal_epochs))
        times = _PULL_FLOPS * own.epochs / (shared.epochs + own.epochs)  # of all steps only these are pulled
        pull = (Pass("param_step", times=times),) if self.lam else ()
        task = Task(stretches=(shared, own), passes=(Pass(), *pull))
        return Plan(tuple(Order(device, task) for device in view.choose(key).tolist()))

    def local(self, task: Task) -> LocalRule:
        """Return SGD on the cross-entropy for the global model, and the same with the pull for the device's own."""
        if self.proximal == "joint":
            personal = LocalPhase(loss=cross_entropy, adjust=pulled_to_anchor(self.lam), enter=_to_own_model)
        else:
            personal = LocalPhase(loss=self._after_pull, enter=_to_own_model)
        return LocalRule((LocalPhase(loss=cross_entropy), personal), start=self._start, finish=_finish)

    def personal(self, base: Bundle, own: Bundle | None) -> Bundle:
        """Return a device's own model, the global one if it has none yet."""
        return base if own is None else own

    def _start(self, base: Bundle, own: Bundle | None, context: Context) -> Bundle:
        """Return the model to send, and beside it the device's own, what that is held to, and how far it is pulled."""
        first = context.first if self.first_personal == "initial" else base
        return {
            **context.copy(base),
            "own": context.copy(first if own is None else own),
            "anchor": context.copy({"params": base["params"]})["params"],
            "pull": {"share": torch.zeros(())},  # of the way to the anchor that a split step has still to go
        }

    def _after_pull(self, w: Bundle, batch: Batch, context: Context) -> Tensor:
        """Return the loss where the pull of the step before leads; there is nothing to hook on after a step."""
        _pull(w, context)
        w["pull"]["share"].fill_(self.lam * context.task.stretches[-1].lr)
        return cross_entropy(w, batch, context)


def _pull(w: Bundle, context: Context) -> None:
    share = float(w["pull"]["share"])
    for name in context.trained:
        w["params"][name].lerp_(w["anchor"][name], share)


def _to_own_model(w: Bundle, context: Context) -> Bundle:
    """Return the device's own model to train, and aside the one that it sends."""
    return {**w["own"], "anchor": w["anchor"], "pull": w["pull"], "sent": {kind: w[kind] for kind in context.base}}


def _finish(w: Bundle, context: Context) -> tuple[Bundle, Bundle | None, dict[str, Any]]:
    """Return the model to send, and the device's own to keep unless it diverged."""
    if "sent" not in w:  # it never came to its own model
        return w, None, {}
    _pull(w, context)
    own = {kind: {name: t.detach().cpu() for name, t in w[kind].items()} for kind in w["sent"]}
    return w["sent"], (own if is_finite(own) else None), {}


PARTS = {"ditto": Ditto}
