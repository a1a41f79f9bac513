"""Interface of cost models, which give the floating-point operations of device work."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from edgesim.core.arrays import Arr
from edgesim.core.task import Pass, Submodel


class CostModel(Protocol):
    """Floating-point operations of device work."""

    def check(self, widths: int) -> None:
        """Raise ConfigError if a method with this many partial widths cannot be priced."""

    def flops(self, cost_profile: Any, work: Pass, submodel: Submodel, samples: Arr, steps: Arr) -> Arr:
        """Return FLOPs, shape (k,), of one pass over `samples` in `steps` SGD steps."""


@runtime_checkable
class Itemised(Protocol):
    """A cost model that breaks its FLOPs down by kind of layer, so that devices may have a speed for each kind."""

    def amounts(self, cost_profile: Any, work: Pass, submodel: Submodel, samples: Arr, steps: Arr) -> Mapping[str, Arr]:
        """Return the amount of each term of a device profile in one pass, shape (k,). One term is `flops`."""
