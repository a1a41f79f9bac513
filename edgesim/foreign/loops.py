"""A user's own training loop in the place of a method's local SGD, and its price.

The function `train(model, data, config)` does the local training of a device. All other parts of the method stay.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from edgesim.config.plugins import function_of
from edgesim.core.arrays import Arr
from edgesim.core.cost_model import CostModel
from edgesim.core.errors import ConfigError
from edgesim.core.local_sgd import LocalSGD
from edgesim.core.method import (
    Aggregate,
    Finished,
    LocalPhase,
    LocalRule,
    LocalState,
    Method,
    ServerContext,
    has_plain_rule,
)
from edgesim.core.rng import Key
from edgesim.core.task import Order, Pass, Plan, Submodel, Task
from edgesim.core.update import ModelState, Update
from edgesim.core.view import Turn, View
from edgesim.learning.cost_models.measured import Measured
from edgesim.methods.wrapped import Wrapped

if TYPE_CHECKING:
    from edgesim.foreign.loop_calls import LoopAnswer
    from edgesim.learning.train.context import Context

ROUND = "loop_round"  # number in the config of a task
OWN_CONFIG = ("round", "device_id", "seed", "torch_device", *(each.name for each in fields(LocalSGD)))
_SAMPLES, _METRIC = "loop_samples", "loop_metric_"  # statistics that a device sends beside its update
_BEFORE = "local_"  # of the names of metrics in the metrics table


@dataclass(frozen=True, kw_only=True)
class Loop:
    """A user's own training loop in the place of a method's local SGD, such as a Trainer of Lightning."""

    local: str  # function train(model, data, config) of the user's own, as package.module:function
    config: dict[str, Any] = field(default_factory=dict)  # further entries of its config, of any names and values

    def around(self, method: Method) -> OwnLoop:
        """Return a method whose devices train by the loop. Raises ConfigError if there is no such loop."""
        if not has_plain_rule(method):
            why = f"devices of {method.label} do not train by plain SGD, which alone a loop can replace"
            raise ConfigError(f"method.local: {why}; leave it out")
        function_of("method.local", self.local, "model", "data", "config")
        for key in self.config:
            if key in OWN_CONFIG:
                raise ConfigError(f"method.config: {key} is an entry that edgesim sets itself; use another name")
        return OwnLoop(method=method, keys=self)


@dataclass(frozen=True)
class LoopPrice:
    """Amounts of work of a loop, linear in its samples and steps: by kind of work, a job, a sample and a step.

    `memory_bytes`: peak of the calls that were measured; 0: not measured.
    """

    amounts: Mapping[str, tuple[float, float, float]]
    memory_bytes: int = 0

    @property
    def has_kinds(self) -> bool:
        """True if it has the kinds of work beside FLOPs."""
        return "operations" in self.amounts

    def of(self, samples: Arr, steps: Arr) -> dict[str, Arr]:
        """Return the amount of each kind of work, shape (k,), for jobs of these samples and steps; 0 without any."""
        works = samples > 0
        return {
            kind: works * (per_job + samples * per_sample + steps * per_step)
            for kind, (per_job, per_sample, per_step) in self.amounts.items()
        }


@dataclass(frozen=True, kw_only=True)
class LoopCost(CostModel):
    """Cost model of jobs that train by a loop, whose work was measured. Other work is priced as `measured` does."""

    price: LoopPrice

    def flops(self, cost_profile: Any, work: Pass, submodel: Submodel, samples: Arr, steps: Arr) -> Arr:
        """Return FLOPs, shape (k,), of one pass; see edgesim.core.cost_model.CostModel."""
        if work.kind == "train" and work.samples is None:
            return self.price.of(samples, steps)["flops"]
        return Measured().flops(cost_profile, work, submodel, samples, steps)

    def amounts(
        self, cost_profile: Any, work: Pass, submodel: Submodel, samples: Arr, steps: Arr
    ) -> Mapping[str, Arr] | None:
        """Return the amount of each kind of work in one pass; see edgesim.core.cost_model.CostModel."""
        if work.kind == "train" and work.samples is None:
            return self.price.of(samples, steps)
        return Measured().amounts(cost_profile, work, submodel, samples, steps)


@dataclass(frozen=True, kw_only=True)
class OwnLoop(Wrapped):
    """A method whose devices train by a user's function in place of its plain local SGD."""

    keys: Loop
    price: LoopPrice | None = None  # None: not measured

    @property
    def loop(self) -> str:
        """Name of the function."""
        return self.keys.local

    def plan(self, state: Any, view: View, key: Key) -> Plan:
        """Return the method's orders, whose tasks tell the round. Orders that share a task still do."""
        plan, tasks = super().plan(state, view, key), dict[int, Task]()
        for order in plan.orders:
            if id(order.task) not in tasks:
                tasks[id(order.task)] = self._of_round(order.task, view.round)
        return plan._replace(orders=tuple(order._replace(task=tasks[id(order.task)]) for order in plan.orders))

    def next_order(self, state: Any, turn: Turn, key: Key) -> Order:
        """Return the method's order, whose task tells the round."""
        order = super().next_order(state, turn, key)
        return order._replace(task=self._of_round(order.task, turn.round))

    def local(self, task: Task) -> LocalRule:
        """Return the method's rule with the loop in place of its plain SGD."""
        rule = super().local(task)
        if not task.local_sgd:
            return rule
        answers: list[LoopAnswer] = []

        def run(local: LocalState, local_sgd: LocalSGD, context: Context, key: Key) -> int:
            from edgesim.foreign.loop_calls import train  # which loads torch

            answers.append(train(self, local, local_sgd, context, key))
            return answers[-1].steps

        def finish(local: LocalState, context: Context) -> Finished:
            finished = Finished(local.weights) if rule.on_finish is None else rule.on_finish(local, context)
            own = {f"{_METRIC}{name}": number for name, number in answers[-1].metrics.items()}
            return finished._replace(statistics={**finished.statistics, _SAMPLES: answers[-1].samples, **own})

        return replace(rule, phases=(LocalPhase(run=run),), on_finish=finish)

    def aggregate(
        self, state: Any, global_model: ModelState, updates: Sequence[Update], server: ServerContext, key: Key
    ) -> Aggregate:
        """Return the method's aggregate of updates that weigh as the loops say, with the metrics of the loops."""
        found = super().aggregate(state, global_model, list(map(_weighed, updates)), server, key)
        metrics: dict[str, dict[int, float]] = {}
        for update in updates:
            for name, number in update.statistics.items():
                if name.startswith(_METRIC):
                    metrics.setdefault(f"{_BEFORE}{name.removeprefix(_METRIC)}", {})[update.device] = number
        return found._replace(metrics={**found.metrics, **metrics}) if isinstance(found, Aggregate) else found

    def on_exchange(self, state: Any, updates: Sequence[Update], server: ServerContext, key: Key) -> Any:
        """Return the method's state after an exchange of updates that weigh as the loops say."""
        return super().on_exchange(state, list(map(_weighed, updates)), server, key)

    def _of_round(self, task: Task, round_: int) -> Task:
        if not task.local_sgd:
            return task
        whole = task.submodel == Submodel(network=task.submodel.network)
        trains = [work for work in task.passes if work.kind == "train"]
        if not whole or trains != [Pass()] or not self.method.local(task).is_plain:
            why = f"devices of {self.label} do other work than one training of the whole network by plain SGD"
            raise ConfigError(f"method.local: {why}; leave it out")
        return replace(task, config={**task.config, ROUND: round_})


def _weighed(update: Update) -> Update:
    return update._replace(samples=update.statistics.get(_SAMPLES, update.samples))


def fitted(
    samples: Sequence[float], steps: Sequence[float], works: Sequence[Mapping[str, float]], memory_bytes: int
) -> LoopPrice:
    """Return the price that fits calls best, given by samples, steps and amounts of work of each.

    Exact for three calls whose samples and steps do not depend on each other. Where they do, the price is the shortest
    of equally good ones. Amounts are whole numbers where these fit exactly.
    """
    terms = np.array([np.ones(len(works)), samples, steps]).T
    scale = terms.max(axis=0)
    found: dict[str, tuple[float, float, float]] = {}
    for kind in works[0]:
        amounts = np.array([work[kind] for work in works])
        solved = np.linalg.lstsq(terms / scale, amounts, rcond=1e-9)[0] / scale
        whole = np.round(solved)
        per_job, per_sample, per_step = (whole if np.array_equal(terms @ whole, amounts) else solved).tolist()
        found[kind] = per_job, per_sample, per_step
    return LoopPrice(found, memory_bytes)
