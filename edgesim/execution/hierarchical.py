"""Learning over a tree of aggregators: edge servers run the method, and the server averages their models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from edgesim.core.job import DELIVERED, Completion, Job
from edgesim.core.learner import AggregationFacts, ServerStep
from edgesim.core.method import ServerContext
from edgesim.core.rng import Purpose
from edgesim.core.task import Plan, Task
from edgesim.core.update import AVERAGED, SERVER, ModelRef, ModelState, Update
from edgesim.core.view import View
from edgesim.execution.graph import Node
from edgesim.execution.learner import FederatedLearner
from edgesim.execution.pending_answer import PendingAnswer

ORDER = Task(name="edge")  # the server's order to an edge server: the whole model there and back, no training steps


class _Handed(NamedTuple):
    """The model that an edge server sent for an order, and the model that it had received; None without training."""

    model: Node | None
    base: Node | None
    samples: int


class EdgeLearner(FederatedLearner):
    """The method at one edge server. It shares devices, models and graph with the server and all other edge servers."""

    def __init__(self, cloud: CloudLearner, index: int, node: int) -> None:
        """`index`: its place among edge servers; the first one draws the same random numbers as a single server."""
        key = cloud._key
        super().__init__(
            cloud.method,
            cloud.backend,
            cloud._setting,
            key,
            None,
            cloud._tools,
            above=cloud,
            owner=node,
            decides=key.at(Purpose.EDGES, index) if index else key,
        )
        self.facts: list[Node] = []  # of its aggregations since the last aggregation of the server
        self._cloud = cloud

    def adopt(self, model: ModelRef) -> None:
        """Replace its model by the server's."""
        if self.trains:
            node = self._models.get(model)
            self._models.release(self.model)
            self._models.put(self.model, node)

    def cancel(self, completions: Sequence[Completion]) -> None:
        """Forget jobs that did not deliver, except jobs whose update goes to another edge server."""
        super().cancel([each for each in completions if each.outcome != "moved" or each.job.to is None])

    def save(self, settle: Callable[[], Any]) -> None:
        """Save nothing: the server does."""

    @property
    def newest(self) -> Node | None:
        """The node of its newest model; None without training."""
        return self._models.get(self.model) if self.trains else None

    def _look_up_values(self, newest: Node) -> None:
        """Note the facts of the aggregation, which the server's aggregation will report."""
        self.facts.append(self.graph.computed(self.memo.name("facts", newest.id), lambda made: made.step, newest))
        self._cloud._look_up_values(newest)


class CloudLearner(FederatedLearner):
    """The server above edge servers: its plans are orders to them, and it aggregates their models.

    If it waits for edge servers in rounds, the new model is the mean of the models received, weighted by samples.
    If it takes models as they arrive (`absolute` False), each moves the server's model by its difference to the model
    from which the edge server started, weighted by its share of the samples of all edge servers.
    Source: Liu et al., "Client-Edge-Cloud Hierarchical Federated Learning" (2020), algorithm 1, for the mean.
    """

    absolute = True
    _samples_of_edges: Sequence[int] = ()

    def set_up(self, absolute: bool, samples_of_edges: Sequence[int]) -> None:
        """Set the way of aggregation; `samples_of_edges`: samples of all devices of each edge server."""
        self.absolute, self._samples_of_edges = absolute, samples_of_edges
        self._handed: dict[int, _Handed] = {}
        self._edges: list[EdgeLearner] = []

    def edge(self, index: int, node: int) -> EdgeLearner:
        """Create the learner of an edge server; calls must be in the order of `index`."""
        self._edges.append(EdgeLearner(self, index, node))
        return self._edges[-1]

    def plan(self, view: View) -> Plan:
        """Return orders to the edge servers that the scenario's selection chooses."""
        return Plan.of_one_task(view.choose(self._key.at(Purpose.EDGES, view.round, view.exchange)).tolist(), ORDER)

    def start(self, jobs: Sequence[Job]) -> None:
        """Pin the models that go to edge servers."""
        if self.trains:
            for job in jobs:
                self._models.pin(job.base)

    def hand_in(self, job: Job, edge: EdgeLearner, samples: int) -> None:
        """Take the model that an edge server sends for an order; `samples`: the samples of its training."""
        base = self._models.get(job.base) if self.trains else None
        self._handed[job.id] = _Handed(edge.newest, base, samples)

    def cancel(self, completions: Sequence[Completion]) -> None:
        """Forget orders that delivered no model."""
        for completion in completions:
            self._handed.pop(completion.job.id, None)
            if self.trains:
                self._models.release(completion.job.base)

    def on_exchange(self, completions: Sequence[Completion], view: View) -> None:
        """Do nothing: a round is a single order."""

    def aggregate(self, completions: Sequence[Completion], view: View) -> ServerStep:
        """Average the models of edge servers that were trained on samples; report the facts of their aggregations."""
        came = sorted((each for each in completions if each.outcome in DELIVERED), key=lambda each: each.job.id)
        handed = [self._handed.pop(each.job.id) for each in came]
        used = [(each, model) for each, model in zip(came, handed, strict=True) if model.samples]
        if not self.trains:
            self.model = self.model._replace(version=self.model.version + bool(used))
            return ServerStep(self.model)
        old = self._models.get(self.model)
        made = self._mean(used, old, view)
        has_model = bool(used)
        told = [(edge, node) for edge, each in enumerate(self._edges) for node in each.facts]
        for each in self._edges:
            each.facts.clear()

        def make_facts(_: ModelState, *facts: AggregationFacts) -> AggregationFacts:
            metrics = {
                f"edge{edge}.{name}": value
                for (edge, _), each in zip(told, facts, strict=True)
                for name, value in each.metrics.items()
            }
            return AggregationFacts(has_model, 0.0, metrics)

        id_ = self.memo.name("facts of edges", made.id, [(edge, node.id) for edge, node in told], has_model)
        facts = self.graph.computed(id_, make_facts, made, *(node for _, node in told))
        wanted = [facts, made, *(edge._state for edge in self._edges), *self._kept.values()]
        step: PendingAnswer[AggregationFacts] = self._ask(facts.id, facts, wanted)
        self._round = view.round
        if used:
            self._models.release(self.model)
            self.model = ModelRef(SERVER, self.model.version + 1)
            self._models.put(self.model, made)
        for completion in came:
            self._models.release(completion.job.base)
        self._look_up_values(facts)
        step.then(lambda _: self._report(made))
        return ServerStep(self.model, self._answer(step))

    def _nodes(self) -> list[Node]:
        handed = [node for each in self._handed.values() for node in (each.model, each.base) if node is not None]
        of_edges = [node for edge in self._edges for node in (edge._state, *edge.facts)]
        return [*super()._nodes(), *handed, *of_edges]

    def _mean(self, used: Sequence[tuple[Completion, _Handed]], old: Node, view: View) -> Node:
        if not used:
            return old
        absolute, weights = self.absolute, [each.weight * handed.samples for each, handed in used]
        absent = 0.0 if absolute else max(0.0, float(sum(self._samples_of_edges)) - sum(weights))
        pairs = [node for _, handed in used for node in (handed.model, handed.base) if node is not None]
        server = self._server(view)

        def make(model: ModelState, *states: ModelState) -> ModelState:
            bodies = (
                states[::2] if absolute else [_moved(model, *pair) for pair in zip(*[iter(states)] * 2, strict=True)]
            )
            updates = [
                Update(each.job.device, each.job.id, each.job.task, body, handed.samples, 0, each.staleness, {})
                for (each, handed), body in zip(used, bodies, strict=True)
            ]
            counts = [*weights, absent] if absent else weights
            still = [updates[0]._replace(body=model)] if absent else []
            return _mean_of_models(model, [*updates, *still], counts, server)

        named = [(each.job.device, weight) for (each, _), weight in zip(used, weights, strict=True)]
        id_ = self.memo.name("mean of edges", old.id, absolute, absent, named, [node.id for node in pairs])
        return self.graph.computed(id_, make, old, *pairs)


def _mean_of_models(
    model: ModelState, updates: Sequence[Update], weights: Sequence[float], server: ServerContext
) -> ModelState:
    """Return the weighted mean of models, with the tensors that methods add, such as SCAFFOLD's control variate."""
    known = [
        each._replace(body={kind: each.body[kind] for kind in sorted(AVERAGED) if kind in each.body})
        for each in updates
    ]
    mean = dict(server.mean(model, known, weights))
    for kind in sorted({kind for each in updates for kind in each.body} - AVERAGED):
        having = [(each.body[kind], weight) for each, weight in zip(updates, weights, strict=True) if kind in each.body]
        total = sum(weight for _, weight in having)
        mean[kind] = {
            name: (sum(tensors[name].double() * weight for tensors, weight in having) / total).to(first.dtype)
            for name, first in having[0][0].items()
        }
    return mean


def _moved(model: ModelState, body: ModelState, base: ModelState) -> ModelState:
    """Return model + (body - base), for tensors that `base` has."""
    if model is base:
        return body
    return {
        kind: {
            name: model[kind][name] + (tensor - base[kind][name]) if name in base.get(kind, {}) else tensor
            for name, tensor in tensors.items()
        }
        for kind, tensors in body.items()
    }
