"""Method, backend and state of a run, as the coordinators see them. Weights are opaque here: no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from edgesim.contracts import (
    SERVER,
    Arrival,
    Assignment,
    Backend,
    Bundle,
    Job,
    MergeResult,
    Message,
    Method,
    ModelRef,
    Plan,
    Result,
    Score,
    Setting,
    View,
)
from edgesim.errors import ContractError
from edgesim.rng import Key, Purpose
from edgesim.store import ModelStore


class FederatedLearner:
    """Runs a method on a backend. A backend that does not train never calls the method's `merge`."""

    def __init__(
        self, method: Method, backend: Backend, setting: Setting, key: Key, first: Bundle | None, tools: Any = None
    ) -> None:
        self.method = method
        self.trains = backend.trains
        self.state = method.init(setting, key.at(Purpose.INIT, 1))
        self.memory: dict[int, Bundle] = {}  # what each device kept
        self.model = ModelRef(SERVER, 0)
        self.best: tuple[float, Bundle | None] = (-1.0, first)  # test accuracy and weights
        self._backend = backend
        self._setting = setting
        self._key = key
        self._tools = tools
        self._store = ModelStore()
        if first is not None:
            self._store.put(self.model, first)

    def weights(self) -> Bundle:
        """Return the newest global model."""
        return self._store.get(self.model)

    def plan(self, view: View) -> Plan:
        """Ask the method for the orders of the next exchange."""
        return self.method.plan(self.state, view, self._key.at(Purpose.PLAN, view.round, view.exchange))

    def start(self, jobs: Sequence[Job]) -> None:
        """Pin the models that jobs start from and hand the jobs to the backend; nothing is trained yet."""
        if not self.trains:
            return
        for job in jobs:
            self._store.pin(job.base)
            self._backend.submit(
                Assignment(
                    job.id, job.device, job.task, self._key_of(job), self._store.get(job.base),
                    self.memory.get(job.device),
                )
            )  # fmt: skip

    def cancel(self, arrivals: Sequence[Arrival]) -> None:
        """Forget jobs that did not deliver, untrained, unless the device's memory already changed."""
        if not self.trains:
            return
        trained = [a.job for a in arrivals if a.computed and self.method.needs.keep == "computed"]
        for job, result in zip(trained, self._collect(trained), strict=True):
            self._remember(job, result)
        done = {job.id for job in trained}
        rest = [a.job for a in arrivals if a.job.id not in done]
        self._backend.cancel([job.id for job in rest])
        for job in rest:
            self._store.release(job.base)

    def merge(self, arrivals: Sequence[Arrival], view: View) -> MergeResult:
        """Train the arrivals that are ok, let the method merge them in job order, name the new model."""
        version = ModelRef(SERVER, self.model.version + 1)
        used = sorted((a for a in arrivals if a.outcome == "ok"), key=lambda a: a.job.id)
        if not self.trains:
            self.model = version if used else self.model
            return MergeResult(self.model)
        jobs = [a.job for a in used]
        results = self._collect(jobs)
        for job, result in zip(jobs, results, strict=True):
            self._remember(job, result)
        got = [self._message(a, result) for a, result in zip(used, results, strict=True)]
        key = self._key.at(Purpose.MERGE, view.round)
        merged = self.method.merge(self.state, self.weights(), got, view, self._tools, key)
        self.state = merged.state
        if merged.model is not None:
            self._store.release(self.model)
            self._store.put(version, merged.model)
            self.model = version
        return MergeResult(self.model, merged.server_flops, merged.notes)

    def evaluate(self, model: ModelRef) -> Mapping[str, Score]:
        """Score a global model; without training there is nothing to score. Remembers the best one."""
        if not self.trains:
            return {}
        weights = self._store.get(model)
        scores = self._backend.evaluate(weights)
        if scores["test"].accuracy > self.best[0]:
            self.best = (scores["test"].accuracy, weights)
        return scores

    def _collect(self, jobs: Sequence[Job]) -> Sequence[Result]:
        results = self._backend.collect([job.id for job in jobs])
        for job in jobs:
            self._store.release(job.base)
        return results

    def _remember(self, job: Job, result: Result) -> None:
        if result.keep is None:
            return
        if self.method.needs.keep == "no":
            raise ContractError(f"{type(self.method).__name__} keeps something on a device but needs.keep says 'no'")
        self.memory[job.device] = result.keep

    def _message(self, arrival: Arrival, result: Result) -> Message:
        job = arrival.job
        return Message(
            device=job.device,
            job=job.id,
            task=job.task,
            body=result.body,
            samples=int(self._setting.samples[job.device]),
            steps=result.steps,
            staleness=arrival.staleness,
            signals=result.signals,
        )

    def _key_of(self, job: Job) -> Key:
        if job.task.stretches:
            return self._key.at(Purpose.LOCAL, job.device, job.nth)
        return self._key.at(Purpose.PROBE, job.device, job.round)
