"""FedPer: all devices share the base of the model, and each has its last layers to itself.

Source: Arivazhagan et al., "Federated Learning with Personalization Layers" (arXiv 1912.00818), algorithms 1 and 2.
"""

from __future__ import annotations

from dataclasses import dataclass

from edgesim.core.price_list import CostProfile
from edgesim.methods.personal_layers.base import Layers, PersonalLayers, check_shared, chosen_layers


@dataclass(frozen=True, kw_only=True)
class FedPer(PersonalLayers):
    """FedAvg over the base; each device trains it together with `personal_layers` of its own, which never travel.

    `personal_layers`: how many of the last layers, or names of layers or of blocks of them, such as ["layer4", "fc"];
    0 is FedAvg, bit for bit. A device is tested with the newest base and its own layers; the global model's own
    accuracy says little, as its personal layers stay as they were drawn. Keys of the average: see FedAvg.
    """

    personal_layers: Layers = 1  # K_P of the paper
    """Arivazhagan et al. try 1 to 4 and count the classifier as the first; for ResNet-34 blocks of two convolutions,
    which are named here, and for MobileNet layers. One is the least that is personal.
    """

    def own_layers(self, cost_profile: CostProfile) -> frozenset[str]:
        """Return the personal layers."""
        chosen = chosen_layers(self.personal_layers, cost_profile, "personal_layers")
        return check_shared(chosen, cost_profile, "personal_layers")


PLUGINS = {"fedper": FedPer}
