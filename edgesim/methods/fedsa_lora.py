"""FedSA-LoRA: devices share A of their low-rank adapters, and each device keeps a B of its own.

Source: Guo et al., "Selective Aggregation for Low-Rank Adaptation in Federated Learning" (ICLR 2025), section 3.
"""

from __future__ import annotations

from dataclasses import dataclass

from edgesim.core.price_list import CostProfile
from edgesim.methods.lora.adapters import adapters_of
from edgesim.methods.personal_layers.base import PersonalLayers


@dataclass(frozen=True, kw_only=True)
class FedSALoRA(PersonalLayers):
    """For devices with different data: A is averaged, B stays on its device and adapts the network to its data.

    A device trains both. A device is tested with the newest A and its own B: `evaluation.personal`. B of the global
    model keeps its first value, 0 in peft, so the accuracy of the global model says little. Other trained parameters,
    such as a classifier, are averaged. Keys of the average: see FedAvg.

    Family: low-rank adapters. Formula: `A <- sum_k n_k A_k / sum_k n_k; B_k stays on device k`. Paper: arXiv
    2410.01463.
    """

    def own_layers(self, cost_profile: CostProfile) -> frozenset[str]:
        """Return the layers of B. Raises ConfigError if the network has no adapters."""
        return frozenset(each.b_layer for each in adapters_of(cost_profile))


PLUGINS = {"fedsa_lora": FedSALoRA}
