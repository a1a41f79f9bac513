"""Any method with a server optimiser: the global model takes an optimiser step towards the aggregate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from edgesim.core.job import Job
from edgesim.core.method import Aggregate, ServerContext
from edgesim.core.rng import Key
from edgesim.core.task import Plan
from edgesim.core.update import ModelState, Update
from edgesim.core.view import Setting, View
from edgesim.learning.server_optimizers.base import ServerOptimizer, step_flops, stepped
from edgesim.methods.wrapped import Wrapped


@dataclass(frozen=True, kw_only=True)
class Optimised(Wrapped):
    """A method whose global model takes a step of an optimiser towards the aggregate, instead of becoming it.

    The state has the method's own state and the optimiser's moments. An aggregation without a model changes neither the
    model nor the moments. All else is the method's.
    """

    optimizer: ServerOptimizer

    def init(self, setting: Setting, key: Key) -> Any:
        """Return the method's first state, and no moments."""
        return {"method": self.method.init(setting, key), "moments": {}}

    def plan(self, state: Any, view: View, key: Key) -> Plan:
        """Return the method's orders."""
        return self.method.plan(state["method"], view, key)

    def aggregate(
        self, state: Any, global_model: ModelState, updates: Sequence[Update], server: ServerContext, key: Key
    ) -> Aggregate:
        """Return the method's aggregate, with the model after the optimiser's step."""
        made = self.method.aggregate(state["method"], global_model, updates, server, key)
        if not isinstance(made, Aggregate):  # an error of a method from outside, which the learner reports
            return made
        moments, model = state["moments"], made.model
        if model is not None:
            moments, model = stepped(self.optimizer, moments, global_model, model)
        return made._replace(state={"method": made.state, "moments": moments}, model=model)

    def merge_flops(self, updates: int, setting: Setting) -> float:
        """Return the method's FLOPs and those of the optimiser's step."""
        return self.method.merge_flops(updates, setting) + step_flops(self.optimizer, setting)

    def foreseen(self, state: Any, jobs: Sequence[Job | Update], setting: Setting) -> Any:
        """Return the method's state without training, with unchanged moments."""
        return {**state, "method": self.method.foreseen(state["method"], jobs, setting)}

    def on_exchange(self, state: Any, updates: Sequence[Update], server: ServerContext, key: Key) -> Any:
        """Return the method's state after an exchange, with unchanged moments."""
        return {**state, "method": self.method.on_exchange(state["method"], updates, server, key)}
