"""Method, backend and state of a run, as the protocols see them. Weights are opaque here: no torch.

Requests of protocols become nodes of a graph: the score of a model, the facts of an aggregation, or a state from which
the method plans. Protocols get answers, and go on without waiting for them if the backend works in parallel. Cached
answers are not computed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import inf
from typing import Any, NamedTuple, TypeVar

from edgesim.core.backend import (
    Assignment,
    Backend,
    Classes,
    FuturesBackend,
    PersonalScoring,
    Result,
    Score,
    Scoring,
)
from edgesim.core.errors import ContractError
from edgesim.core.job import Completion, Job
from edgesim.core.learner import AggregationFacts, Answer, Ready, ServerStep
from edgesim.core.method import Aggregate, Method, ServerContext
from edgesim.core.rng import Key, Purpose
from edgesim.core.task import Plan, Task
from edgesim.core.update import FIRST_MODEL, SERVER, ModelRef, ModelState, Update
from edgesim.core.view import Setting, View, without_world
from edgesim.execution.dependencies import as_used, delivered, seen_in
from edgesim.execution.graph import Graph, Node
from edgesim.execution.memo import Memo
from edgesim.execution.model_store import ModelStore
from edgesim.execution.pending import Pending
from edgesim.execution.pending_answer import PendingAnswer
from edgesim.execution.report_nodes import ReportNodes

_T = TypeVar("_T")
UNTRAINED = Task("first", start="device")  # of a device's message before its first training


class _Aggregated(NamedTuple):
    """The result of an aggregation."""

    state: Any
    model: ModelState
    step: AggregationFacts


class FederatedLearner:
    """Runs a method on a backend. With a backend that does not train, the method's `aggregate` is never called."""

    def __init__(
        self,
        method: Method,
        backend: Backend,
        setting: Setting,
        key: Key,
        first: ModelState | None,
        tools: Any = None,
        memo: Memo | None = None,
        *,
        above: FederatedLearner | None = None,
        owner: int = SERVER,
        decides: Key | None = None,
    ) -> None:
        """`memo`: cached answers and values of earlier runs; None: nothing is looked up or stored.

        `above`: the aggregator above, which shares its graph and stores; `owner`: of the models of this one; `decides`:
        key of its random decisions; None: `key`.
        """
        self.method = method
        self.backend = backend
        self.trains = backend.trains
        self._setting = setting
        self._key = key
        self._tools = tools
        self._among_peers = method.needs.peers is not None
        self._messages: dict[ModelRef, Node] = {}  # updates that peers can fetch
        if above is None:
            self.memo = memo or Memo()
            self.graph = Graph(lambda: self.backend)
            self._first = self.graph.given(first, self.memo.name("first"))
            self._kept: dict[int, Node] = {}  # state kept on each device: a model state, or None
            self._models = ModelStore()
            self._reports = ReportNodes(self.graph, self.memo)
            self._pending = Pending(keeps=method.needs.device_state != "none")
        else:
            self.memo, self.graph, self._first = above.memo, above.graph, above._first
            self._kept, self._models = above._kept, above._models
            self._reports, self._pending = above._reports, above._pending
        self._best: tuple[float, Node] = (-inf, self._first)  # highest rank in a test, and the first model with it
        self.model = ModelRef(owner, 0)
        self._decides = decides or key
        self._plans_from = method.init(setting, self._decides.at(Purpose.INIT, 1))  # known without training
        self._state = self.graph.given(self._plans_from, self.memo.name("state", self._plans_from))
        self._reported = self._first  # the newest model for whose aggregation the answer has been asked
        self._newest: bytes | None = None  # identity of the newest aggregation
        self._round = 0  # of the newest aggregation
        if self.graph.value(self._first) is not None:
            self._models.put(self.model, self._first)
            if self._among_peers:
                self._models.pin(FIRST_MODEL)  # the start of devices that have not trained yet

    # --- what a run reports ---------------------------------------------------------------------------------------

    @property
    def state(self) -> Any:
        """The method's state."""
        return self.graph.value(self._state)

    @property
    def memory(self) -> dict[int, ModelState]:
        """The state kept on each device, without devices that keep nothing."""
        self.graph.make(self._kept.values())
        kept = {device: self.graph.value(node) for device, node in self._kept.items()}
        return {device: value for device, value in kept.items() if value is not None}

    def weights(self) -> ModelState:
        """Return the newest global model."""
        model: ModelState = self.graph.value(self._models.get(self.model))
        return model

    def saved_models(self) -> Mapping[str, Node]:
        """Return the nodes of the models for the run folder: of the newest reported round, and the best one."""
        return {"final": self._reported, "best": self._best[1]}

    # --- what protocols ask -----------------------------------------------------------------------------------------

    def plan(self, view: View) -> Plan:
        """Ask the method for the orders of the next exchange. Raises ContractError if it returns no plan."""
        key = self._decides.at(Purpose.PLAN, view.round, view.exchange)
        if not (self.trains and self.method.needs.feedback):
            return self._setting.routed(self._promised(self.method.plan(self._plans_from, view, key), Plan, "plan"))
        id_ = self.memo.name_of_plan(*self._self, self._state.id, *seen_in(view)) if self.memo.keeps else None
        plan: Plan | None = self.memo.look_up(id_)
        if plan is None:
            state = self.memo.small(self._state, self.graph)
            plan = self._setting.routed(self._promised(self.method.plan(state, view, key), Plan, "plan"))
            self.memo.keep(id_, plan, view.round)
        return plan

    def start(self, jobs: Sequence[Job]) -> None:
        """Pin the models from which jobs start; nothing is trained yet."""
        if not self.trains:
            return
        for job in jobs:
            if job.task.start == "device" and not self._among_peers:
                raise ContractError(f"{self.method.label}: a task has start 'device' but needs.peers is not set")
            self._models.pin(job.base)
            self._pending.add(job)

    def cancel(self, completions: Sequence[Completion]) -> None:
        """Forget jobs that did not deliver; they are trained only if a device or a peer keeps the result."""
        if not self.trains:
            return
        kept = self.method.needs.device_state == "computed"
        self._settle([c.job for c in completions if c.computed and (kept or c.job.task.start == "device")])
        for completion in completions:
            self._pending.drop(completion.job)
            self._models.release(completion.job.base)

    def on_exchange(self, completions: Sequence[Completion], view: View) -> None:
        """Show the method the updates of an exchange, if it looks at them before the next exchange of the round."""
        if not self.trains or not self.method.sees_exchanges:
            return
        used = delivered(completions)
        self._settle([c.job for c in used])
        key, server = self._decides.at(Purpose.MERGE, view.round, view.exchange), self._server(view)
        results = [self._pending.result(c.job) for c in used]

        def make(state: Any, *results: Result) -> Any:
            return self.method.on_exchange(state, self._updates(used, results), server, key)

        id_ = self.memo.name("exchange", *self._self, self._state.id, view.round, view.exchange, as_used(used, results))
        self._state = self.graph.computed(id_, make, self._state, *results)

    def aggregate(self, completions: Sequence[Completion], view: View) -> ServerStep:
        """Let the method aggregate the delivered updates in job order; return the name of the new model.

        Raises ContractError if the method returns no Aggregate.
        """
        version = self.model._replace(version=self.model.version + 1)
        used = delivered(completions)
        if not self.trains:
            self.model = version if used else self.model
            if used:
                jobs, setting = [each.job for each in used], self._server(view).setting
                self._plans_from = self.method.foreseen(self._plans_from, jobs, setting)
            return ServerStep(self.model, Ready(AggregationFacts(server_flops=self._foreseen_flops(used))))
        self._settle([c.job for c in used])
        self._round, model = view.round, self._models.get(self.model)
        node = self._aggregation(used, model, view)
        self._state = self.graph.computed(self.memo.name("state of", node.id), lambda made: made.state, node)
        new = self.graph.computed(self.memo.name("model of", node.id), lambda made: made.model, node)
        facts = self.graph.computed(node.id, lambda made: made.step, node)
        reports = self._reports.node([c.job for c in used], self._pending) if self._setting.reports else None
        # kept states too, so that late jobs are trained with those of the round and hold no old model in memory
        wanted = [facts, self._state, new, *self._kept.values(), *self._messages.values()]
        step: PendingAnswer[AggregationFacts] = self._ask(node.id, facts, wanted)
        if used or step.get().made_model:  # a method may make a model without any update
            self._models.release(self.model)
            self._models.put(version, new)
            self.model, model = version, new
        for completion in used:
            self._pending.drop(completion.job)
            self._models.release(completion.job.base)
        # a message is fetched only while it is its device's newest, or by jobs that start from it
        newest = {ref.owner: ref for ref in sorted(self._messages)}
        needed = self._pending.received() | set(newest.values())
        self._messages = {ref: message for ref, message in self._messages.items() if ref in needed}
        self._look_up_values(node)
        step.then(lambda _: self._report(model))
        return ServerStep(self.model, self._answer(step), self._reports.ask(reports, view.round, self.rounds_ahead))

    def _look_up_values(self, newest: Node) -> None:
        """Let nodes read values that earlier runs stored after this aggregation."""
        self._newest = newest.id
        self.memo.reuse(newest.id, self._nodes, self.method)

    def evaluate(self, model: ModelRef, classes: Classes = None) -> Answer[Mapping[str, Score]]:
        """Score a global model; without training return no scores. Remember the first with the highest rank over all
        classes."""
        if not self.trains:
            return Ready({})
        node = self._models.get(model)
        some = () if classes is None else (classes,)
        scored = self.graph.worked(self.memo.name("scores", node.id, *some), partial(Scoring, classes=classes), node)
        scores: PendingAnswer[Mapping[str, Score]] = self._ask(scored.id, scored, [scored])

        def compare(found: Mapping[str, Score]) -> None:
            if classes is None and "test" in found and found["test"].rank > self._best[0]:
                self._best = found["test"].rank, node

        scores.then(compare)
        return self._answer(scores)

    def evaluate_personal(self) -> Answer[Mapping[int, Score]]:
        """Score each device's model on its own test set: the global model, or the method's personal one."""
        if not self.trains:
            return Ready({})
        model = self._first if self._among_peers else self._models.get(self.model)
        kept, devices, part = dict(self._kept), self._setting.ids.tolist(), self._setting.part

        def work(weights: ModelState, *of_devices: ModelState | None) -> PersonalScoring:
            memory = dict(zip(kept, of_devices, strict=True))
            return PersonalScoring({d: self.method.personal_model(part(weights, d), memory.get(d)) for d in devices})

        id_ = self.memo.name("personal", model.id, {device: node.id for device, node in kept.items()})
        scored = self.graph.worked(id_, work, model, *kept.values())
        scores: PendingAnswer[Mapping[int, Score]] = self._ask(id_, scored, [scored])
        return self._answer(scores)

    @property
    def rounds_ahead(self) -> int:
        """Number of rounds that a protocol may go on without the answers of earlier rounds."""
        return self.backend.rounds_ahead if self.trains and isinstance(self.backend, FuturesBackend) else 0

    def save(self, settle: Callable[[], Any]) -> None:
        """Save the run if it is time to; `settle` gets all outstanding answers, which must come first."""
        if self.memo.is_due():
            settle()
            self._reports.get_all()
            self.memo.save(self._newest, self._nodes(), self.graph, self.method)

    @property
    def _self(self) -> list[Any]:
        """Parts that name an aggregator in identities: the path of its random key, and nothing for the server."""
        return [] if self.model.owner == SERVER else [self._decides.path]

    # --- nodes --------------------------------------------------------------------------------------------------------

    def _settle(self, jobs: Sequence[Job]) -> None:
        """Add the nodes of jobs that are certain now, after the nodes of the jobs on which they build."""

        def keep(result: Result, before: ModelState | None = None) -> ModelState | None:
            return before if result.new_device_state is None else result.new_device_state

        for job in (job for batch in self._pending.batches(jobs) for job in batch):
            base, kept = self._models.get(job.base), self._kept.get(job.device)
            received = [self._message(ref) for ref in job.received]
            trained = self._training(job, base, kept, received)
            self._pending.finish(job, trained)
            if self.method.needs.device_state != "none":
                before = [kept] if kept else []
                self._kept[job.device] = self.graph.computed(self.memo.name("kept", trained.id), keep, trained, *before)
            if job.task.start == "device":
                self._send(job, trained)

    def _send(self, job: Job, trained: Node) -> None:
        """Let peers fetch the update of a job, without the device's own model."""
        id_, ref = self.memo.name("message", trained.id), ModelRef(1 + job.device, job.id)
        self._messages[ref] = self.graph.computed(
            id_, lambda result: self._message_of(job, result)._replace(own_model=None), trained
        )

    def _training(self, job: Job, base: Node, kept: Node | None, received: Sequence[Node]) -> Node:
        key = self._key_of(job)

        def assignment(model: ModelState, state: ModelState | None, *messages: Update) -> Assignment:
            return Assignment(job.id, job.device, job.task, key, model, state, list(messages), job.steps, job.samples)

        kept = kept or self.graph.given(None)
        heard = [(ref.owner, message.id) for ref, message in zip(job.received, received, strict=True)]
        arrived = () if job.samples is None else (job.samples,)
        id_ = self.memo.name("update", job.device, job.task, key.path, base.id, kept.id, heard, job.steps, *arrived)
        return self.graph.trained(id_, assignment, base, kept, *received, turn=self.model.version)

    def _aggregation(self, used: Sequence[Completion], model: Node, view: View) -> Node:
        """Return the node of an aggregation, an _Aggregated."""
        results = [self._pending.result(each.job) for each in used]
        what, flops = as_used(used, results), self._foreseen_flops(used)
        return self._aggregated(what, results, lambda *given: self._updates(used, given), model, view, flops)

    def _aggregated(
        self, what: Any, nodes: Sequence[Node], updates: Callable[..., Any], model: Node, view: View, foreseen: float
    ) -> Node:
        """Return the node of an aggregation of the updates that `updates` makes from the values of `nodes`.

        `what`: identity of the updates; `foreseen`: FLOPs of the aggregation that are known without weights.
        """
        key, server = self._decides.at(Purpose.MERGE, view.round), self._server(view)

        def make(state: Any, old: ModelState, *values: Any) -> _Aggregated:
            aggregate = self.method.aggregate(state, old, updates(*values), server, key)
            aggregate = self._promised(aggregate, Aggregate, "aggregate")
            flops = foreseen + aggregate.server_flops + (0.0 if self._tools is None else self._tools.take_flops())
            step = AggregationFacts(aggregate.model is not None, flops, aggregate.metrics)
            return _Aggregated(aggregate.state, old if aggregate.model is None else aggregate.model, step)

        id_ = self.memo.name("aggregate", *self._self, self._state.id, model.id, view.round, what)
        return self.graph.computed(id_, make, self._state, model, *nodes)

    def _foreseen_flops(self, used: Sequence[Completion]) -> float:
        """Return the FLOPs of an aggregation of these updates that are known without weights."""
        return self.method.merge_flops_of([each.job.task for each in used], self._setting) if used else 0.0

    def _ask(self, id_: bytes | None, node: Node, wanted: Sequence[Node]) -> PendingAnswer[Any]:
        """Return the answer with a node's value: cached, or computed with the nodes `wanted`."""
        known = self.memo.look_up(id_)
        if known is None:
            self.graph.want(wanted)
            self.graph.go_on()
        return PendingAnswer(self.graph, self.memo, id_, self._round, known, node)

    def _answer(self, asked: Answer[_T]) -> Answer[_T]:
        """Return an answer, computed at once unless the backend works in parallel."""
        if not self.rounds_ahead:
            asked.get()
        return asked

    def _report(self, model: Node) -> None:
        self._reported = model

    def _nodes(self) -> list[Node]:
        """Return all nodes on which later nodes may build."""
        return [
            self._state,
            self._best[1],
            self._reported,
            *self._models,
            *self._kept.values(),
            *self._messages.values(),
            *self._pending.results.values(),
        ]

    def _message(self, ref: ModelRef) -> Node:
        """Return the node of the message that a peer can fetch."""
        if ref.version >= 0:
            return self._messages[ref]
        return self.graph.computed(
            self._first.id,
            lambda first: Update(ref.owner - 1, -1, UNTRAINED, first, 0, 0, 0, {}),
            self._models.get(FIRST_MODEL),
        )

    # --- what methods are given ---------------------------------------------------------------------------------------

    def _server(self, view: View) -> ServerContext:
        setting = view.setting if self.method.needs.clock else without_world(view.setting, self.method.label)
        return ServerContext(setting, view.round, self._tools)

    def _updates(self, used: Sequence[Completion], results: Sequence[Result]) -> list[Update]:
        return [
            self._message_of(each.job, result)._replace(staleness=each.staleness, weight=each.weight)
            for each, result in zip(used, results, strict=True)
        ]

    def _message_of(self, job: Job, result: Result) -> Update:
        if result.new_device_state is not None and self.method.needs.device_state == "none":
            raise ContractError(f"{self.method.label} keeps something on a device but needs.device_state says 'none'")
        return Update(
            job.device,
            job.id,
            job.task,
            result.body,
            int(self._setting.samples[job.device]) if job.samples is None else job.samples,
            result.steps,
            staleness=0,
            statistics=result.statistics,
            own_model=result.own_model,
        )

    def _key_of(self, job: Job) -> Key:
        if job.task.local_sgd:
            return self._key.at(Purpose.LOCAL, job.device, job.nth)
        return self._key.at(Purpose.PROBE, job.device, job.round)

    def _promised(self, given: Any, cls: type[_T], function: str) -> _T:
        if not isinstance(given, cls):
            wanted = f"{'an' if cls.__name__[0] in 'AEIOU' else 'a'} {cls.__name__}"
            raise ContractError(f"{self.method.label}.{function}() must return {wanted}, got {type(given).__name__}")
        return given
