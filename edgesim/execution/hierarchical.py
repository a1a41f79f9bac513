"""Learning over a tree of aggregators: edge servers run the method, and those above them average models."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from edgesim.core.job import DELIVERED, Completion, Job
from edgesim.core.learner import AggregationFacts, Answer, Ready, ServerStep
from edgesim.core.method import ServerContext
from edgesim.core.rng import Purpose
from edgesim.core.task import Plan, Task
from edgesim.core.update import AVERAGED, ModelRef, ModelState, Update
from edgesim.core.view import View
from edgesim.execution.graph import Node
from edgesim.execution.learner import FederatedLearner
from edgesim.execution.pending_answer import PendingAnswer

ORDER = Task(name="edge")  # an order to an edge server: the whole model there and back, no training steps


class _Handed(NamedTuple):
    """The model that an edge server sent for an order, and the model that it had received; None without training."""

    model: Node | None
    base: Node | None
    samples: int


class LearnerBelow(FederatedLearner):
    """A learner below the server's. It shares devices, models and graph with the server and all others below it."""

    def __init__(self, cloud: CloudLearner, index: int, node: int) -> None:
        """`index`: its place among the servers of all tiers; the first draws the random numbers of a single server."""
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
        self._cloud = cloud

    def adopt(self, model: ModelRef, name: ModelRef) -> None:
        """Replace its model by one of the aggregator above, under the name `name`."""
        if self.trains:
            node = self._models.get(model)
            self._models.release(self.model)
            self._models.put(name, node)
        self.model = name

    def save(self, settle: Callable[[], Any]) -> None:
        """Save nothing: the server does."""

    @property
    def newest(self) -> Node | None:
        """The node of its newest model; None without training."""
        return self._models.get(self.model) if self.trains else None


class EdgeLearner(LearnerBelow):
    """The method at one edge server."""

    def __init__(self, cloud: CloudLearner, index: int, node: int) -> None:
        """The arguments are those of `LearnerBelow`."""
        super().__init__(cloud, index, node)
        self.facts: list[Node] = []  # of its aggregations since the last aggregation of the server

    def cancel(self, completions: Sequence[Completion]) -> None:
        """Forget jobs that did not deliver, except jobs whose update goes to another edge server."""
        super().cancel([each for each in completions if each.outcome != "moved" or each.job.to is None])

    def _look_up_values(self, newest: Node) -> None:
        """Note the facts of the aggregation, which the server's aggregation will report."""
        self.facts.append(self.graph.computed(self.memo.name("facts", newest.id), lambda made: made.step, newest))
        self._cloud._look_up_values(newest)


class AveragingLearner(FederatedLearner, ABC):
    """An aggregator above edge servers: its plans are orders to them, and it aggregates their models.

    If it waits for edge servers in rounds, the new model is the mean of the models received, weighted by samples.
    If it takes models as they arrive (`absolute` False), each moves the aggregator's model by its difference to the
    model from which the edge server started, weighted by its share of the samples of all edge servers.
    Source: Liu et al., "Client-Edge-Cloud Hierarchical Federated Learning" (2020), algorithm 1, for the mean.
    """

    def merge_as(self, absolute: bool, samples_of_edges: Sequence[int]) -> None:
        """Set the way of aggregation; `samples_of_edges`: samples of all devices of each edge server."""
        self.absolute, self._samples_of_edges = absolute, samples_of_edges
        self.handed: dict[int, _Handed] = {}  # models that have come and are not aggregated yet, by order

    def plan(self, view: View) -> Plan:
        """Return orders to the edge servers that the scenario's selection chooses."""
        return Plan.of_one_task(view.choose(self._decides.at(Purpose.EDGES, view.round, view.exchange)).tolist(), ORDER)

    def start(self, jobs: Sequence[Job]) -> None:
        """Pin the models that go to edge servers."""
        if self.trains:
            for job in jobs:
                self._models.pin(job.base)

    def hand_in(self, job: Job, edge: LearnerBelow, samples: int) -> None:
        """Take the model that an edge server sends for an order; `samples`: the samples of its training."""
        base = self._models.get(job.base) if self.trains else None
        self.handed[job.id] = _Handed(edge.newest, base, samples)

    def cancel(self, completions: Sequence[Completion]) -> None:
        """Forget orders that delivered no model."""
        for completion in completions:
            self.handed.pop(completion.job.id, None)
            if self.trains:
                self._models.release(completion.job.base)

    def on_exchange(self, completions: Sequence[Completion], view: View) -> None:
        """Do nothing: a round is a single order."""

    def aggregate(self, completions: Sequence[Completion], view: View) -> ServerStep:
        """Average the models of edge servers that were trained on samples."""
        came = sorted((each for each in completions if each.outcome in DELIVERED), key=lambda each: each.job.id)
        handed = [self.handed.pop(each.job.id) for each in came]
        used = [(each, model) for each, model in zip(came, handed, strict=True) if model.samples]
        version = self.model._replace(version=self.model.version + bool(used))
        if not self.trains:
            self.model = version
            return ServerStep(version)
        made = self._mean(used, self._models.get(self.model), view)
        newest, facts = self._facts(made, bool(used))
        self._round = view.round
        if used:
            self._models.release(self.model)
            self.model = version
            self._models.put(version, made)
        for completion in came:
            self._models.release(completion.job.base)
        self._look_up_values(newest)
        return ServerStep(self.model, self._answer(facts))

    @abstractmethod
    def _facts(self, made: Node, has_model: bool) -> tuple[Node, Answer[AggregationFacts]]:
        """Return the node that names an aggregation, and its facts; `made`: of the mean."""

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
        id_ = self.memo.name("mean of edges", *self._self, old.id, absolute, absent, named, [node.id for node in pairs])
        return self.graph.computed(id_, make, old, *pairs)


class TierLearner(LearnerBelow, AveragingLearner):
    """A server above edge servers and below the server: it adopts a model, and averages the models that come to it."""

    def _facts(self, made: Node, has_model: bool) -> tuple[Node, Answer[AggregationFacts]]:
        """Return facts that need no value: the mean is computed when those below train from it, or the server's is."""
        return made, Ready(AggregationFacts(has_model))

    def _look_up_values(self, newest: Node) -> None:
        self._cloud._look_up_values(newest)


class CloudLearner(AveragingLearner):
    """The server above all aggregators."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._edges: list[EdgeLearner] = []
        self._tiers: list[TierLearner] = []

    def edge(self, index: int, node: int) -> EdgeLearner:
        """Create the learner of an edge server; calls must be in the order of `index`."""
        self._edges.append(EdgeLearner(self, index, node))
        return self._edges[-1]

    def above_edges(self, index: int, node: int) -> TierLearner:
        """Create the learner of a server above edge servers; `index`: its place among the servers of all tiers."""
        self._tiers.append(TierLearner(self, index, node))
        return self._tiers[-1]

    def _facts(self, made: Node, has_model: bool) -> tuple[Node, Answer[AggregationFacts]]:
        """Return the facts of the aggregations of edge servers since the last one here."""
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
        step.then(lambda _: self._report(made))
        return facts, step

    def _nodes(self) -> list[Node]:
        above = [handed for each in (self, *self._tiers) for handed in each.handed.values()]
        handed = [node for each in above for node in (each.model, each.base) if node is not None]
        of_edges = [node for edge in self._edges for node in (edge._state, *edge.facts)]
        return [*super()._nodes(), *handed, *of_edges]


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
