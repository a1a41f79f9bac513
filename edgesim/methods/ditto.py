"""Ditto: beside the model that it trains for everybody, each device has one of its own, held near the global one.

Source: Li et al., "Ditto: Fair and Robust Federated Learning Through Personalization" (ICML 2021), algorithm 1; as a
baseline of DA-DPFL, whose published code pulls in a step of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from edgesim.core.limits import Count, NonNegativeFactor
from edgesim.core.method import Finished, LocalPhase, LocalRule, LocalState, Needs
from edgesim.core.rng import Key
from edgesim.core.task import Pass, Task
from edgesim.core.update import ModelState
from edgesim.core.view import Setting, View
from edgesim.learning.aggregate.mean import is_finite
from edgesim.learning.codec.transfer import on_cpu
from edgesim.learning.train.context import Context
from edgesim.learning.train.rules import Anchored, pulled_to_anchor
from edgesim.methods.fedavg import FedAvg

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

    Until its first turn a device is tested with the global model, as it has no other.
    """

    lam: NonNegativeFactor = 0.5
    """DA-DPFL's comparison; Li et al. sweep 0.05 to 2 and also choose among 0.1, 1 and 2 on validation data, which is
    a matter of a study.
    """
    proximal: Literal["joint", "split"] = "joint"
    """Algorithm 1 pulls in the gradient; the code of DA-DPFL in a step after that of the optimiser, `"split"`."""
    global_epochs: Count | None = None
    """The scenario's `training.local_epochs`. DA-DPFL gives the global model 3 of its 5 epochs, its code 2."""
    personal_epochs: Count | None = None
    """The scenario's `training.local_epochs`. DA-DPFL gives personal models 2 of its 5 epochs, its code 3."""
    first_personal: Literal["initial", "received"] = "initial"
    """Personal models start where the run does. A device that is first asked late may rather start from the model it
    is sent, `"received"`.
    """
    needs: ClassVar[Needs] = Needs(device_state="computed")

    def init(self, setting: Setting, key: Key) -> Any:
        """Return the empty state. Raises ConfigError if one model is to train for epochs and the other for steps."""
        if (self.global_epochs is None) != (self.personal_epochs is None):
            setting.training.check_epochs("one of its two models trains for method.global_epochs or personal_epochs")
        return super().init(setting, key)

    def task(self, view: View) -> Task:
        """Return the training of the global model and then of the device's own."""
        usual = view.setting.training.local_sgd(view.round)
        shared, personal = (usual.for_epochs(n) if n else usual for n in (self.global_epochs, self.personal_epochs))
        length = [sgd.epochs or sgd.steps for sgd in (shared, personal)]
        times = _PULL_FLOPS * length[1] / sum(length)  # of all steps only these are pulled
        pull = (Pass("param_step", times=times),) if self.lam else ()
        return Task(local_sgd=(shared, personal), passes=(Pass(), *pull))

    def local(self, task: Task) -> LocalRule:
        """Return SGD on the cross-entropy for the global model, and the same with the pull for the device's own."""
        if self.proximal == "joint":
            personal = LocalPhase(adjust_gradients=pulled_to_anchor(self.lam), on_enter=_to_own_model)
        else:
            personal = LocalPhase(after_step=self._pull, on_enter=_to_own_model)
        return LocalRule((LocalPhase(), personal), on_start=self._start, on_finish=_finish)

    def personal_model(self, global_model: ModelState, device_state: ModelState | None) -> ModelState:
        """Return a device's own model, the global one if it has none yet."""
        return global_model if device_state is None else device_state

    def _start(self, context: Context) -> LocalState:
        """Return the model to send, and beside it the device's own and what that is held to."""
        received = context.global_model
        first = context.first if self.first_personal == "initial" else received
        own = context.copy(first if context.device_state is None else context.device_state)
        return LocalState(context.copy(received), _Own(context.copy({"params": received["params"]})["params"], own))

    def _pull(self, local: LocalState, context: Context) -> None:
        """Pull the device's own model to the anchor, as far as a step of SGD would."""
        share = self.lam * context.task.local_sgd[-1].lr
        for name in context.trained:
            local.weights["params"][name].lerp_(local.scratch.anchor[name], share)


@dataclass(slots=True)
class _Own(Anchored):
    """Scratch of a job: what the device's own model is held to, that model, and once it is trained the one to send."""

    model: ModelState
    sent: ModelState | None = None


def _to_own_model(local: LocalState, context: Context) -> LocalState:
    """Return the device's own model to train, and aside the one that it sends."""
    return LocalState(local.scratch.model, replace(local.scratch, sent=local.weights))


def _finish(local: LocalState, context: Context) -> Finished:
    """Return the model to send, and the device's own to keep unless it diverged."""
    sent = local.scratch.sent
    if sent is None:  # it never came to its own model
        return Finished(local.weights)
    own = on_cpu({kind: local.weights[kind] for kind in sent})
    return Finished(sent, own if is_finite(own) else None)


PLUGINS = {"ditto": Ditto}
