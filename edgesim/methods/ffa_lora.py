"""FFA-LoRA: federated low-rank adapters whose A is frozen, so that the mean of B is the mean of the products.

Source: Sun, Li, Li and Ding, "Improving LoRA in Privacy-preserving Federated Learning" (ICLR 2024), section 4.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from edgesim.core.task import Payload, Submodel, Task
from edgesim.core.view import View
from edgesim.methods.fedit import FedIT
from edgesim.methods.lora.adapters import adapters_of


@dataclass(frozen=True, kw_only=True)
class FFALoRA(FedIT):
    """Devices train and send only B of each adapter. A stays as it was drawn at the start, on all devices.

    With equal A the mean of the products is the product of the means, so averaging loses nothing. A device draws A from
    the seed and never downloads it. Other trained parameters, such as a classifier, are trained and averaged too. Keys
    of the average: see FedAvg.

    Family: low-rank adapters. Formula: `B <- sum_k n_k B_k / sum_k n_k; A stays`. Paper: arXiv 2403.12313.
    """

    def task(self, view: View) -> Task:
        """Return the training of all layers but those of A, which are not sent either."""
        profile = view.setting.cost_profile
        frozen = frozenset(each.a_layer for each in adapters_of(profile))
        sent = Payload(layers=frozenset(profile.layer_names) - frozen)
        return replace(super().task(view), submodel=Submodel("b_only", frozen=frozen), down=sent, up=sent)


PLUGINS = {"ffa_lora": FFALoRA}
