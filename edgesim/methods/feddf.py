"""FedDF: the server averages the models of each network, and then trains these on the answers of all devices' models.

Source: Lin, Kong, Stich and Jaggi, "Ensemble Distillation for Robust Model Fusion in Federated Learning" (2020),
algorithm 1, and algorithm 3 for several networks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from edgesim.core.limits import Count, PositiveFactor
from edgesim.core.local_sgd import LocalSGD
from edgesim.core.method import Aggregate, Needs, ServerContext, ServerSet
from edgesim.core.networks import joined, part_of
from edgesim.core.rng import Key
from edgesim.core.update import ModelState, Update
from edgesim.learning.aggregate.mean import is_finite
from edgesim.learning.server_networks import TrainedWeights
from edgesim.methods.fedavg import FedAvg


@dataclass(frozen=True, kw_only=True)
class FedDF(FedAvg):
    """FedAvg for devices with different networks: the server distils the joint answers of all models into each mean.

    The server has `public_samples` training samples that no device trains on, and does not use their labels. The
    answer of the models of a round for a sample is the softmax of the mean of their logits, with equal weights. The
    mean of the models takes `steps` of Adam with batches of `batch`, from the rate `lr` down along half a cosine, to
    reduce its KL divergence from these answers. Where devices have several networks, each is averaged over its own
    devices and learns from the models of all. A network without an update continues from the model before. A model that
    is not finite after its steps is left at the mean, with the metric `not_finite`.

    Differs: the paper's server stops after a thousand steps without a better accuracy on a validation set. Here the
    number of steps is given. Its Adam, rate, cosine and batches are from memory, and were not checked against the text.
    Only the server needs the samples, so messages are as in FedAvg. Keys of the average: see FedAvg.

    Family: distillation. Formula: `w <- w - lr grad KL(softmax(mean_k z_k(x)), p_w(x)) on public samples x, from the
    mean of the models`. Paper: arXiv 2006.07242.
    """

    public_samples: Count = 1000
    """Our choice; the paper takes another data set without labels. Drawn at random from the training samples."""
    steps: Count = 100  # steps of Adam for each round and network
    """Our choice; the paper's server takes up to ten thousand, and stops early."""
    batch: Count = 128  # samples of a step
    """As in the paper."""
    lr: PositiveFactor = 1e-3  # learning rate of the first step; falls along a cosine to 0
    """As in the paper."""
    teachers: Literal["all", "own"] = "all"  # a network learns from all devices, or only from devices that have it
    """Algorithm 3: the models of all networks teach each of them. With `"own"` a network learns only from the devices
    that have it, so that a study can measure the benefit of the other networks.
    """
    needs: ClassVar[Needs] = Needs(networks=True, feedback=True)  # timing alone does not know which models arrived

    @property
    def needs_classes(self) -> str:
        """The reason why labels must be classes, a verb phrase for the error message."""
        return "distils the probabilities of classes"

    @property
    def server_set(self) -> ServerSet:
        """Samples without labels, for the server only."""
        return ServerSet(self.public_samples, "train", "random", reserved=True, option="public_samples")

    def combine(
        self, state: Any, global_model: ModelState, updates: Sequence[Update], server: ServerContext, key: Key
    ) -> Aggregate:
        """Return the distilled models of all networks."""
        merged = super().combine(state, global_model, updates, server, key)
        assert merged.model is not None
        tools, inputs = server.tools, server.tools.inputs()
        said: list[tuple[str, Tensor]] = []  # network of an update; its logits, (samples, classes)
        for update in updates:
            own = update.task.submodel.network
            said.append((own, tools.networks[own].outputs(part_of(update.body, own), inputs)))
        sgd = LocalSGD(batch=self.batch, lr=self.lr, steps=self.steps, optimizer="adam")
        models, broken = dict[str, ModelState](), 0

        def rate(step: int) -> float:  # factor of the learning rate, from 1 towards 0
            return 0.5 * (1.0 + math.cos(math.pi * step / self.steps))

        for place, (name, network) in enumerate(tools.networks.items()):
            mean = models[name] = part_of(merged.model, name)
            heard = [logits for network_of, logits in said if self.teachers == "all" or network_of == name]
            if not heard:
                continue
            loss = distance_to(F.softmax(torch.stack(heard).mean(dim=0), dim=1), inputs)
            new = tools.fit(network, mean, sgd, loss, len(inputs), key.at(place), rate=rate)
            if is_finite(new):
                models[name] = new
            else:
                broken += 1
        return Aggregate(state, joined(models), metrics={"not_finite": float(broken)} if broken else {})


def distance_to(teacher: Tensor, inputs: Tensor) -> Callable[[TrainedWeights, Tensor], Tensor]:
    """Return the mean KL divergence of a model's answers on a batch from a teacher's; `teacher`: probabilities."""

    def loss(model: TrainedWeights, places: Tensor) -> Tensor:
        told = F.log_softmax(model(inputs[places]), dim=1)
        return F.kl_div(told, teacher[places].to(told.device), reduction="batchmean")

    return loss


PLUGINS = {"feddf": FedDF}
