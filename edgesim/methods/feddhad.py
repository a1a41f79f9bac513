"""FedDHAD: FedAD's thinner networks, averaged with FedDH's learned weights.

Source: "Efficient Federated Learning with Heterogeneous Data and Adaptive Dropout", arXiv 2507.10430.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from edgesim.core.limits import NonNegativeFactor, PositiveShare
from edgesim.core.method import Needs
from edgesim.core.task import Payload
from edgesim.core.view import Setting
from edgesim.methods.adaptive_dropout.base import AdaptiveDropout
from edgesim.methods.feddh import FedDH

_COUNT_BYTES = 4  # per label


@dataclass(frozen=True, kw_only=True)
class FedDHAD(AdaptiveDropout, FedDH):
    """For unequal speed and unequal labels: slower devices train thinner networks, averaged with learned weights.

    The units are left out by adaptive dropout, see `AdaptiveDropout`. FedDH averages each parameter over the devices
    that had it. Keys of the weights: see FedDH.

    `gradient`: the gradient of each parameter is the mean over the devices that had it.

    Family: smaller networks. Formula: `w_e <- sum_(k has e) q_k w_ke / sum_(k has e) q_k, q_k as in FedDH`.
    """

    lambda_v: NonNegativeFactor = 1e-2  # from Table 5 for LeNet on CIFAR-10, as are the next three
    """Table 5's row for FedDHAD, LeNet on CIFAR-10, as are the next three. Other rows have 0.0001 to 0.1."""
    decay_v: PositiveShare = 0.9999
    """Table 5 has 0.99 to 0.9999."""
    lambda_b: NonNegativeFactor = 1e-4
    """Table 5 has 0.0001 to 0.1."""
    decay_b: PositiveShare = 0.99
    """Table 5 has this value in all rows."""
    needs: ClassVar[Needs] = Needs(
        protocols=frozenset({"sync"}), feedback=True, clock=True, metadata=frozenset({"labels"})
    )

    def _upload(self, state: Any, device: int, setting: Setting) -> Payload:
        """Return the model, for the first time with the device's label counts."""
        labels = 0 if setting.labels is None else setting.labels.shape[1]
        return Payload(extra_bytes=0 if state["told"][device] else _COUNT_BYTES * labels)


PLUGINS = {"feddhad": FedDHAD}
