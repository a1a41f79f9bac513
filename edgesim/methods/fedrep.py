"""FedRep: devices share the body of the model. Each device trains its own head first, and then the body.

Source: Collins et al., "Exploiting Shared Representations for Personalized Federated Learning" (ICML 2021),
algorithm 1, with the settings of section 5.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from edgesim.core.limits import Count
from edgesim.core.method import LocalPhase, LocalRule
from edgesim.core.price_list import CostProfile
from edgesim.core.rng import Key
from edgesim.core.task import Pass, Submodel, Task
from edgesim.core.view import Setting, View
from edgesim.methods.personal_layers.base import (
    PersonalLayers,
    SomeLayers,
    check_shared,
    chosen_layers,
    with_own_layers,
)


@dataclass(frozen=True, kw_only=True)
class FedRep(PersonalLayers):
    """FedAvg over the body of the model. A device trains its own head with a frozen body, then the body alone.

    `personal_layers`, the head: the number of last layers, or names of layers or of blocks of layers. The head trains
    for `head_epochs`, `training.local_epochs` if unset, and the body for `body_epochs`. Frozen layers run forward with
    fixed running statistics, and the work that freezing saves is not charged. A device that stops early misses epochs
    of the body first. It is tested with the newest body and its own head. The accuracy of the global model says little,
    because its head stays at its first values. Keys of the average: see FedAvg.

    In the published code, batch normalisation of frozen layers uses the statistics of the batch. The code also trains
    heads for ten more epochs before the last test, which a run here does not.

    Family: personal models. Formula: `body <- sum_k n_k body_k / sum_k n_k; device k trains its head, then its body`.
    Paper: arXiv 2102.07078.
    """

    personal_layers: SomeLayers = 1
    """Collins et al.: the last layer of each of their networks."""
    head_epochs: Count | None = None
    """The scenario's `training.local_epochs`, the same for all methods. Collins et al. take ten."""
    body_epochs: Count = 1
    """Collins et al. take one for CIFAR and five for FEMNIST and Sent140."""

    def init(self, setting: Setting, key: Key) -> Any:
        """Return the empty state. Raises ConfigError if the layers do not fit the model, or work goes by steps."""
        setting.training.check_epochs("it trains head and body for epochs each")
        return super().init(setting, key)

    def own_layers(self, cost_profile: CostProfile) -> frozenset[str]:
        """Return the layers of the head."""
        chosen = chosen_layers(self.personal_layers, cost_profile, "personal_layers")
        return check_shared(chosen, cost_profile, "personal_layers")

    def task(self, view: View) -> Task:
        """Return the training of the head and then of the body, each without the gradients of the other."""
        usual = super().task(view)
        (sgd,), shared = usual.local_sgd, usual.up.layers
        assert shared is not None
        head = sgd.for_epochs(self.head_epochs or sgd.epochs)
        body = sgd.for_epochs(self.body_epochs)
        both = head.epochs + body.epochs
        own = self.own_layers(view.setting.cost_profile)
        passes = (_phase("head", shared, head.epochs / both), _phase("body", own, body.epochs / both))
        return replace(usual, local_sgd=(head, body), passes=passes)

    def local(self, task: Task) -> LocalRule:
        """Return SGD on the cross-entropy, of the device's own head and then of the received body."""
        frozen: list[Any] = [work.submodel.frozen for work in task.passes if work.submodel]
        return with_own_layers(*(LocalPhase(frozen=layers) for layers in frozen))


def _phase(name: str, frozen: frozenset[str], share: float) -> Pass:
    """Return the work of a phase with a share of all epochs."""
    return Pass(times=share, updates=share, submodel=Submodel(name, frozen=frozen))


PLUGINS = {"fedrep": FedRep}
