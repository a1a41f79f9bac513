"""MOON: devices pull their representations towards the global model's and away from those of their own last model.

Source: Li, He and Song, "Model-Contrastive Federated Learning" (CVPR 2021), algorithm 1 and its authors' published
code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch.nn.functional as F
from torch import Tensor

from edgesim.contracts import Bundle, LocalPhase, LocalRule, Needs, Order, Pass, Plan, Task, View
from edgesim.learning.context import Batch, Context
from edgesim.learning.merge import is_finite
from edgesim.learning.rules import PLAIN_SGD
from edgesim.methods.fedavg import FedAvg
from edgesim.numbers import NonNegativeNumber, PositiveNumber
from edgesim.rng import Key


@dataclass(frozen=True, kw_only=True)
class Moon(FedAvg):
    """FedAvg with the loss cross-entropy + `mu` mean_x -log(e^(c_g / T) / (e^(c_g / T) + e^(c_p / T))).

    c_g and c_p are cosines of what enters the last layer of the model in training with what enters it in the model
    received and in the one that the device last delivered; T is `temperature`. The paper's projection head belongs to
    the model: `model = { name = "lenet5", projection = 256 }`; without one these are the features before the
    classifier. `first_previous`: what stands for the last model of a device that never delivered one, the "initial"
    model of the run or the one "received", with which the term is a constant. Keys of the average: see FedAvg.
    """

    mu: NonNegativeNumber = 1.0
    temperature: PositiveNumber = 0.5
    first_previous: Literal["initial", "received"] = "initial"
    needs: ClassVar[Needs] = Needs(keep="delivered")

    def plan(self, state: Any, view: View, key: Key) -> Plan:
        """Ask the selected devices to train the whole model, beside which two others run forward."""
        looks = (Pass("forward", times=2.0),) if self.mu else ()
        task = Task(stretches=(view.setting.training.stretch(view.round),), passes=(Pass(), *looks))
        return Plan(tuple(Order(device, task) for device in view.choose(key).tolist()))

    def local(self, task: Task) -> LocalRule:
        """Return SGD on the cross-entropy with the contrastive term, if there is one."""
        if not self.mu:
            return PLAIN_SGD
        return LocalRule((LocalPhase(loss=self._loss),), start=self._start, finish=keep_delivered)

    def _start(self, base: Bundle, own: Bundle | None, context: Context) -> Bundle:
        """Return the model to train, and as kinds of their own, which are not sent, the two to compare it with."""
        first = context.first if self.first_previous == "initial" else base
        return {**context.copy(base), **compared(base, first if own is None else own, context)}

    def _loss(self, w: Bundle, batch: Batch, context: Context) -> Tensor:
        logits, z = context.features(w, batch.x)
        _, z_global = context.tested_features({"params": w["global"], "buffers": {}}, batch.x)
        _, z_previous = context.tested_features({"params": w["previous"], "buffers": {}}, batch.x)
        return F.cross_entropy(logits, batch.y) + self.mu * contrast(z, z_global, z_previous, self.temperature)


def contrast(z: Tensor, z_global: Tensor, z_previous: Tensor, temperature: float) -> Tensor:
    """Return the mean of the contrastive term over a batch of representations, each of shape (batch, features)."""
    towards, away = F.cosine_similarity(z, z_global), F.cosine_similarity(z, z_previous)
    return F.softplus((away - towards) / temperature).mean()  # the same as the logarithm of the fraction


def compared(received: Bundle, previous: Bundle, context: Context) -> Bundle:
    """Return copies of the two models to compare with, each as one kind: "global" and "previous"."""
    return {"global": _in_one(context.copy(received)), "previous": _in_one(context.copy(previous))}


def _in_one(bundle: Bundle) -> dict[str, Tensor]:
    """Return parameters and buffers by name, as one kind."""
    return {**bundle["params"], **bundle["buffers"]}


def keep_delivered(w: Bundle, context: Context) -> tuple[Bundle, Bundle | None, dict[str, Any]]:
    """Return the model to send, which is also what the device keeps, unless it diverged."""
    kept = {kind: {name: t.detach().cpu() for name, t in w[kind].items()} for kind in ("params", "buffers")}
    return w, (kept if is_finite(kept) else None), {}


PARTS = {"moon": Moon}
