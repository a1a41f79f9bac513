"""FedMD: devices with models of their own agree on the logits of public samples.

Source: Li and Wang, "FedMD: Heterogenous Federated Learning via Model Distillation" (2019), algorithm 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch.nn.functional as F
from torch import Tensor

from edgesim.core.limits import Count, CountOrZero
from edgesim.core.local_sgd import LocalSGD
from edgesim.core.method import Aggregate, ServerContext
from edgesim.core.rng import Key
from edgesim.core.task import TENSORS, Task
from edgesim.core.update import ModelState, Update
from edgesim.core.view import View
from edgesim.methods.distillation.base import ANSWERS, PublicAnswers, said_by


@dataclass(frozen=True, kw_only=True)
class FedMD(PublicAnswers):
    """Each device moves its logits on public samples towards the mean of all devices, then trains on its own data.

    In the first round devices train on the labels of the `public_samples`, for `public_epochs`, and then on their own
    data, for `first_epochs`. In every later round they train for `digest_epochs` towards the mean logits of the last
    round ("digest", mean absolute error), train on their own data as the scenario says ("revisit"), and send their
    logits. There is no global model: runs report the first model, which does not change. `evaluation.personal` gives
    the accuracy of the devices. After the first round it is their accuracy before they learn from each other.

    The distance and the averaged logits are those of the published code. The code takes all steps by Adam with a rate
    of 0.001, the digest in batches of 128 or 256 and the revisit in batches of 5 or 10. Here the scenario's `training`
    has one optimiser, rate and batch for both.

    Differs: the paper trains the first models until they converge, and draws some of the public samples anew in every
    round. Here the number of epochs is given, and all samples are used. A device that is first asked in a later round
    starts with the mean logits instead of labels, and takes the scenario's epochs.

    Family: distillation. Formula: `loss_k = mean_x |z_k(x) - mean_j z_j(x)| on public samples x, then CE on own data`.
    Paper: arXiv 1910.03581.
    """

    public_samples: Count = 500  # training samples with labels that all devices have
    """Chosen here. The paper has 5,000 of another data set in each round. Drawn at random, apart from all devices' own
    data.
    """
    digest_epochs: CountOrZero = 1  # passes over the public samples towards the mean logits
    """Published code. With 0 devices train alone, so that a study can measure the benefit of the exchange. They still
    exchange logits, at full cost.
    """
    public_epochs: CountOrZero = 5  # passes over the labels of the public samples in the first round
    """Chosen here: the paper trains until convergence. With 0 no labels are needed."""
    first_epochs: Count | None = None  # passes over a device's own data in the first round; unset: `local_epochs`
    """Chosen here: the paper trains until convergence, its code for at most 25 epochs."""
    teachers: Literal["all", "own"] = "all"  # a network learns from all devices, or from devices with the same network
    """As in the paper: all devices. With `"own"` only devices with the same network learn from each other, so that a
    study can measure the benefit of the other networks.
    """
    no_server_optimizer: ClassVar[str] = "has no global model"

    def begin_sgd(self, training: LocalSGD) -> LocalSGD | None:
        """Return the steps on the labels of public samples."""
        return training.for_epochs(self.public_epochs) if self.public_epochs else None

    def digest_sgd(self, training: LocalSGD) -> LocalSGD | None:
        """Return the steps towards the mean logits."""
        return training.for_epochs(self.digest_epochs) if self.digest_epochs else None

    def task_of(self, view: View, told: str) -> Task:
        """Return the task of devices that receive the tensor of this name; "": none, in their first round."""
        task = super().task_of(view, told)
        if told or self.first_epochs is None:
            return task
        return replace(task, local_sgd=tuple(sgd.for_epochs(self.first_epochs) for sgd in task.local_sgd))

    def answer(self, logits: Tensor) -> Tensor:
        """Return the logits."""
        return logits

    def distance(self, logits: Tensor, told: Tensor) -> Tensor:
        """Return the mean absolute error of logits."""
        return F.l1_loss(logits, told)

    def told_to(self, device: int, state: Any, view: View) -> str:
        """Return the name of the mean logits of all devices, or of the device's own network."""
        networks = view.setting.networks
        told = super().told_to(device, state, view)
        return told if networks is None or self.teachers == "all" or not told else f"{told}_{networks.of(device)}"

    def combine(
        self, state: Any, global_model: ModelState, updates: Sequence[Update], server: ServerContext, key: Key
    ) -> Aggregate:
        """Return the old model with the mean logits of all devices, and of each network if `teachers` is "own"."""
        told = {ANSWERS: said_by(updates).mean(dim=0)}
        for name in server.setting.network_names if self.teachers == "own" else ():
            own = [update for update in updates if update.task.submodel.network == name]
            before = global_model.get(TENSORS, {}).get(f"{ANSWERS}_{name}", told[ANSWERS])
            told[f"{ANSWERS}_{name}"] = said_by(own).mean(dim=0) if own else before
        return Aggregate(state, {**global_model, TENSORS: told})


PLUGINS = {"fedmd": FedMD}
