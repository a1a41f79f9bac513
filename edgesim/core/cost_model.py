"""The seam of cost models: how many floating-point operations device work takes."""

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
    """A cost model that knows of what its FLOPs consist, so that devices may have a speed for each kind of layer."""

    def amounts(self, cost_profile: Any, work: Pass, submodel: Submodel, samples: Arr, steps: Arr) -> Mapping[str, Arr]:
        """Return the amount of each term of a device profile in one pass, shape (k,); one of them is `flops`."""
