"""DS-FL: devices and server learn soft labels of public samples, made of what devices say and made surer.

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
    """Devices send the class probabilities that they see in public samples; all learn what these say together.

    The server takes their mean p, each device counting once, and with `aggregation` "era" softmax(p / `temperature`),
    which has less entropy where devices disagree as their data differ; "sa" is the mean itself. In the next round
    devices take `digest_epochs` over the `public_samples` with these soft labels (cross-entropy), then train on their
    own data as the scenario says, and send what they say then. The server learns the same labels, into a global model
    of each network, by steps like the devices'. Labels of the public samples are never looked at.

    Differs: the paper's rounds draw some of the public samples, here all are used in each. Devices learn from a round
    at the beginning of the next; what they send is the same. A global model that is not finite after its steps stays as
    it was, with the metric `not_finite`. The temperature is from memory, and was not checked against the text.
    """

    public_samples: Count = 500  # training samples, used without labels, that all devices have
    """Ours; the paper's have 1,000 of 20,000 in each round. Drawn at random, and no device's own."""
    digest_epochs: Count = 1  # passes over the public samples in a job, and of the server in a round
    """Ours."""
    aggregation: Literal["era", "sa"] = "era"  # entropy reduction, or the simple mean
    """The paper's two: entropy reduction aggregation, and the simple mean."""
    temperature: PositiveFactor = 0.1  # of "era"; the lower, the surer the labels
    """The paper's."""
    needs: ClassVar[Needs] = Needs(device_state="delivered", networks=True, feedback=True)  # of the server's steps

    def digest_sgd(self, training: LocalSGD) -> LocalSGD:
        """Return the steps towards what all say."""
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
        """Return global models that have learned the labels, and these."""
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
        """Return soft labels, shape (samples, classes), of what devices said, shape (devices, samples, classes)."""
        mean = said.mean(dim=0)
        return F.softmax(mean / self.temperature, dim=1) if self.aggregation == "era" else mean


PLUGINS = {"dsfl": DSFL}
