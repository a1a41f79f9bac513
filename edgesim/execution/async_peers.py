"""The learner of devices on their own clocks, whose kept states change with every event, also of other devices."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Any

from edgesim.core.errors import ContractError
from edgesim.core.job import DELIVERED, Completion, Job
from edgesim.core.learner import ServerStep
from edgesim.core.rng import Purpose
from edgesim.core.task import Order
from edgesim.core.update import ModelState, Update
from edgesim.core.view import Turn, View
from edgesim.execution.graph import Node
from edgesim.execution.learner import UNTRAINED, FederatedLearner


class OwnClockLearner(FederatedLearner):
    """Runs a method whose devices have no rounds.

    A job starts from the state that its device kept when the job began, and changes the state that the device keeps
    when the job ends. These states are nodes, made in the order of events. Their identities follow from their inputs,
    not from the times of events or from other events meanwhile. An aggregation gets the models of all devices at that
    instant, by device: the model of a run of peers is a snapshot of them, and no device holds it.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._nothing = self.graph.given(None)
        self._begun: dict[int, Node] = {}  # state of each running job's device when the job began
        self._tasks = dict.fromkeys(self._setting.ids.tolist(), UNTRAINED)  # task of each device's newest job

    def next_order(self, turn: Turn) -> Order:
        """Ask the method for the next job of a device. Raises ContractError if the order does not fit the device."""
        key = self._key.at(Purpose.PLAN, turn.device, turn.nth)
        order = self._promised(self.method.next_order(self._plans_from, turn, key), Order, "next_order")
        kind, name = order.task.own_clock, f"{self.method.label}.next_order()"
        if order.device != turn.device or kind is None or order.task.start != "device" or order.wait.peers:
            raise ContractError(
                f"{name} must return a task of device {turn.device} with start 'device' and own_clock that waits for "
                f"no other, got one of device {order.device} with start {order.task.start!r} and own_clock {kind!r}"
            )
        if strangers := set(order.inputs).difference(turn.neighbours.tolist()):
            raise ContractError(f"{name} names device {min(strangers)}, which is no neighbour that is there")
        if kind == "trade" and len(order.inputs) > 1:
            raise ContractError(f"{name} must name one peer at most to trade models with, got {len(order.inputs)}")
        return order

    def start(self, jobs: Sequence[Job]) -> None:
        """Note the kept states of the devices whose jobs begin; nothing is trained yet."""
        super().start(jobs)
        for job in jobs if self.trains else ():
            self._begun[job.id] = self._kept.get(job.device, self._nothing)

    def finish(self, completions: Sequence[Completion]) -> None:
        """Let jobs change the kept states of devices now, in this order; forget jobs that did not deliver.

        A job that fetches has an effect if it was computed, even without delivery. A job that trades has one only if
        it delivered.
        """
        for completion in completions:
            job = completion.job
            before = self._begun.pop(job.id, None)
            if before is None:  # the job has taken effect already, or nothing is trained
                continue
            delivered = completion.outcome in DELIVERED
            if delivered or (completion.computed and job.task.own_clock == "fetch"):
                self._take_effect(job, before)
            if not delivered:
                self._pending.drop(job)
                self._models.release(job.base)

    def aggregate(self, completions: Sequence[Completion], view: View) -> ServerStep:
        """Let the method aggregate the current models of all devices; return the name of the new model.

        `completions`: the jobs that ended since the last call, which take effect unless they have already.
        """
        self.finish(sorted(completions, key=lambda each: (each.ended_s, each.job.device, each.job.id)))
        return super().aggregate([each for each in completions if each.outcome in DELIVERED], view)

    def _take_effect(self, job: Job, before: Node) -> None:
        received = [self._message(ref) for ref in job.received]
        trained = self._training(job, self._models.get(job.base), before, received)
        self._pending.finish(job, trained)
        self._tasks[job.device] = job.task
        if job.partner is not None:
            both_devices = job.device, job.partner
            mine, theirs = (self._kept.get(each, self._nothing) for each in both_devices)
            id_ = self.memo.name("trade", mine.id, theirs.id)
            both = self.graph.computed(id_, self.method.traded, self._first, mine, theirs)
            for place, each in enumerate(both_devices):
                id_ = self.memo.name("traded", both.id, place)
                self._kept[each] = self.graph.computed(id_, itemgetter(place), both)
        kept = self._kept.get(job.device, self._nothing)  # may have changed since the job began
        self._kept[job.device] = self.graph.computed(
            self.memo.name("joined", kept.id, trained.id),
            lambda first, now, result: self.method.joined(first, now, result.new_device_state),
            *(self._first, kept, trained),
        )
        if job.task.own_clock == "fetch":
            self._send(job, trained)

    def _aggregation(self, used: Sequence[Completion], model: Node, view: View) -> Node:
        nodes = [self._kept.get(device, self._nothing) for device in self._tasks]
        samples, tasks = self._setting.samples.tolist(), dict(self._tasks)

        def updates(first: ModelState, *kept: ModelState | None) -> list[Update]:
            bodies = [self.method.personal_model(first, state) for state in kept]
            return [
                Update(device, -1, task, body, samples[device], 0, 0, {})
                for (device, task), body in zip(tasks.items(), bodies, strict=True)
            ]

        what = [(device, task, node.id) for (device, task), node in zip(tasks.items(), nodes, strict=True)]
        foreseen = self.method.merge_flops(1 + len(nodes), self._setting)
        return self._aggregated(what, [self._first, *nodes], updates, model, view, foreseen)

    def _nodes(self) -> list[Node]:
        return [*super()._nodes(), *self._begun.values()]
