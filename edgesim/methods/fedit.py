"""FedIT: federated instruction tuning, FedAvg on low-rank adapters.

Source: Zhang et al., "Towards Building the Federated GPT: Federated Instruction Tuning" (ICASSP 2024, arXiv
2305.05644), algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from edgesim.core.rng import Key
from edgesim.core.view import Setting
from edgesim.methods.fedavg import FedAvg
from edgesim.methods.lora.adapters import adapters_of


@dataclass(frozen=True, kw_only=True)
class FedIT(FedAvg):
    """Devices fine-tune low-rank adapters of a frozen network, and the server averages A and B by data size.

    It computes what `fedavg` does, bit for bit, and refuses a network without adapters. So a study of adapters names
    its baseline as papers do. Other trained parameters, such as a classifier, are averaged too. The mean of A times
    the mean of B is not the mean of the products. Keys of the average: see FedAvg.

    Family: low-rank adapters. Formula: `A <- sum_k n_k A_k / sum_k n_k, B likewise`. Paper: arXiv 2305.05644.
    """

    def init(self, setting: Setting, key: Key) -> Any:
        """Return the empty state. Raises ConfigError if the network has no adapters."""
        adapters_of(setting.cost_profile)
        return super().init(setting, key)


PLUGINS = {"fedit": FedIT}
