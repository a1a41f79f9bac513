"""APFL: each device mixes the global model with one of its own, in a share that it may learn.

Source: Deng, Kamani and Mahdavi, "Adaptive Personalized Federated Learning" (arXiv 2003.13461), algorithm 1 and
section 4.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from edgesim.core.limits import Share
from edgesim.core.method import Finished, LocalPhase, LocalRule, LocalState, Needs
from edgesim.core.model_state import ModelState, lerp, mapped, model_in
from edgesim.core.rng import JobStream, Key
from edgesim.core.task import Pass, Task
from edgesim.core.view import Setting, View
from edgesim.learning.aggregate.mean import finite_or_none
from edgesim.learning.models.seeding import seeded
from edgesim.learning.submodel.masks import dense_gradient
from edgesim.learning.train.context import Batch, Context
from edgesim.learning.train.loop import gradients
from edgesim.learning.train.rules import objective_loss
from edgesim.methods.fedavg import FedAvg
from edgesim.methods.scaffold import check_plain

_MIXING_FLOPS = 4.0  # per parameter and step: a difference, times alpha, added to w; and the gradient times alpha
_ALPHA_FLOPS = 3.0  # per parameter and job: a difference, times the gradient, added up


@dataclass(frozen=True, kw_only=True)
class APFL(FedAvg):
    """FedAvg with personal models: each device uses a mixture of the global model and a model of its own.

    A device trains w for all and v for itself. In each step, from the same batch, w <- w - lr g(w) and
    v <- v - lr alpha g(alpha v + (1 - alpha) w), with w before the step. v stays on the device and starts from the
    first model of the run. `alpha` is the share of v. If `adaptive`, `alpha` is the initial share of each device, which
    moves once a job, before the first step: alpha <- alpha - lr <v - w, g(alpha v + (1 - alpha) w)>, kept within 0 and
    1. A device uses the mixture of its v with the newest global model and its own running statistics, which
    `evaluation.personal` tests. Until its first turn it uses the global model. The global model is FedAvg's, bit for
    bit. Keys of the average: see FedAvg.

    Momentum, weight decay and clipping of `training` are refused, because the steps of v have none.

    Family: personal models. Formula: `v <- v - lr alpha g(alpha v + (1 - alpha) w); w as in FedAvg`.
    """

    alpha: Share = 0.5
    """Section 5 compares 0.25, 0.5 and 0.75. With 0 devices use the global model."""
    adaptive: bool = False
    """Fixed in algorithm 1; section 4.2 learns it by the step above. Here it takes one such step a round, which costs
    no pass.
    """
    needs: ClassVar[Needs] = Needs(device_state="computed")

    def init(self, setting: Setting, key: Key) -> Any:
        """Return the empty state. Raises ConfigError unless training is plain SGD."""
        check_plain(setting.training, "the steps of its personal models are those of plain SGD")
        return super().init(setting, key)

    def task(self, view: View) -> Task:
        """Return the training of both models."""
        work = [Pass(times=2.0, updates=2.0), Pass("param_step", times=_MIXING_FLOPS)]
        if self.adaptive:
            work.append(Pass("flops", times=_ALPHA_FLOPS * view.setting.cost_profile.params))
        return replace(super().task(view), passes=tuple(work))

    def local(self, task: Task) -> LocalRule:
        """Return SGD on the cross-entropy for w, in which v takes a step with each step of w."""

        def start(context: Context) -> LocalState:
            kept = context.device_state
            own = context.copy(context.first if kept is None else model_in(kept))
            share = self.alpha if kept is None else float(kept["mixing"]["alpha"])
            return LocalState(context.copy(context.global_model), _Own(own, share))

        def finish(local: LocalState, context: Context) -> Finished:
            scratch = local.scratch
            if not scratch.steps:  # v did not move
                return Finished(local.weights)
            share = {"alpha": torch.tensor(scratch.share, dtype=torch.float64)}
            return Finished(local.weights, finite_or_none({**scratch.own, "mixing": share}))

        return LocalRule((LocalPhase(gradient=self._gradient),), on_start=start, on_finish=finish)

    def personal_model(self, global_model: ModelState, device_state: ModelState | None) -> ModelState:
        """Return the mixture of the global model with the device's own, the global one if it has none yet."""
        if device_state is None:
            return global_model
        share, own = float(device_state["mixing"]["alpha"]), device_state["params"]
        return {"params": lerp(global_model["params"], own, share), "buffers": device_state["buffers"]}

    def _gradient(self, local: LocalState, batch: Batch, context: Context) -> list[Tensor]:
        """Let v take its step on a batch; return the gradient of w."""
        scratch, lr = local.scratch, context.task.local_sgd[0].lr
        w = mapped(Tensor.detach, local.weights["params"])
        v = scratch.own["params"]
        with seeded(context.key.at(JobStream.DROPOUT, scratch.steps)):  # so that w trains as without v
            mixture = {"params": lerp(w, v, scratch.share), "buffers": scratch.own["buffers"]}
            g = dense_gradient(mixture, batch, context, moving=True)
        share = scratch.share
        if self.adaptive and not scratch.steps:
            slope = sum(float(((v[name] - w[name]) * t).double().sum()) for name, t in g.items())
            scratch.share = min(1.0, max(0.0, share - lr * slope))
        with torch.no_grad():
            for name, t in g.items():
                v[name].sub_(t, alpha=lr * share)
        scratch.steps += 1
        return gradients(objective_loss(local.weights, batch, context), context.bound)


@dataclass(slots=True)
class _Own:
    """Scratch of a job: v with the running statistics of the mixture, its share, and the number of steps so far."""

    own: ModelState
    share: float
    steps: int = 0


PLUGINS = {"apfl": APFL}
