"""A method from outside the package that weighs devices by the SGD steps that they really took.

Source: made up to exercise the contract; FedNova uses step counts in a related way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from edgesim.core.method import Aggregate, ServerContext
from edgesim.core.rng import Key
from edgesim.core.update import ModelState, Update
from edgesim.learning.aggregate.mean import mean_of_holders
from edgesim.methods.fedavg import FedAvg


@dataclass(frozen=True, kw_only=True)
class CountsSteps(FedAvg):
    """Average by steps, and note them."""

    def aggregate(
        self, state: Any, global_model: ModelState, updates: Sequence[Update], server: ServerContext, key: Key
    ) -> Aggregate:
        """Return the mean weighted by steps; the note "steps" has those of each device."""
        if not updates:
            return Aggregate(state, None)
        model = mean_of_holders(global_model, updates, [float(m.steps) for m in updates])
        return Aggregate(state, model, metrics={"steps": {m.device: m.steps for m in updates}})
