"""FedAD: devices train thinner networks by their speed, whose units are left out by how little they matter.

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
    """Adaptive dropout, see `AdaptiveDropout`, before a mean by data size.

    `absent`: a parameter is averaged over who had it ("average_over_holders"), or who had not counts with the old one
    ("include_absent").

    The bound L on the slope of B, whose printed form subtracts a vector from a matrix, is read as |B(x) - B(0)| / |x|
    with B(x) = H x - g(w + x) and x the way back to the first model. An activation that changed its sign on that way
    makes B steep: then no gap is large enough, nothing is dropped but for speed, and the metrics show a `rho` of 1. The
    largest number of samples is looked for among all devices; if several have it, the first of them sets the pace.
    Sizes of the set of devices that tell ranks are not given: all selected ones do. Where the encoding towards devices
    is not exact, a device trains in a check round from the exact model. Like `bn2`, these methods wait for everybody.
    """

    # a deadline would be spent on waiting for ranks and leave no time for models
    needs: ClassVar[Needs] = Needs(protocols=frozenset({"sync"}), feedback=True, clock=True)


PLUGINS = {"fedad": FedAD}
