"""Per-FedAvg: devices train a model from which one step on data of their own leads to a good one.

Source: Fallah, Mokhtari and Ozdaglar, "Personalized Federated Learning with Theoretical Guarantees: A Model-Agnostic
Meta-Learning Approach" (NeurIPS 2020), algorithm 1 and section 5, with its first-order and Hessian-free variants.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from edgesim.core.limits import NonNegativeFactor, PositiveFactor
from edgesim.core.method import Finished, LocalPhase, LocalRule, LocalState, Needs
from edgesim.core.rng import JobStream, Key
from edgesim.core.task import Pass, Plan, Task
from edgesim.core.update import ModelState
from edgesim.core.view import View
from edgesim.learning.aggregate.mean import is_finite
from edgesim.learning.codec.transfer import on_cpu
from edgesim.learning.models.seeding import seeded
from edgesim.learning.submodel.masks import dense_gradient, one_batch
from edgesim.learning.train.context import Batch, Context
from edgesim.learning.train.loop import batch_order
from edgesim.methods.fedavg import FedAvg

_ADAPTING_FLOPS = 2.0  # a parameter and step: the gradient times alpha, and a difference
_CURVING_FLOPS = 7.0  # two more of these, a difference of gradients, times a number, taken from the gradient

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class PerFedAvg(FedAvg):
    """FedAvg whose devices step along the gradient of the loss that a step of adaptation leads to.

    From w: phi = w - `alpha` g(w; D), u = g(phi; D'), and SGD with the rate of `training` steps along u
    (`variant` "fo"), or along u - alpha (g(w + `delta` u; D") - g(w - delta u; D")) / (2 delta), which stands for
    (I - alpha H) u ("hf"). D' are the batches of the scenario's local training, D and D" others of the same sizes,
    drawn in orders of their own. At the end of its turn a device adapts the model that it sends with one batch more,
    and keeps the result, which `evaluation.personal` tests; until its first turn it is tested with the global model.
    Running statistics are those of phi. With alpha = 0 it is FedAvg, bit for bit, but for that batch. Keys of the
    average: see FedAvg.

    The paper adapts the newest global model when it is tested; here a device's model is as old as its last turn.
    """

    alpha: NonNegativeFactor = 0.01
    """Section 5, for MNIST and CIFAR-10."""
    variant: Literal["fo", "hf"] = "fo"
    """Section 5 has both: Per-FedAvg (FO) drops the Hessian, (HF) takes it from a difference of two gradients."""
    delta: PositiveFactor = 0.001
    """The paper leaves it open: small enough for the difference, large enough for float32."""
    needs: ClassVar[Needs] = Needs(device_state="computed")

    def plan(self, state: Any, view: View, key: Key) -> Plan:
        """Ask the selected devices to train; those whose last batch is as large share a task."""
        setting, ids = view.setting, view.choose(key)
        sizes = np.minimum(setting.training.batch, setting.samples[ids])
        if setting.cost_profile.drop_single:
            sizes = np.where(sizes < 2, 0, sizes)
        return Plan.by_kind(ids.tolist(), sizes.tolist(), partial(self._task, super().task(view)))

    def local(self, task: Task) -> LocalRule:
        """Return SGD along the gradient of the loss after adaptation."""
        return LocalRule((LocalPhase(gradient=self._gradient),), on_start=_start, on_finish=self._finish)

    def personal_model(self, global_model: ModelState, device_state: ModelState | None) -> ModelState:
        """Return the model that a device adapted at its last turn, the global one if it had none."""
        return global_model if device_state is None else device_state

    def _task(self, usual: Task, last: int) -> Task:
        """Return the task of devices that adapt what they send with so many samples."""
        curved = self.variant == "hf"
        passes = (
            Pass(times=4.0 if curved else 2.0),
            Pass("param_step", times=_ADAPTING_FLOPS + curved * _CURVING_FLOPS),
            *((Pass(samples=last),) if last else ()),
        )
        return replace(usual, passes=passes, config={"last": float(last)})

    def _gradient(self, local: LocalState, batch: Batch, context: Context) -> list[Tensor]:
        """Return the gradient of a step; w stays as it is."""
        scratch, w = local.scratch, local.weights
        params = {name: t.detach() for name, t in w["params"].items()}
        with seeded(context.key.at(JobStream.DROPOUT, scratch.steps)):  # so that alpha = 0 leaves the other draws alone
            g = _gradient(params, w, next(scratch.inner), context)
        phi = _moved(params, g, -self.alpha)
        u = dense_gradient({"params": phi, "buffers": w["buffers"]}, batch, context, moving=True)
        if self.variant == "hf":
            ahead, behind = self._slopes(params, u, local, context)
            share = self.alpha / (2 * self.delta)
            u = {name: t.sub(ahead[name] - behind[name], alpha=share) for name, t in u.items()}
        scratch.steps += 1
        return [u[name] for name in context.trained]

    def _slopes(
        self, params: Tensors, u: Tensors, local: LocalState, context: Context
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the gradients of one function on either side of w along u."""
        found, batch = [], next(local.scratch.curving)
        for way in (self.delta, -self.delta):
            with seeded(context.key.at(JobStream.DROPOUT, local.scratch.steps, 1)):
                found.append(_gradient(_moved(params, u, way), local.weights, batch, context))
        return found[0], found[1]

    def _finish(self, local: LocalState, context: Context) -> Finished:
        """Return w to send, and what it is adapted to, to keep unless it diverged."""
        w, last = local.weights, int(context.task.config["last"])
        if not last:
            return Finished(w)
        params = {name: t.detach() for name, t in w["params"].items()}
        g = _gradient(params, w, one_batch(context, last), context)
        kept = on_cpu({"params": _moved(params, g, -self.alpha), "buffers": w["buffers"]})
        return Finished(w, kept if is_finite(kept) else None)


@dataclass(slots=True)
class _Batches:
    """Scratch of a job: the batches to adapt with, those for the Hessian, and the number of steps so far."""

    inner: Iterator[Batch]
    curving: Iterator[Batch]
    steps: int = 0


def _start(context: Context) -> LocalState:
    """Return the model to train, and the other batches of its steps."""
    return LocalState(context.copy(context.global_model), _Batches(_batches(context, 0), _batches(context, 1)))


def _batches(context: Context, stream: int) -> Iterator[Batch]:
    """Yield batches as large as those of the steps, in an order of their own."""
    key, (sgd,) = context.key.at(JobStream.OTHER_BATCHES, stream), context.task.local_sgd
    augmenting = torch.Generator().manual_seed(key.at(1).word())
    for positions in batch_order(key.at(0), len(context.shard), sgd, context.drop_single):
        yield context.batch(positions, augmenting)


def _gradient(params: Tensors, w: ModelState, batch: Batch, context: Context) -> dict[str, Tensor]:
    """Return the gradient at other parameters, which moves no running statistics."""
    return dense_gradient({"params": params, "buffers": w["buffers"]}, batch, context)


def _moved(start: Tensors, direction: Tensors, length: float) -> dict[str, Tensor]:
    return {name: t.add(direction[name], alpha=length) for name, t in start.items()}


PLUGINS = {"per_fedavg": PerFedAvg}
