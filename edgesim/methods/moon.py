"""MOON: devices pull their representations towards the global model's and away from their own last model's.

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
from edgesim.core.model_state import ModelState, flattened, model_in
from edgesim.core.task import Pass, Task
from edgesim.core.view import View
from edgesim.learning.aggregate.mean import finite_or_none
from edgesim.learning.train.context import Batch, Context
from edgesim.learning.train.rules import PLAIN_SGD
from edgesim.methods.fedavg import FedAvg


@dataclass(frozen=True, kw_only=True)
class Moon(FedAvg):
    """FedAvg with a contrastive loss that keeps the features of each device near those of the global model.

    The loss is cross-entropy + `mu` mean_x -log(e^(c_g / T) / (e^(c_g / T) + e^(c_p / T))).
    c_g and c_p are cosine similarities of the features of the model in training. c_g compares them with the features of
    the received model, c_p with the features of the model that the device last delivered. T is `temperature`. Features
    are the inputs of the last layer.
    `first_previous`: the model that stands for the last model of a device that never delivered one. It is the "initial"
    model of the run, or the "received" model, with which the term is a constant. Keys of the average: see FedAvg.

    The projection head of MOON is a key of the model: `model = { name = "lenet5", projection = 256 }`, for chains and
    ResNets. Without it `moon` compares the features before the classifier.

    Family: correction of local steps. Formula: `loss = CE - mu mean_x log(e^(c_g / T) / (e^(c_g / T) + e^(c_p / T)))`.
    Paper: arXiv 2103.16257.
    """

    mu: NonNegativeFactor = 1.0
    """Li et al. tune it over 0.1, 1, 5, 10 and take 5 for CIFAR-10, 1 for CIFAR-100 and Tiny ImageNet. The FedDHAD
    paper does not give its value.
    """
    temperature: PositiveFactor = 0.5
    """Li et al."""
    first_previous: Literal["initial", "received"] = "initial"
    """The paper does not specify this for a device without a last model. The published code gives it a random network
    of its own. Here it is the first model of the run, which all devices can draw from the seed. With `"received"` the
    term has no gradient.
    """
    needs: ClassVar[Needs] = Needs(device_state="delivered")

    def task(self, view: View) -> Task:
        """Return the training of the whole model, with the forward passes of two other models."""
        looks = (Pass("forward", times=2.0),) if self.mu else ()
        return replace(super().task(view), passes=(Pass(), *looks))

    def local(self, task: Task) -> LocalRule:
        """Return SGD on the cross-entropy with the contrastive term, if there is one."""
        if not self.mu:
            return PLAIN_SGD
        return LocalRule((LocalPhase(loss=self._loss),), on_start=self._start, on_finish=keep_delivered)

    def _start(self, context: Context) -> LocalState:
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
    return F.softplus((away - towards) / temperature).mean()  # equal to minus the logarithm of the fraction


@dataclass(slots=True)
class Compared:
    """Scratch of a job: two models to compare with, each as parameters and buffers by name."""

    received: Mapping[str, Tensor]
    previous: Mapping[str, Tensor]


def compared(received: ModelState, previous: ModelState, context: Context) -> Compared:
    """Return copies of the received model and of the device's last model."""
    return Compared(*(flattened(context.copy(each), "") for each in (received, previous)))


def keep_delivered(local: LocalState, context: Context) -> Finished:
    """Return the model to send. The device keeps it too, unless it diverged."""
    return Finished(local.weights, finite_or_none(model_in(local.weights)))


PLUGINS = {"moon": Moon}
