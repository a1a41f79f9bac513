"""FedMD in short: devices keep models of their own and agree by their logits on public samples.

Source: Li and Wang, "FedMD: Heterogenous Federated Learning via Model Distillation" (2019), in one loss for both data.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
import torch.nn.functional as F

from edgesim.core.limits import Count
from edgesim.core.method import Aggregate, Finished, LocalPhase, LocalRule, LocalState, Method, Needs, ServerSet
from edgesim.core.task import Pass, Payload, TensorSpec
from edgesim.learning.train.rules import objective_loss


@dataclass(frozen=True, kw_only=True)
class FedMD(Method):
    """Devices train on their data and towards the mean logits of all on public samples, and send their own logits."""

    public_samples: Count = 20
    needs: ClassVar[Needs] = Needs(device_state="delivered")

    @property
    def server_set(self):
        return ServerSet(self.public_samples, "train", reserved=True, public=True, option="public_samples")

    def task(self, view):
        logits = TensorSpec("logits", (self.public_samples, view.setting.cost_profile.classes))
        message, train = Payload(collections=frozenset(), tensors=(logits,)), super().task(view)
        told = view.version > 0  # before the first round nobody has said anything
        times = 1 + told * self.public_samples / train.local_sgd[0].batch  # the public samples are in every batch
        work = (Pass(times=times), Pass("forward", samples=self.public_samples))
        name, down = ("agree", message) if told else ("train", None)
        return replace(train, name=name, down=down, up=message, passes=work)

    def local(self, task):
        phase = LocalPhase(loss=self.loss if task.name == "agree" else None)
        return LocalRule((phase,), on_start=self.own, on_finish=self.told)

    def own(self, context):
        return LocalState(context.copy(context.device_state or context.first))

    def loss(self, local, batch, context):
        told, mean = context.forward(local.weights, context.public.x), context.global_model["tensors"]["logits"]
        return objective_loss(local.weights, batch, context) + F.mse_loss(told, mean)

    def told(self, local, context):
        with torch.no_grad(), context.as_in_a_test():
            logits = context.forward(local.weights, context.public.x)
        return Finished({"tensors": {"logits": logits}}, local.weights)

    def combine(self, state, model, updates, server, key):
        mean = torch.stack([update.body["tensors"]["logits"] for update in updates]).mean(dim=0)
        return Aggregate(state, {**model, "tensors": {"logits": mean}})

    def personal_model(self, model, device_state):
        return device_state or model
