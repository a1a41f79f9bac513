"""MOON: devices pull their representations towards the global model's and away from those of their own last model.

Source: Li, He and Song, "Model-Contrastive Federated Learning" (CVPR 2021), algorithm 1 and its authors' published
code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch.nn.functional as F
from torch import Tensor

from edgesim.core.limits import NonNegativeFactor, PositiveFactor
from edgesim.core.method import Finished, LocalPhase, LocalRule, LocalState, Needs
from edgesim.core.task import Pass, Task
from edgesim.core.update import ModelState
from edgesim.core.view import View
from edgesim.learning.aggregate.mean import is_finite
from edgesim.learning.codec.transfer import on_cpu
from edgesim.learning.train.context import Batch, Context
from edgesim.learning.train.rules import PLAIN_SGD
from edgesim.methods.fedavg import FedAvg


@dataclass(frozen=True, kw_only=True)
class Moon(FedAvg):
    """FedAvg with the loss cross-entropy + `mu` mean_x -log(e^(c_g / T) / (e^(c_g / T) + e^(c_p / T))).

    c_g and c_p are cosines of what enters the last layer of the model in training with what enters it in the model
    received and in the one that the device last delivered; T is `temperature`. The paper's projection head belongs to
    the model: `model = { name = "lenet5", projection = 256 }`; without one these are the features before the
    classifier. `first_previous`: what stands for the last model of a device that never delivered one, the "initial"
    model of the run or the one "received", with which the term is a constant. Keys of the average: see FedAvg.

    The projection head of MOON is a key of the model: `model = { name = "lenet5", projection = 256 }`, for chains and
    ResNets; without it `moon` compares what enters the network's last layer.
    """

    mu: NonNegativeFactor = 1.0
    """Li et al. tune it over 0.1, 1, 5, 10 and take 5 for CIFAR-10, 1 for CIFAR-100 and Tiny ImageNet; FedDHAD does
    not give its own.
    """
    temperature: PositiveFactor = 0.5
    """Li et al."""
    first_previous: Literal["initial", "received"] = "initial"
    """Silent on a device that has no last model. The published code lets it have a random network of its own; the
    first model of the run is one that all devices can draw from the seed. With `"received"` the term has no slope.
    """
    needs: ClassVar[Needs] = Needs(device_state="delivered")

    def task(self, view: View) -> Task:
        """Return the training of the whole model, beside which two others run forward."""
        looks = (Pass("forward", times=2.0),) if self.mu else ()
        return replace(super().task(view), passes=(Pass(), *looks))

    def local(self, task: Task) -> LocalRule:
        """Return SGD on the cross-entropy with the contrastive term, if there is one."""
        if not self.mu:
            return PLAIN_SGD
        return LocalRule((LocalPhase(loss=self._loss),), on_start=self._start, on_finish=keep_delivered)

    def _start(self, context: Context) -> LocalState:
        """Return the model to train, and the two to compare it with."""
        received = context.global_model
        first = context.first if self.first_previous == "initial" else received
        previous = first if context.device_state is None else context.device_state
        return LocalState(context.copy(received), compared(received, previous, context))

    def _loss(self, local: LocalState, batch: Batch, context: Context) -> Tensor:
        """Return the cross-entropy plus the contrastive term."""
        logits, z = context.features(local.weights, batch.x)
        _, z_global = context.tested_features({"params": local.scratch.received, "buffers": {}}, batch.x)
        _, z_previous = context.tested_features({"params": local.scratch.previous, "buffers": {}}, batch.x)
        return context.objective.loss(logits, batch.y) + self.mu * contrast(z, z_global, z_previous, self.temperature)


def contrast(z: Tensor, z_global: Tensor, z_previous: Tensor, temperature: float) -> Tensor:
    """Return the mean of the contrastive term over a batch of representations, each of shape (batch, features)."""
    towards, away = F.cosine_similarity(z, z_global), F.cosine_similarity(z, z_previous)
    return F.softplus((away - towards) / temperature).mean()  # the same as the logarithm of the fraction


@dataclass(slots=True)
class Compared:
    """Scratch of a job: two models to compare with, each as parameters and buffers by name."""

    received: Mapping[str, Tensor]
    previous: Mapping[str, Tensor]


def compared(received: ModelState, previous: ModelState, context: Context) -> Compared:
    """Return copies of the model received and of the device's last one."""
    return Compared(_in_one(context.copy(received)), _in_one(context.copy(previous)))


def _in_one(model_state: ModelState) -> dict[str, Tensor]:
    """Return parameters and buffers by name."""
    return {**model_state["params"], **model_state["buffers"]}


def keep_delivered(local: LocalState, context: Context) -> Finished:
    """Return the model to send, which is also what the device keeps, unless it diverged."""
    w = local.weights
    kept = on_cpu({kind: w[kind] for kind in ("params", "buffers")})
    return Finished(w, kept if is_finite(kept) else None)


PLUGINS = {"moon": Moon}
