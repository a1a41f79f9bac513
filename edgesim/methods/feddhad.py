"""FedDHAD: FedAD's thinner networks, averaged with FedDH's learned weights.

Source: "Efficient Federated Learning with Heterogeneous Data and Adaptive Dropout", arXiv 2507.10430.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from edgesim.contracts import Needs, Payload, Setting
from edgesim.learning.adaptive_dropout import AdaptiveDropout
from edgesim.methods.feddh import FedDH
from edgesim.numbers import NonNegativeNumber, PositiveShare

_COUNT_BYTES = 4  # of one label


@dataclass(frozen=True, kw_only=True)
class FedDHAD(AdaptiveDropout, FedDH):
    """Adaptive dropout, see `AdaptiveDropout`, before FedDH, whose weights are those of who had a parameter.

    Keys of the weights: see FedDH.
    """

    lambda_v: NonNegativeNumber = 1e-2  # the four are Table 5's for LeNet on CIFAR-10
    decay_v: PositiveShare = 0.9999
    lambda_b: NonNegativeNumber = 1e-4
    decay_b: PositiveShare = 0.99
    needs: ClassVar[Needs] = Needs(
        coordinators=frozenset({"sync"}), feedback=True, hears=True, reports=frozenset({"labels"})
    )

    def _upload(self, state: Any, device: int, setting: Setting) -> Payload:
        """Return the model, for the first time with the device's label counts."""
        labels = 0 if setting.labels is None else setting.labels.shape[1]
        return Payload(extra_bytes=0 if state["told"][device] else _COUNT_BYTES * labels)


PARTS = {"feddhad": FedDHAD}
