"""Method, backend and state of a run, as the protocols see them. Weights are opaque here: no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from edgesim.core.backend import Assignment, Backend, Result, Score
from edgesim.core.errors import ContractError
from edgesim.core.job import DELIVERED, Completion, Job
from edgesim.core.learner import ServerStep
from edgesim.core.method import Aggregate, Method, ServerContext
from edgesim.core.rng import Key, Purpose
from edgesim.core.task import Plan, Task
from edgesim.core.update import FIRST_MODEL, SERVER, ModelRef, ModelState, Update
from edgesim.core.view import Setting, View
from edgesim.runtime.model_store import ModelStore
from edgesim.runtime.pending import Pending

_T = TypeVar("_T")
_UNTRAINED = Task("first", start="device")  # of the message that a device has before it ever trained


class FederatedLearner:
    """Runs a method on a backend. A backend that does not train never calls the method's `aggregate`."""

    def __init__(
        self, method: Method, backend: Backend, setting: Setting, key: Key, first: ModelState | None, tools: Any = None
    ) -> None:
        self.method = method
        self.backend = backend
        self.trains = backend.trains
        self.state = method.init(setting, key.at(Purpose.INIT, 1))
        self.memory: dict[int, ModelState] = {}  # what each device kept
        self.model = FIRST_MODEL
        self.best: tuple[float, ModelState | None] = (-1.0, first)  # test accuracy and weights
        self._setting = setting
        self._key = key
        self._tools = tools
        self._models = ModelStore()
        self._messages: dict[ModelRef, Update] = {}  # what peers can fetch
        self._among_peers = method.needs.peers is not None
        self._pending = Pending(keeps=method.needs.device_state != "none")
        if first is not None:
            self._models.put(self.model, first)
            if self._among_peers:
                self._models.pin(FIRST_MODEL)  # where devices start that have not trained yet

    def weights(self) -> ModelState:
        """Return the newest global model."""
        return self._models.get(self.model)

    def values(self) -> dict[str, Any]:
        """Return all that training gave and later rounds need, for a checkpoint; to be read, not changed."""
        return {
            "state": self.state,
            "memory": self.memory,
            "models": self._models.models,
            "messages": self._messages,
            "results": self._pending.results,
            "best": self.best,
        }

    def restore(self, values: Mapping[str, Any]) -> None:
        """Take the values of a learner that was asked the same until now."""
        named: dict[str, dict[Any, Any]] = {
            "models": self._models.models,
            "messages": self._messages,
            "results": self._pending.results,
        }
        for name, held in named.items():
            assert held.keys() == values[name].keys(), name
            held.update(values[name])
        self.state, self.memory, self.best = values["state"], values["memory"], values["best"]

    def plan(self, view: View) -> Plan:
        """Ask the method for the orders of the next exchange. Raises ContractError if it gives something else."""
        plan = self.method.plan(self.state, view, self._key.at(Purpose.PLAN, view.round, view.exchange))
        return self._promised(plan, Plan, "plan")

    def start(self, jobs: Sequence[Job]) -> None:
        """Pin the models that jobs start from; nothing is trained yet."""
        if not self.trains:
            return
        for job in jobs:
            if job.task.start == "device" and not self._among_peers:
                name = type(self.method).__name__
                raise ContractError(f"{name}: a task has start 'device' but needs.peers is not set")
            self._models.pin(job.base)
            self._pending.add(job)

    def cancel(self, completions: Sequence[Completion]) -> None:
        """Forget jobs that did not deliver, untrained, unless a device's memory or a peer already has the result."""
        if not self.trains:
            return
        kept = self.method.needs.device_state == "computed"
        self._train([a.job for a in completions if a.computed and (kept or a.job.task.start == "device")])
        for completion in completions:
            self._pending.drop(completion.job)
            self._models.release(completion.job.base)

    def on_exchange(self, completions: Sequence[Completion], view: View) -> None:
        """Train what an exchange delivered, if the method looks at it before the next one of the round."""
        if not self.trains or not self.method.sees_exchanges:
            return
        key = self._key.at(Purpose.MERGE, view.round, view.exchange)
        self.state = self.method.on_exchange(self.state, self._trained(completions), view, key)

    def aggregate(self, completions: Sequence[Completion], view: View) -> ServerStep:
        """Train the completions that delivered, let the method aggregate the updates in job order, name the new model.

        Raises ContractError if the method gives no Aggregate.
        """
        version = ModelRef(SERVER, self.model.version + 1)
        used = _delivered(completions)
        if not self.trains:
            self.model = version if used else self.model
            return ServerStep(self.model)
        updates = self._trained(used)
        key = self._key.at(Purpose.MERGE, view.round)
        server = ServerContext(view.setting, view.round, self._tools)
        aggregate = self.method.aggregate(self.state, self.weights(), updates, server, key)
        aggregate = self._promised(aggregate, Aggregate, "aggregate")
        self.state = aggregate.state
        if aggregate.model is not None:
            self._models.release(self.model)
            self._models.put(version, aggregate.model)
            self.model = version
        for completion in used:
            self._pending.drop(completion.job)
            self._models.release(completion.job.base)
        self._forget_old_messages()
        spent_flops = 0.0 if self._tools is None else self._tools.take_flops()
        return ServerStep(self.model, aggregate.server_flops + spent_flops, aggregate.metrics)

    def _promised(self, given: Any, cls: type[_T], function: str) -> _T:
        if not isinstance(given, cls):
            name = type(self.method).__name__
            article = "an" if cls.__name__[0] in "AEIOU" else "a"
            raise ContractError(f"{name}.{function}() must return {article} {cls.__name__}, got {type(given).__name__}")
        return given

    def evaluate(self, model: ModelRef) -> Mapping[str, Score]:
        """Score a global model; without training there is nothing to score. Remembers the best one."""
        if not self.trains:
            return {}
        weights = self._models.get(model)
        scores = self.backend.evaluate(weights)
        if scores["test"].accuracy > self.best[0]:
            self.best = (scores["test"].accuracy, weights)
        return scores

    def evaluate_personal(self) -> Mapping[int, Score]:
        """Score what each device would use on its own test set: the global model unless the method says otherwise."""
        if not self.trains:
            return {}
        model = self._models.get(FIRST_MODEL) if self._among_peers else self.weights()
        devices = range(len(self._setting.samples))
        models = {device: self.method.personal_model(model, self.memory.get(device)) for device in devices}
        return self.backend.evaluate_personal(models)

    def _trained(self, completions: Sequence[Completion]) -> list[Update]:
        """Return the messages of the completions that delivered, in job order."""
        used = _delivered(completions)
        self._train([a.job for a in used])
        return [self._message(a) for a in used]

    def _train(self, jobs: Sequence[Job]) -> None:
        """Train jobs and what they build on, those that do not depend on each other in one call."""
        for batch in self._pending.batches(jobs):
            results = self.backend.train([self._assignment(job) for job in batch])
            for job, result in zip(batch, results, strict=True):
                self._pending.finish(job, result)
                self._remember(job, result)
                if job.task.start == "device":
                    message = self._message_of(job, result)._replace(own_model=None)  # no peer may look at it
                    self._messages[ModelRef(1 + job.device, job.id)] = message

    def _assignment(self, job: Job) -> Assignment:
        received = [self._received(ref) for ref in job.received]
        model, device_state = self._models.get(job.base), self.memory.get(job.device)
        return Assignment(job.id, job.device, job.task, self._key_of(job), model, device_state, received, job.steps)

    def _remember(self, job: Job, result: Result) -> None:
        if result.new_device_state is None:
            return
        if self.method.needs.device_state == "none":
            name = type(self.method).__name__
            raise ContractError(f"{name} keeps something on a device but needs.device_state says 'none'")
        self.memory[job.device] = result.new_device_state

    def _forget_old_messages(self) -> None:
        """Drop messages that nobody can fetch any more: their device has a newer one and no job starts from them."""
        newest = {ref.owner: ref for ref in sorted(self._messages)}
        needed = self._pending.received() | set(newest.values())
        self._messages = {ref: message for ref, message in self._messages.items() if ref in needed}

    def _received(self, ref: ModelRef) -> Update:
        if ref.version >= 0:
            return self._messages[ref]
        return Update(ref.owner - 1, -1, _UNTRAINED, self._models.get(FIRST_MODEL), 0, 0, 0, {})

    def _message(self, completion: Completion) -> Update:
        message = self._message_of(completion.job, self._pending.result(completion.job))
        return message._replace(staleness=completion.staleness, weight=completion.weight)

    def _message_of(self, job: Job, result: Result) -> Update:
        samples = int(self._setting.samples[job.device])
        return Update(
            job.device,
            job.id,
            job.task,
            result.body,
            samples,
            result.steps,
            staleness=0,
            statistics=result.statistics,
            own_model=result.own_model,
        )

    def _key_of(self, job: Job) -> Key:
        if job.task.local_sgd:
            return self._key.at(Purpose.LOCAL, job.device, job.nth)
        return self._key.at(Purpose.PROBE, job.device, job.round)


def _delivered(completions: Sequence[Completion]) -> list[Completion]:
    return sorted((a for a in completions if a.outcome in DELIVERED), key=lambda a: a.job.id)
