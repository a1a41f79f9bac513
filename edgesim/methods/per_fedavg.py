"""Per-FedAvg: devices train a global model that one step on a device's own data turns into a good personal model.

Source: Fallah, Mokhtari and Ozdaglar, "Personalized Federated Learning with Theoretical Guarantees: A Model-Agnostic
Meta-Learning Approach" (NeurIPS 2020), algorithm 1 and section 5, with its first-order and Hessian-free variants.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from edgesim.core.limits import NonNegativeFactor, PositiveFactor
from edgesim.core.method import Finished, LocalPhase, LocalRule, LocalState, Needs
from edgesim.core.model_state import ModelState, mapped, plus
from edgesim.core.rng import JobStream, Key
from edgesim.core.task import Pass, Plan, Task
from edgesim.core.view import View
from edgesim.learning.aggregate.mean import finite_or_none
from edgesim.learning.models.seeding import seeded
from edgesim.learning.submodel.masks import dense_gradient, one_batch
from edgesim.learning.train.context import Batch, Context
from edgesim.learning.train.loop import batch_order
from edgesim.methods.fedavg import FedAvg

_ADAPTING_FLOPS = 2.0  # FLOPs a parameter and step: the gradient times alpha, and a difference
_CURVING_FLOPS = 7.0  # FLOPs: two more moves, a difference of gradients, times a number, subtracted from the gradient

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class PerFedAvg(FedAvg):
    """FedAvg that trains for the loss after one step of adaptation, so that each device gets a personal model.

    From w: phi = w - `alpha` g(w; D), u = g(phi; D'). SGD with the learning rate of `training` steps along u (`variant`
    "fo"), or along u - alpha (g(w + `delta` u; D") - g(w - delta u; D")) / (2 delta), an estimate of (I - alpha H) u
    ("hf"). D' are the batches of the scenario's local training. D and D" are other batches of the same sizes, drawn in
    separate orders. At the end of its turn a device adapts the model that it sends with one more batch. It keeps the
    result, which `evaluation.personal` tests. Until its first turn a device is tested with the global model. Running
    statistics are those of phi. With alpha = 0 it is FedAvg, bit for bit, except for the last batch. Keys of the
    average: see FedAvg.

    The paper adapts the newest global model at test time. Here a device's model is as old as its last turn.

    Family: personal models. Formula: `phi = w - alpha g(w; D); w <- w - lr (I - alpha H) g(phi; D') in local steps`.
    Paper: arXiv 2002.07948.
    """

    alpha: NonNegativeFactor = 0.01
    """Section 5, for MNIST and CIFAR-10."""
    variant: Literal["fo", "hf"] = "fo"
    """Section 5 has both: Per-FedAvg (FO) drops the Hessian, (HF) estimates it by a difference of two gradients."""
    delta: PositiveFactor = 0.001
    """The paper does not specify this. Chosen here: small enough for the difference, large enough for float32."""
    needs: ClassVar[Needs] = Needs(device_state="computed")
    uses_kept_model: ClassVar[bool] = True

    def plan(self, state: Any, view: View, key: Key) -> Plan:
        """Ask the selected devices to train. Devices with last batches of the same size share a task."""
        setting, ids = view.setting, view.choose(key)
        sizes = np.minimum(setting.training.batch, setting.samples[ids])
        if setting.cost_profile.drop_single:
            sizes = np.where(sizes < 2, 0, sizes)
        usual, curved = self.task(view), self.variant == "hf"

        def task_of(last: int) -> Task:  # a device adapts the model that it sends with this number of samples
            passes = (
                Pass(times=4.0 if curved else 2.0),
                Pass("param_step", times=_ADAPTING_FLOPS + curved * _CURVING_FLOPS),
                *((Pass(samples=last),) if last else ()),
            )
            return replace(usual, passes=passes, config={"last": float(last)})

        return Plan.by_kind(ids.tolist(), sizes.tolist(), task_of)

    def local(self, task: Task) -> LocalRule:
        """Return SGD along the gradient of the loss after adaptation."""
        return LocalRule((LocalPhase(gradient=self._gradient),), on_start=_start, on_finish=self._finish)

    def _gradient(self, local: LocalState, batch: Batch, context: Context) -> list[Tensor]:
        """Return the gradient of a step. w does not change."""
        scratch, w = local.scratch, local.weights
        params = mapped(Tensor.detach, w["params"])
        with seeded(context.key.at(JobStream.DROPOUT, scratch.steps)):  # so that other draws stay the same at alpha = 0
            g = _gradient(params, w, next(scratch.inner), context)
        u = dense_gradient(
            {"params": plus(params, g, -self.alpha), "buffers": w["buffers"]}, batch, context, moving=True
        )
        if self.variant == "hf":
            # the gradients of one function on either side of w along u
            slopes, curving = [], next(scratch.curving)
            for way in (self.delta, -self.delta):
                with seeded(context.key.at(JobStream.DROPOUT, scratch.steps, 1)):
                    slopes.append(_gradient(plus(params, u, way), w, curving, context))
            ahead, behind = slopes
            share = self.alpha / (2 * self.delta)
            u = mapped(lambda t, a, b: t.sub(a - b, alpha=share), u, ahead, behind)
        scratch.steps += 1
        return [u[name] for name in context.trained]

    def _finish(self, local: LocalState, context: Context) -> Finished:
        """Return w to send, and the adapted model to keep unless it diverged."""
        w, last = local.weights, int(context.task.config["last"])
        if not last:
            return Finished(w)
        params = mapped(Tensor.detach, w["params"])
        g = _gradient(params, w, one_batch(context, last), context)
        return Finished(w, finite_or_none({**w, "params": plus(params, g, -self.alpha)}))


@dataclass(slots=True)
class _Batches:
    """Scratch of a job: the batches to adapt with, those for the Hessian, and the number of steps so far."""

    inner: Iterator[Batch]
    curving: Iterator[Batch]
    steps: int = 0


def _start(context: Context) -> LocalState:
    return LocalState(context.copy(context.global_model), _Batches(_batches(context, 0), _batches(context, 1)))


def _batches(context: Context, stream: int) -> Iterator[Batch]:
    """Yield batches with the sizes of the steps' batches, in a separate order."""
    key, (sgd,) = context.key.at(JobStream.OTHER_BATCHES, stream), context.task.local_sgd
    augmenting = torch.Generator().manual_seed(key.at(1).word())
    for positions in batch_order(key.at(0), len(context.shard), sgd, context.drop_single):
        yield context.batch(positions, augmenting)


def _gradient(params: Tensors, w: ModelState, batch: Batch, context: Context) -> dict[str, Tensor]:
    """Return the gradient at `params`, without changes of running statistics."""
    return dense_gradient({"params": params, "buffers": w["buffers"]}, batch, context)


PLUGINS = {"per_fedavg": PerFedAvg}
