"""FedRep: devices share a representation; each trains its own head on it first, and then the representation.

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
    """FedAvg over the body of the model. A device trains its own head with the body at rest, then the body alone.

    `personal_layers`, the head: how many of the last layers, or names of layers or of blocks of them. `head_epochs`
    train it, `training.local_epochs` if unset, and `body_epochs` the body. Layers at rest run forward, with running
    statistics as they are; what they save is not charged. A device that stops early misses epochs of the body first. It
    is tested with the newest body and its own head; the global model's own accuracy says little, as its head stays as
    it was drawn. Keys of the average: see FedAvg.

    The published code lets batch normalisation of layers at rest go by the batch. It also trains heads for ten epochs
    more before the last test, which a run here does not.
    """

    personal_layers: SomeLayers = 1
    """Collins et al.: the last layer of every network of theirs."""
    head_epochs: Count | None = None
    """The scenario's `training.local_epochs`, which gives all methods as many. Collins et al. take ten."""
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
        """Return SGD on the cross-entropy, of the device's own head and then of the body received."""
        frozen: list[Any] = [work.submodel.frozen for work in task.passes if work.submodel]
        return with_own_layers(*(LocalPhase(frozen=layers) for layers in frozen))


def _phase(name: str, frozen: frozenset[str], share: float) -> Pass:
    """Return the work of a phase that has so large a share of all epochs."""
    return Pass(times=share, updates=share, submodel=Submodel(name, frozen=frozen))


PLUGINS = {"fedrep": FedRep}
