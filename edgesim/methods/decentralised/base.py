"""What methods without a server share: whom a device hears and waits for, how it mixes models, what a run reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np

from edgesim.core.arrays import Ids
from edgesim.core.encoding import NAMED_BITS, Encoding
from edgesim.core.encoding import Values as Values
from edgesim.core.errors import ConfigError
from edgesim.core.limits import CountOrZero
from edgesim.core.local_sgd import LocalSGD
from edgesim.core.method import Aggregate, Finished, LocalState, Method, Needs, ServerContext
from edgesim.core.peer_graph import PeerGraph, awaited, reuse_order
from edgesim.core.rng import Key
from edgesim.core.task import Order, Plan, Task, Wait
from edgesim.core.update import ModelState, Update
from edgesim.core.view import View
from edgesim.learning.aggregate.mean import finite, mean_of_holders
from edgesim.learning.codec.transfer import on_cpu
from edgesim.learning.train.context import Context

Select: TypeAlias = Literal["lowest_index", "first_finish"]
Mixing: TypeAlias = Literal["uniform", "samples", "metropolis"]


# --- whom a device hears ----------------------------------------------------------------------------------------


def peer_plan(view: View, key: Key, task: Task, cap: int, select: Select) -> Plan:
    """Return orders for all idle devices: each fetches the models of its neighbours and reuses `cap` fresh ones.

    Fresh are the models of this round of neighbours that come earlier in one random order, drawn anew every round. A
    device waits for them before it mixes; with `cap` 0 nobody waits.
    "lowest_index": for the `cap` first in the order; of all others it takes the model from the start of the round.
    "first_finish": for whichever come first. As nobody knows who that will be, a device fetches the start-of-round
    models of all neighbours, so that it receives up to `cap` models more than it has neighbours; and more than that
    if others finish while the last of them is on its way.
    Source: DA-DPFL paper, dynamic aggregation with at most N awaited neighbours.
    """
    return plan_in_order(view, reuse_order(view.idle, view.peers.devices, key), task, cap, select)


def plan_in_order(view: View, rank: Ids, task: Task, cap: int, select: Select) -> Plan:
    """Return the orders of `peer_plan` for a given order: `rank`, the place of every device in it, shape (devices,)."""
    graph, first_come = view.peers, select == "first_finish" and cap > 0
    waits = awaited(graph, rank, None if first_come else cap)
    fetched = graph if first_come else graph.kept(~np.isin(_edges(graph), _edges(waits)))
    need = cap if first_come else None
    rows = zip(view.idle.tolist(), _rows(fetched, view.idle), _rows(waits, view.idle), strict=True)
    return Plan(tuple(Order(device, task, inputs, _wait(peers, need)) for device, inputs, peers in rows))


def plan_at_once(view: View, task: Task) -> Plan:
    """Return orders for all idle devices: each fetches the newest messages of its neighbours, and nobody waits."""
    return plan_in_order(view, np.full(view.peers.devices, -1), task, 0, "lowest_index")


def _edges(graph: PeerGraph) -> Ids:
    """Return a number for each edge."""
    edges: Ids = graph.targets * graph.devices + graph.sources
    return edges


def _rows(graph: PeerGraph, devices: Ids) -> list[tuple[int, ...]]:
    """Return the in-neighbours of devices."""
    sources, first = graph.sources.tolist(), graph.first.tolist()
    return [tuple(sources[first[device] : first[device + 1]]) for device in devices.tolist()]


def _wait(peers: tuple[int, ...], need: int | None) -> Wait:
    return Wait(peers, None if need is None else min(need, len(peers)))


# --- how it mixes -----------------------------------------------------------------------------------------------


def peer_task(view: View, sgd: LocalSGD, mixing: Mixing) -> Task:
    """Return the task of training from a mix of models; it names their weights, unless all are alike.

    Raises ConfigError if Metropolis weights are asked for and somebody is not heard by whom it hears.
    """
    weights = {"uniform": _no_weights, "samples": _samples, "metropolis": _metropolis}[mixing]
    return Task(start="device", local_sgd=(sgd,), mixing=weights(view))


def mixed(context: Context) -> LocalState:
    """Return the mean of the model that a device kept and those that it received, weighted as its task says.

    A device that never trained has the first model. Weights of peers whose models did not come, or are not finite, are
    shared out among the others in proportion.
    """
    kept = context.global_model if context.device_state is None else context.device_state
    return LocalState(context.copy(mean_of_holders(kept, *weighed(kept, context.received, context))))


def weighed(mine: ModelState, received: Sequence[Update], context: Context) -> tuple[list[Update], list[float]]:
    """Return what a device has and what it received, all that is finite, by device, and the weights of its task."""
    own = Update(context.device, -1, context.task, mine, 0, 0, 0, {})
    usable, _ = finite(sorted([own, *received], key=lambda message: message.device))
    mixing = context.task.mixing
    if (context.device, context.device) not in mixing:
        return usable, [1.0] * len(usable)
    return usable, [mixing[m.device, context.device] for m in usable]


def written(values: Values, bits: int) -> Encoding:
    """Return an encoding with so many bits, if its values do not say themselves how many."""
    return Encoding(values=values, bits=None if values in NAMED_BITS else bits)


def sent_and_kept(local: LocalState, context: Context) -> Finished:
    """Return what a device sends, which is also what it keeps."""
    return Finished(local.weights, local.weights)


def own_model(w: ModelState) -> ModelState:
    """Return the model of a device whose message is something else, for the mean that a run reports."""
    return on_cpu({kind: w[kind] for kind in ("params", "buffers")})


def mean_of_peers(state: Any, global_model: ModelState, updates: Sequence[Update], server: ServerContext) -> Aggregate:
    """Return the plain mean of the models of all devices that delivered: nobody has it, but it can be evaluated."""
    usable, _ = server.finite([_with_model(update) for update in server.finite(updates)[0]])
    left_out = len(updates) - len(usable)
    model = server.mean(global_model, usable, [1.0] * len(usable)) if usable else None
    return Aggregate(state, model, metrics={"left_out": float(left_out)} if left_out else {})


def _with_model(update: Update) -> Update:
    """Return an update with the model of its device as its body."""
    return update if update.own_model is None else update._replace(body=update.own_model)


def _no_weights(view: View) -> Mapping[tuple[int, int], float]:
    """Return no weights: all models count alike."""
    return {}


def _samples(view: View) -> Mapping[tuple[int, int], float]:
    """Return the local data sizes of senders by edge, those of devices themselves among them."""
    samples = view.setting.samples.tolist()
    graph: PeerGraph = view.peers
    heard = zip(graph.sources.tolist(), graph.targets.tolist(), strict=True)
    weights = {(source, target): float(samples[source]) for source, target in heard}
    return weights | {(device, device): float(samples[device]) for device in view.idle.tolist()}


def _metropolis(view: View) -> Mapping[tuple[int, int], float]:
    """Return the Metropolis weights of this round by edge, those of devices' own models among them."""
    graph: PeerGraph = view.peers
    check_mixing(graph, "metropolis")
    weights: dict[tuple[int, int], float] = {}
    for device in view.idle.tolist():
        of_peers, weights[device, device] = graph.metropolis(device)
        heard = zip(graph.of(device).tolist(), of_peers.tolist(), strict=True)
        weights.update(((source, device), weight) for source, weight in heard)
    return weights


def check_mixing(graph: PeerGraph, mixing: Mixing) -> None:
    """Raise ConfigError if Metropolis weights are asked for and somebody is not heard by whom it hears."""
    if mixing != "metropolis" or graph.symmetric:
        return
    edges = list(zip(graph.sources.tolist(), graph.targets.tolist(), strict=True))
    one_way = set(edges) - {(target, source) for source, target in edges}
    source, target = min(one_way)
    raise ConfigError(
        f"method.mixing: metropolis needs peers that hear each other, but device {target} hears device {source} "
        f"and not the other way round; use uniform, or other peers"
    )


def check_reuse(graph: PeerGraph, reuse: int | None, hint: str = "") -> None:
    """Raise ConfigError if devices are to wait for more neighbours than any of them hears; None: for all of them."""
    most = int(graph.degree.max())
    if reuse is not None and reuse > most:
        raise ConfigError(f"method.reuse: must be at most the {most} neighbours that a device hears, got {reuse}{hint}")


# --- a whole method but for what a device does ------------------------------------------------------------------


class OwnModelMethod(Method):
    """Methods whose devices keep models of their own, of which a run reports the mean."""

    def personal_model(self, global_model: ModelState, device_state: ModelState | None) -> ModelState:
        """Return the model that a device has, the first one if it has not changed it yet."""
        return global_model if device_state is None else device_state

    def aggregate(
        self, state: Any, global_model: ModelState, updates: Sequence[Update], server: ServerContext, key: Key
    ) -> Aggregate:
        """Return the plain mean of the devices' models."""
        return mean_of_peers(state, global_model, updates, server)


@dataclass(frozen=True, kw_only=True)
class MixingMethod(OwnModelMethod):
    """What methods of peers have in common; each adds what a device does and how far it goes in a round.

    `mixing`: "uniform" weighs all models that a device has alike, "samples" by their devices' data; "metropolis" is
    doubly stochastic, so that it keeps the mean of all devices where it is, on graphs in which peers hear each other.
    """

    mixing: Mixing = "uniform"  # fits every graph; doubly stochastic where all hear equally many and each other
    """Lian et al. ask for a symmetric, doubly stochastic W and leave the choice open. Equal weights fit every graph;
    `"metropolis"` is doubly stochastic on any graph of peers that hear each other; `"samples"` weighs by data sizes,
    as code released with the DA-DPFL paper does for others.
    """
    needs: ClassVar[Needs] = Needs(protocols=frozenset({"sync"}), device_state="computed", peers="any")

    def check_peers(self, graph: PeerGraph) -> None:
        """Raise ConfigError if the mixing does not fit who hears whom."""
        check_mixing(graph, self.mixing)


@dataclass(frozen=True, kw_only=True)
class PeerMethod(MixingMethod):
    """A method whose devices exchange models, which they may also wait for.

    `reuse`: for how many neighbours that train earlier in the round a device waits, chosen by `wait_select`.
    """

    reuse: CountOrZero = 0  # all train at once, as in the methods' own papers
    """Waiting for models of the round comes from DA-DPFL; the method's own paper has none."""
    wait_select: Select = "lowest_index"  # known when the round starts, so that nothing is sent in vain
    """DA-DPFL bounds the number of awaited neighbours and does not say which; `"first_finish"` costs more messages.
    """

    def check_peers(self, graph: PeerGraph) -> None:
        """Raise ConfigError if mixing or waiting does not fit who hears whom."""
        super().check_peers(graph)
        check_reuse(graph, self.reuse)

    def plan_stretch(self, view: View, key: Key, sgd: LocalSGD) -> Plan:
        """Ask every device that is there to mix and to train so much. Raises ConfigError as `check_peers`."""
        return peer_plan(view, key, peer_task(view, sgd, self.mixing), self.reuse, self.wait_select)
