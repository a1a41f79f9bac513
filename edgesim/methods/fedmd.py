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
    """Each device moves its logits on public samples towards the mean of all, then trains on its own data.

    In the first round devices learn the labels of the `public_samples`, for `public_epochs`, and then their own data,
    for `first_epochs`. In every later one they take `digest_epochs` towards the mean logits of the last round
    ("digest", mean absolute error), train on their own data as the scenario says ("revisit"), and send their logits.
    There is no global model: the one that runs report stays the first, so `evaluation.personal` tells how devices do;
    after the first round it is how they do before they hear each other.

    The distance, and what is averaged, are those of the published code. It takes all steps by Adam with a rate of
    0.001, the digest in batches of 128 or 256 and the revisit in batches of 5 or 10; here the scenario's `training` has
    one optimiser, rate and batch for both.

    Differs: the paper trains the first models until they converge, and draws some of the public samples anew in every
    round; here their epochs are given, and all samples are used. A device that is first asked later begins with what
    the others say instead of labels, and takes the scenario's epochs.
    """

    public_samples: Count = 500  # training samples with labels that all devices have
    """Ours; the paper's have 5,000 of another data set in each round. Drawn at random, and no device's own."""
    digest_epochs: CountOrZero = 1  # passes over the public samples towards the mean logits
    """Published code. 0: none, so that devices train alone, and a study can tell what hearing the others brings.
    They still exchange logits, and pay for it.
    """
    public_epochs: CountOrZero = 5  # passes over the labels of the public samples in the first round
    """Ours: the paper trains until convergence. 0: none, so that no labels are needed."""
    first_epochs: Count | None = None  # passes over a device's own data in the first round; unset: `local_epochs`
    """Ours: the paper trains until convergence, its code for 25 at most."""
    teachers: Literal["all", "own"] = "all"  # whom a network learns from: all devices, or those that have it
    """The paper's: all devices. With `"own"` only devices of the same network hear each other, so that a study can tell
    what the others bring.
    """
    no_server_optimizer: ClassVar[str] = "has no global model"

    def begin_sgd(self, training: LocalSGD) -> LocalSGD | None:
        """Return the steps on the labels of public samples."""
        return training.for_epochs(self.public_epochs) if self.public_epochs else None

    def digest_sgd(self, training: LocalSGD) -> LocalSGD | None:
        """Return the steps towards what all say."""
        return training.for_epochs(self.digest_epochs) if self.digest_epochs else None

    def task_of(self, view: View, told: str) -> Task:
        """Return the task of devices that are told the tensor of this name; "": nothing, so that it is their first."""
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
        """Return the mean of all, or of the device's own network."""
        networks = view.setting.networks
        told = super().told_to(device, state, view)
        return told if networks is None or self.teachers == "all" or not told else f"{told}_{networks.of(device)}"

    def combine(
        self, state: Any, global_model: ModelState, updates: Sequence[Update], server: ServerContext, key: Key
    ) -> Aggregate:
        """Return the model that was, with the mean logits: of all, and of each network if these are apart."""
        told = {ANSWERS: said_by(updates).mean(dim=0)}
        for name in server.setting.network_names if self.teachers == "own" else ():
            own = [update for update in updates if update.task.submodel.network == name]
            before = global_model.get(TENSORS, {}).get(f"{ANSWERS}_{name}", told[ANSWERS])
            told[f"{ANSWERS}_{name}"] = said_by(own).mean(dim=0) if own else before
        return Aggregate(state, {**global_model, TENSORS: told})


PLUGINS = {"fedmd": FedMD}
