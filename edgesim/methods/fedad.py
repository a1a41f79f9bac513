"""FedAD: slower devices train thinner networks, without units of little importance.

Source: "Efficient Federated Learning with Heterogeneous Data and Adaptive Dropout", arXiv 2507.10430.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from edgesim.core.method import Needs
from edgesim.methods.adaptive_dropout.base import AdaptiveDropout
from edgesim.methods.weighting.by_entry import MeanByEntry


@dataclass(frozen=True, kw_only=True)
class FedAD(AdaptiveDropout, MeanByEntry):
    """For fleets of unequal speed: slower devices train thinner networks, averaged by data size.

    The units are left out by adaptive dropout, see `AdaptiveDropout`. `absent`: a parameter is averaged over the
    devices that had it ("average_over_holders"), or devices without it count with the old one ("include_absent").

    The printed form of the bound L on the slope of B subtracts a vector from a matrix. It is read as
    |B(x) - B(0)| / |x| with B(x) = H x - g(w + x) and x the difference back to the first model. An activation that
    changed its sign on the way makes B steep. Then no gap is large enough, units are dropped only for speed, and the
    metrics show a `rho` of 1. The largest number of samples is taken over all devices; if several have it, the first
    of them sets the pace. The paper does not specify how many devices report ranks; here all selected ones do. Where
    the encoding towards devices is not exact, a device trains in a check round from the exact model. Like `bn2`, these
    methods wait for all selected devices.

    Family: smaller networks. Formula: `w_e <- sum_(k has e) n_k w_ke / sum_(k has e) n_k for each parameter e`.
    """

    # a deadline would pass in waiting for ranks and leave no time for models
    needs: ClassVar[Needs] = Needs(protocols=frozenset({"sync"}), feedback=True, clock=True)


PLUGINS = {"fedad": FedAD}
