"""FedBN: devices share all of the model except normalisation layers, which fit each device's inputs.

Source: Li et al., "FedBN: Federated Learning on Non-IID Features via Local Batch Normalization" (ICLR 2021),
algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass

from edgesim.core.price_list import CostProfile
from edgesim.methods.personal_layers.base import PersonalLayers, check_shared


@dataclass(frozen=True, kw_only=True)
class FedBN(PersonalLayers):
    """For devices with different inputs: FedAvg in which each device keeps its own normalisation layers.

    Their scales, shifts and running statistics stay on devices. Layers of batch, group, layer and instance
    normalisation count. A network without any is trained as by FedAvg, bit for bit. A device is tested with the newest
    shared layers and its own normalisation. The normalisation of the global model keeps its initial values, so the
    accuracy of the global model says little. Keys of the average: see FedAvg.

    Family: personal models. Formula: `w_l <- sum_k n_k w_kl / sum_k n_k for each layer l except normalisation`. Paper:
    arXiv 2102.07623.
    """

    def own_layers(self, cost_profile: CostProfile) -> frozenset[str]:
        """Return the normalisation layers."""
        normalising = frozenset(layer.name for layer in cost_profile.layers if "Norm" in layer.kind)
        return check_shared(normalising, cost_profile, "name")


PLUGINS = {"fedbn": FedBN}
