"""LG-FedAvg: each device learns a representation of its own, and all share the layers that predict from it.

Source: Liang et al., "Think Locally, Act Globally: Federated Learning with Local and Global Representations"
(arXiv 2001.01523), algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass

from edgesim.core.price_list import CostProfile
from edgesim.methods.personal_layers.base import PersonalLayers, SomeLayers, chosen_layers


@dataclass(frozen=True, kw_only=True)
class LGFedAvg(PersonalLayers):
    """FedAvg over the last layers. Each device trains them together with a representation of its own.

    `shared_layers`: the number of last layers that are sent, or names of layers or of blocks of layers, such as ["fc"].
    Sharing all layers is FedAvg, bit for bit. A device is tested with its own representation and the newest shared
    layers. The accuracy of the global model says little, because its first layers stay at their first values. Keys of
    the average: see FedAvg.

    Only the supervised loss is implemented. The paper's self-supervised representation, its adversary that hides
    attributes and its new devices, which ask an ensemble of all local models, are left out. Its experiments start with
    some rounds of FedAvg, which a run here cannot do.

    Family: personal models. Formula: `head <- sum_k n_k head_k / sum_k n_k; first layers stay on device k`.
    """

    shared_layers: SomeLayers = 1
    """Liang et al. choose the number of local layers for each network. The classifier is the smallest shared part."""

    def own_layers(self, cost_profile: CostProfile) -> frozenset[str]:
        """Return the layers of the local representation."""
        shared = chosen_layers(self.shared_layers, cost_profile, "shared_layers")
        return frozenset(cost_profile.layer_names) - shared


PLUGINS = {"lg_fedavg": LGFedAvg}
