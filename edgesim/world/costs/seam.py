"""What a cost model may answer besides FLOPs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from edgesim.card import ModelCard
from edgesim.contracts import Arr, Part, Pass


@runtime_checkable
class Itemised(Protocol):
    """A cost model that knows of what its FLOPs consist, so that devices may have a speed for each kind of layer."""

    def amounts(self, card: ModelCard, work: Pass, part: Part, samples: Arr, steps: Arr) -> Mapping[str, Arr]:
        """Return how much of each term of edgesim.config.profiles one pass does, each of shape (k,).

        `samples` and `steps`: as for `flops`, which is one of the terms.
        """
