"""Ditto: each device trains the shared model and a model of its own, which is held near the global one.

Source: Li et al., "Ditto: Fair and Robust Federated Learning Through Personalization" (ICML 2021), algorithm 1; as a
baseline of DA-DPFL, whose published code pulls in a separate step.
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
from edgesim.learning.aggregate.mean import finite_or_none
from edgesim.learning.train.context import Context
from edgesim.learning.train.rules import Anchored, pulled_to_anchor
from edgesim.methods.fedavg import FedAvg

_PULL_FLOPS = 2.0  # per parameter and personal step


@dataclass(frozen=True, kw_only=True)
class Ditto(FedAvg):
    """FedAvg with personal models: after its FedAvg job a device trains its own model, held near the global one.

    The personal model v takes the steps v <- v - lr (g(v) + `lam` (v - w)), with w the received model. v stays on the
    device for its next turn. `evaluation.personal` tests v; until its first turn a device is tested with the global
    model, as it has no other. `proximal`: the pull is part of the gradient ("joint"), or a step v <- v - lr lam (v - w)
    after the optimiser's step ("split"). `global_epochs` train the sent model and `personal_epochs` v, each
    `training.local_epochs` if unset. `first_personal`: v starts from the "initial" model of the run, or from the first
    model that the device "received". A v that diverged is discarded, and the device keeps the one before. A device that
    stops early misses the last of its personal steps first. Keys of the average: see FedAvg.

    Family: personal models. Formula: `v <- v - lr (g(v) + lam (v - w)); w as in FedAvg`. Paper: arXiv 2012.04221.
    """

    lam: NonNegativeFactor = 0.5
    """DA-DPFL's comparison. Li et al. sweep 0.05 to 2 and also choose among 0.1, 1 and 2 on validation data, for which
    a study serves here.
    """
    proximal: Literal["joint", "split"] = "joint"
    """Algorithm 1 pulls in the gradient. The code of DA-DPFL pulls in a step after the optimiser's step, `"split"`."""
    global_epochs: Count | None = None
    """The scenario's `training.local_epochs`. DA-DPFL gives the global model 3 of its 5 epochs, its code 2."""
    personal_epochs: Count | None = None
    """The scenario's `training.local_epochs`. DA-DPFL gives personal models 2 of its 5 epochs, its code 3."""
    first_personal: Literal["initial", "received"] = "initial"
    """Personal models start from the initial model of the run. With `"received"` a device that is first selected late
    starts from the model that it receives.
    """
    needs: ClassVar[Needs] = Needs(device_state="computed")
    uses_kept_model: ClassVar[bool] = True

    def init(self, setting: Setting, key: Key) -> Any:
        """Return the empty state. Raises ConfigError if one model trains for epochs and the other for steps."""
        if (self.global_epochs is None) != (self.personal_epochs is None):
            setting.training.check_epochs("one of its two models trains for method.global_epochs or personal_epochs")
        return super().init(setting, key)

    def task(self, view: View) -> Task:
        """Return the training of the global model and then of the device's own."""
        usual = view.setting.training.local_sgd(view.round)
        shared, personal = (usual.for_epochs(n) if n else usual for n in (self.global_epochs, self.personal_epochs))
        length = [sgd.epochs or sgd.steps for sgd in (shared, personal)]
        times = _PULL_FLOPS * length[1] / sum(length)  # only the personal steps are pulled
        pull = (Pass("param_step", times=times),) if self.lam else ()
        return Task(local_sgd=(shared, personal), passes=(Pass(), *pull))

    def local(self, task: Task) -> LocalRule:
        """Return SGD on the cross-entropy for the global model, and the same with the pull for the device's own."""

        def start(context: Context) -> LocalState:
            received = context.global_model
            first = context.first if self.first_personal == "initial" else received
            own = context.copy(first if context.device_state is None else context.device_state)
            return LocalState(context.copy(received), _Own(context.copy(received["params"]), own))

        def finish(local: LocalState, context: Context) -> Finished:
            sent = local.scratch.sent
            if sent is None:  # the job ended before it reached its own model
                return Finished(local.weights)
            return Finished(sent, finite_or_none({kind: local.weights[kind] for kind in sent}))

        if self.proximal == "joint":
            personal = LocalPhase(adjust_gradients=pulled_to_anchor(self.lam), on_enter=_to_own_model)
        else:

            def pull(local: LocalState, context: Context) -> None:
                share = self.lam * context.task.local_sgd[-1].lr
                for name in context.trained:
                    local.weights["params"][name].lerp_(local.scratch.anchor[name], share)

            personal = LocalPhase(after_step=pull, on_enter=_to_own_model)
        return LocalRule((LocalPhase(), personal), on_start=start, on_finish=finish)


@dataclass(slots=True)
class _Own(Anchored):
    """Scratch of a job: the anchor of the device's own model, this model, and, once trained, the model to send."""

    model: ModelState
    sent: ModelState | None = None


def _to_own_model(local: LocalState, context: Context) -> LocalState:
    """Return the device's own model to train, and put the model to send aside."""
    return LocalState(local.scratch.model, replace(local.scratch, sent=local.weights))


PLUGINS = {"ditto": Ditto}
