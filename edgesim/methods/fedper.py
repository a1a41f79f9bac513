"""FedPer: all devices share the base of the model, and each device keeps the last layers to itself.

Source: Arivazhagan et al., "Federated Learning with Personalization Layers" (arXiv 1912.00818), algorithms 1 and 2.
"""

from __future__ import annotations

from dataclasses import dataclass

from edgesim.core.price_list import CostProfile
from edgesim.methods.personal_layers.base import Layers, PersonalLayers, check_shared, chosen_layers


@dataclass(frozen=True, kw_only=True)
class FedPer(PersonalLayers):
    """FedAvg over the base of the model. Each device trains the base with its own last layers, which it never sends.

    `personal_layers`: the number of last layers, or names of layers or of blocks of layers, such as ["layer4", "fc"].
    0 is FedAvg, bit for bit. A device is tested with the newest base and its own layers. The accuracy of the global
    model says little, because its personal layers stay at their first values. Keys of the average: see FedAvg.

    Family: personal models. Formula: `base <- sum_k n_k base_k / sum_k n_k; last layers stay on device k`.
    """

    personal_layers: Layers = 1  # K_P of the paper
    """Arivazhagan et al. try 1 to 4 and count the classifier as the first. For ResNet-34 they count blocks of two
    convolutions, which are named here, and for MobileNet layers. One is the smallest number of personal layers.
    """

    def own_layers(self, cost_profile: CostProfile) -> frozenset[str]:
        """Return the personal layers."""
        chosen = chosen_layers(self.personal_layers, cost_profile, "personal_layers")
        return check_shared(chosen, cost_profile, "personal_layers")


PLUGINS = {"fedper": FedPer}
