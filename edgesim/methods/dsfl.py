"""DS-FL: devices and server learn soft labels of public samples, the sharpened mean of the devices' answers.

Source: Itahara, Nishio, Koda, Morikura and Yamamoto, "Distillation-Based Semi-Supervised Federated Learning for
Communication-Efficient Collaborative Training with Non-IID Private Data" (2020), entropy reduction aggregation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch.nn.functional as F
from torch import Tensor

from edgesim.core.limits import Count, PositiveFactor
from edgesim.core.local_sgd import LocalSGD
from edgesim.core.method import Aggregate, Needs, ServerContext
from edgesim.core.networks import joined, part_of
from edgesim.core.rng import Key
from edgesim.core.task import TENSORS
from edgesim.core.update import ModelState, Update
from edgesim.learning.aggregate.mean import is_finite
from edgesim.learning.server_networks import TrainedWeights
from edgesim.methods.distillation.base import ANSWERS, PublicAnswers, said_by


@dataclass(frozen=True, kw_only=True)
class DSFL(PublicAnswers):
    """For devices with different networks: they exchange class probabilities on public samples instead of models.

    The server takes the mean p of the devices' probabilities, with equal weights. With `aggregation` "era" it takes
    softmax(p / `temperature`), which has less entropy where devices disagree because their data differ; "sa" is the
    mean itself. In the next round devices take `digest_epochs` over the `public_samples` with these soft labels
    (cross-entropy). Then they train on their own data with the scenario's settings, and send their new probabilities.
    The server trains a global model of each network on the same labels, by steps like the devices'. The true labels of
    the public samples are not used.

    Differs: the paper's rounds draw some of the public samples, here all are used in each. Devices learn from a round
    at the beginning of the next; their messages are the same. A global model that is not finite after its steps is
    discarded for the one before, with the metric `not_finite`. The temperature is from memory, and was not checked
    against the text.

    Family: distillation. Formula: `y(x) = softmax(mean_k p_k(x) / T); loss = CE(y(x), p(x)) on public samples x`.
    Paper: arXiv 2008.06180.
    """

    public_samples: Count = 500  # training samples, used without labels, that all devices have
    """Our choice; the paper has 1,000 of 20,000 in each round. Drawn at random, and not part of any device's data."""
    digest_epochs: Count = 1  # passes over the public samples, of a device in a job and of the server in a round
    """Our choice."""
    aggregation: Literal["era", "sa"] = "era"  # entropy reduction, or the simple mean
    """Both are in the paper: entropy reduction aggregation, and the simple mean."""
    temperature: PositiveFactor = 0.1  # temperature of "era"; the lower, the sharper the labels
    """As in the paper."""
    needs: ClassVar[Needs] = Needs(device_state="delivered", networks=True, feedback=True)  # of the server's steps

    def digest_sgd(self, training: LocalSGD) -> LocalSGD:
        """Return the steps towards the soft labels."""
        return training.for_epochs(self.digest_epochs)

    def answer(self, logits: Tensor) -> Tensor:
        """Return class probabilities."""
        return F.softmax(logits, dim=1)

    def distance(self, logits: Tensor, told: Tensor) -> Tensor:
        """Return the mean cross-entropy with soft labels."""
        return F.cross_entropy(logits, told)

    def combine(
        self, state: Any, global_model: ModelState, updates: Sequence[Update], server: ServerContext, key: Key
    ) -> Aggregate:
        """Return global models trained on the soft labels, with these labels."""
        labels, tools = self.labels_of(said_by(updates)), server.tools
        inputs, training = tools.inputs(), server.setting.training.local_sgd(server.round)
        sgd, models, broken = training.for_epochs(self.digest_epochs), dict[str, ModelState](), 0

        def loss(model: TrainedWeights, places: Tensor) -> Tensor:
            logits = model(inputs[places])
            return self.distance(logits, labels[places].to(logits.device))

        for place, (name, network) in enumerate(tools.networks.items()):
            old = {kind: tensors for kind, tensors in part_of(global_model, name).items() if kind != TENSORS}
            new = tools.fit(network, old, sgd, loss, len(inputs), key.at(place))
            broken += not is_finite(new)
            models[name] = new if is_finite(new) else old
        metrics = {"not_finite": float(broken)} if broken else {}
        return Aggregate(state, {**joined(models), TENSORS: {ANSWERS: labels}}, metrics=metrics)

    def labels_of(self, said: Tensor) -> Tensor:
        """Return soft labels, shape (samples, classes), of the answers `said`, shape (devices, samples, classes)."""
        mean = said.mean(dim=0)
        return F.softmax(mean / self.temperature, dim=1) if self.aggregation == "era" else mean


PLUGINS = {"dsfl": DSFL}
