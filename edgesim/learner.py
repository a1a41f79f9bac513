"""Method, backend and state of a run, as the coordinators see them. Weights are opaque here: no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from edgesim.contracts import (
    DELIVERED,
    SERVER,
    Arrival,
    Assignment,
    Backend,
    Bundle,
    Job,
    Merged,
    MergeResult,
    Message,
    Method,
    ModelRef,
    Plan,
    Result,
    Score,
    Setting,
    Task,
    View,
)
from edgesim.errors import ContractError
from edgesim.pending import Pending
from edgesim.rng import Key, Purpose
from edgesim.store import ModelStore

_T = TypeVar("_T")
_FIRST = ModelRef(SERVER, 0)
_UNTRAINED = Task("first", home="self")  # of the message that a device has before it ever trained


class FederatedLearner:
    """Runs a method on a backend. A backend that does not train never calls the method's `merge`."""

    def __init__(
        self, method: Method, backend: Backend, setting: Setting, key: Key, first: Bundle | None, tools: Any = None
    ) -> None:
        self.method = method
        self.backend = backend
        self.trains = backend.trains
        self.state = method.init(setting, key.at(Purpose.INIT, 1))
        self.memory: dict[int, Bundle] = {}  # what each device kept
        self.model = _FIRST
        self.best: tuple[float, Bundle | None] = (-1.0, first)  # test accuracy and weights
        self._setting = setting
        self._key = key
        self._tools = tools
        self._models = ModelStore()
        self._messages: dict[ModelRef, Message] = {}  # what peers can fetch
        self._pending = Pending(keeps=method.needs.keep != "no")
        if first is not None:
            self._models.put(self.model, first)
            if method.needs.peers:
                self._models.pin(_FIRST)  # where devices start that have not trained yet

    def weights(self) -> Bundle:
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
        for name, own in named.items():
            assert own.keys() == values[name].keys(), name
            own.update(values[name])
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
            if job.task.home == "self" and not self.method.needs.peers:
                raise ContractError(f"{type(self.method).__name__}: a task has home 'self' but needs.peers is not set")
            self._models.pin(job.base)
            self._pending.add(job)

    def cancel(self, arrivals: Sequence[Arrival]) -> None:
        """Forget jobs that did not deliver, untrained, unless a device's memory or a peer already has the result."""
        if not self.trains:
            return
        kept = self.method.needs.keep == "computed"
        self._train([a.job for a in arrivals if a.computed and (kept or a.job.task.home == "self")])
        for arrival in arrivals:
            self._pending.drop(arrival.job)
            self._models.release(arrival.job.base)

    def hear(self, arrivals: Sequence[Arrival], view: View) -> None:
        """Train what an exchange delivered, if the method wants to see it before the next one of the round."""
        if not self.trains or not self.method.needs.hears:
            return
        key = self._key.at(Purpose.MERGE, view.round, view.exchange)
        self.state = self.method.hear(self.state, self._trained(arrivals), view, key)  # type: ignore[attr-defined]

    def merge(self, arrivals: Sequence[Arrival], view: View) -> MergeResult:
        """Train the arrivals that delivered, let the method merge them in job order, name the new model.

        Raises ContractError if the method gives no Merged.
        """
        version = ModelRef(SERVER, self.model.version + 1)
        used = _delivered(arrivals)
        if not self.trains:
            self.model = version if used else self.model
            return MergeResult(self.model)
        got = self._trained(used)
        key = self._key.at(Purpose.MERGE, view.round)
        merged = self.method.merge(self.state, self.weights(), got, view, self._tools, key)
        merged = self._promised(merged, Merged, "merge")
        self.state = merged.state
        if merged.model is not None:
            self._models.release(self.model)
            self._models.put(version, merged.model)
            self.model = version
        for arrival in used:
            self._pending.drop(arrival.job)
            self._models.release(arrival.job.base)
        self._forget_old_messages()
        spent_flops = 0.0 if self._tools is None else self._tools.take_flops()
        return MergeResult(self.model, merged.server_flops + spent_flops, merged.notes)

    def _promised(self, given: Any, cls: type[_T], function: str) -> _T:
        if not isinstance(given, cls):
            name = type(self.method).__name__
            raise ContractError(f"{name}.{function}() must return a {cls.__name__}, got {type(given).__name__}")
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
        base = self._models.get(_FIRST) if self.method.needs.peers else self.weights()
        personal = getattr(self.method, "personal", lambda base, own: base)
        devices = range(len(self._setting.samples))
        return self.backend.evaluate_personal({d: personal(base, self.memory.get(d)) for d in devices})

    def _trained(self, arrivals: Sequence[Arrival]) -> list[Message]:
        """Return the messages of the arrivals that delivered, in job order."""
        used = _delivered(arrivals)
        self._train([a.job for a in used])
        return [self._message(a) for a in used]

    def _train(self, jobs: Sequence[Job]) -> None:
        """Train jobs and what they build on, those that do not depend on each other in one call."""
        for batch in self._pending.batches(jobs):
            results = self.backend.train([self._assignment(job) for job in batch])
            for job, result in zip(batch, results, strict=True):
                self._pending.finish(job, result)
                self._remember(job, result)
                if job.task.home == "self":
                    self._messages[ModelRef(1 + job.device, job.id)] = self._message_of(job, result)

    def _assignment(self, job: Job) -> Assignment:
        received = [self._received(ref) for ref in job.received]
        own, base = self.memory.get(job.device), self._models.get(job.base)
        return Assignment(job.id, job.device, job.task, self._key_of(job), base, own, received, job.steps)

    def _remember(self, job: Job, result: Result) -> None:
        if result.keep is None:
            return
        if self.method.needs.keep == "no":
            raise ContractError(f"{type(self.method).__name__} keeps something on a device but needs.keep says 'no'")
        self.memory[job.device] = result.keep

    def _forget_old_messages(self) -> None:
        """Drop messages that nobody can fetch any more: their device has a newer one and no job starts from them."""
        newest = {ref.owner: ref for ref in sorted(self._messages)}
        needed = self._pending.received() | set(newest.values())
        self._messages = {ref: message for ref, message in self._messages.items() if ref in needed}

    def _received(self, ref: ModelRef) -> Message:
        if ref.version >= 0:
            return self._messages[ref]
        return Message(ref.owner - 1, -1, _UNTRAINED, self._models.get(_FIRST), 0, 0, 0, {})

    def _message(self, arrival: Arrival) -> Message:
        message = self._message_of(arrival.job, self._pending.result(arrival.job))
        return message._replace(staleness=arrival.staleness, weight=arrival.weight)

    def _message_of(self, job: Job, result: Result) -> Message:
        samples = int(self._setting.samples[job.device])
        return Message(job.device, job.id, job.task, result.body, samples, result.steps, 0, result.signals)

    def _key_of(self, job: Job) -> Key:
        if job.task.stretches:
            return self._key.at(Purpose.LOCAL, job.device, job.nth)
        return self._key.at(Purpose.PROBE, job.device, job.round)


def _delivered(arrivals: Sequence[Arrival]) -> list[Arrival]:
    return sorted((a for a in arrivals if a.outcome in DELIVERED), key=lambda a: a.job.id)
