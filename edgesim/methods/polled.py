"""Any method whose candidates first report their loss, so that the devices with the highest losses train."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import isfinite
from typing import TYPE_CHECKING, Any

import numpy as np

from edgesim.core.encoding import FLOAT32
from edgesim.core.job import DELIVERED, Job
from edgesim.core.method import Aggregate, Finished, LocalRule, LocalState, Needs, ServerContext
from edgesim.core.rng import JobStream, Key, PlanStream
from edgesim.core.selection import Poll, highest
from edgesim.core.task import Pass, Payload, Plan, Task
from edgesim.core.update import ModelState, Update
from edgesim.core.view import Setting, View
from edgesim.methods.wrapped import Wrapped

if TYPE_CHECKING:
    from edgesim.learning.train.context import Context

_POLL, _LOSS = "poll", "polled_loss"
_ANSWER = Payload(collections=frozenset(), extra_bytes=4)  # one float32
_AT_ONCE = 256  # samples of a forward pass


@dataclass(frozen=True, kw_only=True)
class Polled(Wrapped):
    """A method that asks candidates for their loss under the newest model before it plans the exchange that trains.

    A poll is an exchange of its own: the model goes down, a forward pass is computed, and a loss of 4 bytes comes up.
    Those that train do not receive the model again if the method sends it whole and unencoded, and its devices begin
    with a copy of it. All else is the method's, which sees neither polls nor their answers. The state has the method's
    own state and the newest losses.
    """

    poll: Poll

    @property
    def needs(self) -> Needs:  # type: ignore[override]
        """Needs of the method, and feedback: the second exchange depends on the losses of the first."""
        return replace(self.method.needs, feedback=True)

    @property
    def needs_training(self) -> bool:
        """True, as the devices that train follow from losses."""
        return True

    @property
    def sees_exchanges(self) -> bool:
        """True, as losses come with an exchange."""
        return True

    def init(self, setting: Setting, key: Key) -> Any:
        """Return the method's first state, and no losses."""
        return {"method": self.method.init(setting, key), "loss": None}

    def plan(self, state: Any, view: View, key: Key) -> Plan:
        """Return a poll of the candidates, or the method's orders to those with the highest losses.

        Without training, as in runs of timing alone, chance decides.
        """
        if not view.exchange:
            devices, most = view.choose(key), self.poll.samples or np.inf
            looked_at = np.minimum(view.setting.samples[devices], most).astype(np.int64)
            return Plan.by_kind(devices.tolist(), looked_at.tolist(), poll_task)._replace(more=True)
        losses = state["loss"]
        if losses is None:
            losses = {each.job.device: 0.0 for each in view.last if each.outcome in DELIVERED}
        there = np.intersect1d(view.idle, np.array(sorted(losses), dtype=np.int64))
        scores = np.array([losses[device] for device in there.tolist()])
        chosen = highest(there, scores, self.poll.count, key.at(PlanStream.DEVICES))
        plan = self.method.plan(state["method"], _AfterPoll(view, chosen), key)
        if not isinstance(plan, Plan) or view.exchange > 1 or view.setting.encoding_down != FLOAT32:
            return plan
        tasks = {id(order.task): order.task for order in plan.orders}
        for id_, task in tasks.items():
            whole = task.start == "server" and task.down == Payload()  # which the device has since the poll
            if whole and self.method.local(task).on_start is None:
                tasks[id_] = replace(task, down=None)
        return plan._replace(orders=tuple(order._replace(task=tasks[id(order.task)]) for order in plan.orders))

    def local(self, task: Task) -> LocalRule:
        """Return the rule of a poll, or the method's rule."""
        return LocalRule(on_finish=_answer) if task.name == _POLL else self.method.local(task)

    def foreseen(self, state: Any, jobs: Sequence[Job | Update], setting: Setting) -> Any:
        """Return the method's state without training, and no losses."""
        trained = [each for each in jobs if each.task.name != _POLL]
        return {"method": self.method.foreseen(state["method"], trained, setting), "loss": None}

    def on_exchange(self, state: Any, updates: Sequence[Update], server: ServerContext, key: Key) -> Any:
        """Return the losses after a poll, or the method's state after an exchange of its own."""
        if state["loss"] is not None:
            return {**state, "method": self.method.on_exchange(state["method"], _trained(updates), server, key)}
        losses = {update.device: update.statistics[_LOSS] for update in updates}
        return {**state, "loss": {device: loss if isfinite(loss) else np.inf for device, loss in losses.items()}}

    def aggregate(
        self, state: Any, global_model: ModelState, updates: Sequence[Update], server: ServerContext, key: Key
    ) -> Aggregate:
        """Return the method's aggregate of the updates that are no answers."""
        made = self.method.aggregate(state["method"], global_model, _trained(updates), server, key)
        if not isinstance(made, Aggregate):  # an error of a method from outside, which the learner reports
            return made
        return made._replace(state={"method": made.state, "loss": None})

    def merge_flops_of(self, tasks: Sequence[Task], setting: Setting) -> float:
        """Return the method's FLOPs of the updates that are no answers."""
        trained = [task for task in tasks if task.name != _POLL]
        return self.method.merge_flops_of(trained, setting) if trained else 0.0


@dataclass(frozen=True)
class _AfterPoll:
    """A view in which the poll has not happened, but its result decides whom `choose` returns."""

    view: View
    chosen: np.ndarray

    @property
    def setting(self) -> Setting:
        return self.view.setting

    @property
    def now_s(self) -> float:
        return self.view.now_s

    @property
    def version(self) -> int:
        return self.view.version

    @property
    def round(self) -> int:
        return self.view.round

    @property
    def exchange(self) -> int:
        return self.view.exchange - 1

    @property
    def free_places(self) -> int:
        return len(self.chosen)

    @property
    def last(self) -> Sequence[Any]:
        return self.view.last if self.exchange else ()

    @property
    def idle(self) -> np.ndarray:
        return self.view.idle

    @property
    def peers(self) -> Any:
        return self.view.peers

    def choose(self, key: Key) -> np.ndarray:
        return self.chosen


@lru_cache(maxsize=1024)  # one object for each, as the engine identifies tasks by object
def poll_task(samples: int) -> Task:
    """Return the task of a device that reports its mean loss on so many of its samples."""
    passes = (Pass("forward", samples=samples),)
    return Task(_POLL, up=_ANSWER, passes=passes, config={"samples": samples})


def _trained(updates: Sequence[Update]) -> list[Update]:
    return [update for update in updates if update.task.name != _POLL]


def _answer(local: LocalState, context: Context) -> Finished:
    """Return the mean loss of the received model on samples of the device, all or drawn at random, as in a test."""
    import torch

    count, shard, key = int(context.task.config["samples"]), len(context.shard), context.key.at(JobStream.LOOKED_AT)
    drawn = np.arange(shard) if count >= shard else np.sort(key.numpy().choice(shard, count, replace=False))
    augmenting = torch.Generator().manual_seed(key.at(0).word())
    parts = [torch.from_numpy(drawn[first : first + _AT_ONCE]) for first in range(0, len(drawn), _AT_ONCE)]
    context.bind_for_test(local.weights)
    total = amount = 0.0
    with torch.no_grad():
        for batch in context.batches(parts, augmenting):
            amount += context.objective.amount(batch.y)
            total += float(context.objective.summed(context.forward(local.weights, batch.x), batch.y))
    return Finished(local.weights, statistics={_LOSS: total / (amount or 1.0)})
