"""LG-FedAvg: each device learns a representation of its own, and all share what makes predictions of it.

Source: Liang et al., "Think Locally, Act Globally: Federated Learning with Local and Global Representations"
(arXiv 2001.01523), algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass

from edgesim.core.price_list import CostProfile
from edgesim.methods.personal_layers.base import PersonalLayers, SomeLayers, chosen_layers


@dataclass(frozen=True, kw_only=True)
class LGFedAvg(PersonalLayers):
    """FedAvg over the last layers; each device trains them together with a representation of its own.

    `shared_layers`: how many of the last layers travel, or names of layers or of blocks of them, such as ["fc"]; all of
    them are FedAvg, bit for bit. A device is tested with its own representation and the newest shared layers; the
    global model's own accuracy says little, as its first layers stay as they were drawn. Keys of the average: see
    FedAvg.

    Only the supervised loss is here: the paper's options of a self-supervised representation and of an adversary that
    hides attributes are not, nor its devices from outside, which ask an ensemble of all local models. Its experiments
    begin with some rounds of FedAvg, for which a run here has no place.
    """

    shared_layers: SomeLayers = 1
    """Liang et al. choose by network how many layers are local; the classifier is the least that can be shared."""

    def own_layers(self, cost_profile: CostProfile) -> frozenset[str]:
        """Return the layers of the local representation."""
        shared = chosen_layers(self.shared_layers, cost_profile, "shared_layers")
        return frozenset(cost_profile.layer_names) - shared


PLUGINS = {"lg_fedavg": LGFedAvg}
