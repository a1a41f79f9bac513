"""A method from outside the package that weighs devices by the SGD steps that they really took.

Source: made up to exercise the contract; FedNova uses step counts in a related way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from edgesim.contracts import Bundle, Merged, Message, View
from edgesim.learning.merge import mean_of_holders
from edgesim.methods.fedavg import FedAvg
from edgesim.rng import Key


@dataclass(frozen=True, kw_only=True)
class CountsSteps(FedAvg):
    """Average by steps, and note them."""

    def merge(self, state: Any, base: Bundle, got: Sequence[Message], view: View, tools: Any, key: Key) -> Merged:
        """Return the mean weighted by steps; the note "steps" has those of each device."""
        if not got:
            return Merged(state, None)
        model = mean_of_holders(base, got, [float(m.steps) for m in got])
        return Merged(state, model, notes={"steps": {m.device: m.steps for m in got}})
