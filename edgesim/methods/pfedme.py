"""pFedMe: each device trains a personal model near the global one, and the global model follows the personal models.

Source: T. Dinh, Tran and Nguyen, "Personalized Federated Learning with Moreau Envelopes" (NeurIPS 2020), algorithm 1
and section 5.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from edgesim.core.limits import Count, PositiveFactor
from edgesim.core.method import Aggregate, Finished, LocalPhase, LocalRule, LocalState, Needs, ServerContext
from edgesim.core.model_state import moves, stepped
from edgesim.core.rng import Key
from edgesim.core.task import Pass, Task
from edgesim.core.update import ModelState, Update
from edgesim.core.view import Setting, View
from edgesim.learning.aggregate.mean import finite_or_none
from edgesim.learning.submodel.masks import dense_gradient
from edgesim.learning.train.context import Batch, Context
from edgesim.methods.fedavg import FedAvg
from edgesim.methods.scaffold import check_plain

_PULL_FLOPS = 3.0  # FLOPs a parameter: a difference, times lambda, added to the gradient
_ENVELOPE_FLOPS = 2.0  # FLOPs a parameter of the envelope's gradient: a difference, times lambda


@dataclass(frozen=True, kw_only=True)
class PFedMe(FedAvg):
    """Each device learns a personal model that may differ from the global model, at a cost for the distance.

    Personal models theta solve min f(theta) + `lam` / 2 |theta - w|^2 (Moreau envelopes), and the global model w steps
    along the gradients of the solutions. For each batch of the scenario's local training a device takes `inner_steps`
    steps theta <- theta - lr (g(theta) + lam (theta - w)) on it, with lr of `training`, and then one step
    w <- w - `eta` lam (w - theta). theta starts from the received w, and continues in the next batch. Devices send w.
    The server moves `beta` of the way from the old model to the mean of these. theta stays on the device, where
    `evaluation.personal` tests it. A device that never had a turn is tested with the global model. Running statistics
    are those of theta. With one inner step and eta lam = 1 it is FedAvg, up to rounding. Keys of the average: see
    FedAvg.

    Participating devices are averaged by data size, where the paper has equal sizes. Momentum, weight decay and
    clipping of `training` are refused, as neither kind of step has them.

    Family: personal models. Formula: `theta minimises f(theta) + lam / 2 |theta - w|^2; w <- w - eta lam (w - theta) in
    local steps`. Paper: arXiv 2006.08848.
    """

    lam: PositiveFactor = 15.0
    """Section 5.2 takes 15 for strongly convex problems and 15 or 30 for others. Larger values keep theta nearer to w.
    """
    inner_steps: Count = 5  # K of the paper
    """Section 5.2: more than five steps bring little."""
    eta: PositiveFactor = 0.005
    """One of the settings of section 5. With lam = 15 a step moves w 7.5 % of the way to theta."""
    beta: PositiveFactor = 1.0
    """1 is the plain mean. Section 5.2 also has 2 and 4, which go beyond the mean and converge sooner."""
    needs: ClassVar[Needs] = Needs(device_state="computed")
    uses_kept_model: ClassVar[bool] = True

    def init(self, setting: Setting, key: Key) -> Any:
        """Return the empty state. Raises ConfigError unless training is plain SGD."""
        check_plain(setting.training, "its steps towards personal models are those of plain SGD")
        return super().init(setting, key)

    def task(self, view: View) -> Task:
        """Return the steps of w, each with `inner_steps` steps of theta."""
        usual = view.setting.training.local_sgd(view.round)
        steps = float(self.inner_steps)
        work = Pass(times=steps, updates=steps + 1), Pass("param_step", times=_PULL_FLOPS * steps + _ENVELOPE_FLOPS)
        return Task(local_sgd=(replace(usual, lr=self.eta),), passes=work, config={"inner_lr": usual.lr})

    def local(self, task: Task) -> LocalRule:
        """Return SGD on the Moreau envelope, whose gradient is lam (w - theta)."""
        return LocalRule((LocalPhase(gradient=self._gradient),), on_start=_start, on_finish=_finish)

    def combine(
        self, state: Any, global_model: ModelState, updates: Sequence[Update], server: ServerContext, key: Key
    ) -> Aggregate:
        """Return the old model moved `beta` of the way to the mean, with the mean running statistics."""
        mean = super().combine(state, global_model, updates, server, key)
        if self.beta == 1 or mean.model is None:
            return mean
        old = global_model["params"]
        params = stepped(old, moves(mean.model["params"], old), self.beta)
        return mean._replace(model={**mean.model, "params": params})

    def _gradient(self, local: LocalState, batch: Batch, context: Context) -> list[Tensor]:
        """Take the steps of theta on a batch, and return lam (w - theta)."""
        w, scratch, lr = local.weights, local.scratch, context.task.config["inner_lr"]
        for _ in range(self.inner_steps):
            g = dense_gradient({"params": scratch.theta, "buffers": w["buffers"]}, batch, context, moving=True)
            with torch.no_grad():
                for name, slope in g.items():
                    theta = scratch.theta[name]
                    theta.sub_(slope.add(theta - w["params"][name], alpha=self.lam), alpha=lr)
        scratch.moved = True
        return [self.lam * (w["params"][name].detach() - scratch.theta[name]) for name in context.trained]


@dataclass(slots=True)
class _Personal:
    """Scratch of a job: the parameters of the personal model, and whether it took a step."""

    theta: Mapping[str, Tensor]
    moved: bool = False


def _start(context: Context) -> LocalState:
    received = context.global_model
    return LocalState(context.copy(received), _Personal(context.copy(received["params"])))


def _finish(local: LocalState, context: Context) -> Finished:
    """Return w to send, and theta to keep unless it took no step or diverged."""
    if not local.scratch.moved:
        return Finished(local.weights)
    return Finished(local.weights, finite_or_none({**local.weights, "params": local.scratch.theta}))


PLUGINS = {"pfedme": PFedMe}
