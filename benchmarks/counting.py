"""FedAvg that counts: contestants have to have done the same work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from edgesim.core.method import Aggregate, ServerContext
from edgesim.core.rng import Key
from edgesim.core.update import ModelState, Update
from edgesim.methods.fedavg import FedAvg

if TYPE_CHECKING:
    from edgesim.reports.load import Run


@dataclass(frozen=True, kw_only=True)
class CountingFedAvg(FedAvg):
    """FedAvg that notes how many SGD steps were really taken."""

    def aggregate(
        self, state: Any, global_model: ModelState, updates: Sequence[Update], server: ServerContext, key: Key
    ) -> Aggregate:
        """Return FedAvg's aggregate with the metric "steps"."""
        merged = super().aggregate(state, global_model, updates, server, key)
        return merged._replace(metrics={**merged.metrics, "steps": sum(update.steps for update in updates)})


def steps_of(run: Run) -> int:
    """Return how many SGD steps a run of CountingFedAvg took."""
    return int(run.metrics["value"][run.metrics["name"] == "steps"].sum())
