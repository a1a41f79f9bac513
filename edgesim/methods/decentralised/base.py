"""Base of methods without a server: neighbours to hear and to wait for, mixing of models, and the reported model."""

from __future__ import annotations

from collections.abc import Sequence
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
from edgesim.core.model_state import model_in
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


# --- neighbours that a device hears -----------------------------------------------------------------------------


def peer_plan(view: View, key: Key, task: Task, cap: int, select: Select) -> Plan:
    """Return orders for all idle devices: each fetches the models of its neighbours and reuses `cap` fresh ones.

    One random order of devices is drawn anew every round. The fresh models of a device are the models of this round
    from neighbours earlier in the order. The device waits for them before it mixes. With `cap` 0 no device waits.
    "lowest_index": it waits for the first `cap` neighbours in the order, and takes the start-of-round models of all
    others.
    "first_finish": it waits for the first `cap` fresh models to arrive. As these are not known in advance, the device
    fetches the start-of-round models of all neighbours. It therefore receives up to `cap` models more than it has
    neighbours, and more still if other neighbours finish while the last awaited model is in transit.
    Source: DA-DPFL paper, dynamic aggregation with at most N awaited neighbours.
    """
    return plan_in_order(view, reuse_order(view.idle, view.peers.devices, key), task, cap, select)


def plan_in_order(view: View, rank: Ids, task: Task, cap: int, select: Select) -> Plan:
    """Return the orders of `peer_plan` for a given order of devices: `rank`, the place of each, shape (devices,)."""
    graph, first_come = view.peers, select == "first_finish" and cap > 0
    waits = awaited(graph, rank, None if first_come else cap)
    fetched = graph if first_come else graph.kept(~np.isin(_edges(graph), _edges(waits)))
    need = cap if first_come else None
    orders = []
    for device, inputs, peers in zip(
        view.idle.tolist(), _rows(fetched, view.idle), _rows(waits, view.idle), strict=True
    ):
        wait = Wait(peers, None if need is None else min(need, len(peers)))
        orders.append(Order(device, task, inputs, wait))
    return Plan(tuple(orders))


def plan_at_once(view: View, task: Task) -> Plan:
    """Return orders for all idle devices: each fetches the newest messages of its neighbours without waiting."""
    return plan_in_order(view, np.full(view.peers.devices, -1), task, 0, "lowest_index")


def _edges(graph: PeerGraph) -> Ids:
    """Return a unique number for each edge."""
    edges: Ids = graph.targets * graph.devices + graph.sources
    return edges


def _rows(graph: PeerGraph, devices: Ids) -> list[tuple[int, ...]]:
    """Return the in-neighbours of each device."""
    sources, first = graph.sources.tolist(), graph.first.tolist()
    return [tuple(sources[first[device] : first[device + 1]]) for device in devices.tolist()]


# --- mixing of models -------------------------------------------------------------------------------------------


def peer_task(view: View, sgd: LocalSGD, mixing: Mixing) -> Task:
    """Return the task of training from a mix of models, with their weights by edge unless all are equal.

    A device's weight of its own model has the edge from the device to itself. Raises ConfigError if Metropolis weights
    are asked for and a device hears a peer that does not hear it.
    """
    graph: PeerGraph = view.peers
    weights: dict[tuple[int, int], float] = {}
    if mixing == "samples":  # the local data sizes of senders
        samples = view.setting.samples.tolist()
        edges = zip(graph.sources.tolist(), graph.targets.tolist(), strict=True)
        weights = {(source, target): float(samples[source]) for source, target in edges}
        weights |= {(device, device): float(samples[device]) for device in view.idle.tolist()}
    elif mixing == "metropolis":
        check_mixing(graph, mixing)
        for device in view.idle.tolist():
            of_peers, weights[device, device] = graph.metropolis(device)
            heard = zip(graph.of(device).tolist(), of_peers.tolist(), strict=True)
            weights.update(((source, device), weight) for source, weight in heard)
    return Task(start="device", local_sgd=(sgd,), mixing=weights)


def mixed(context: Context) -> LocalState:
    """Return the mean of the model that a device kept and the received models, with the weights of its task.

    A device that never trained has the first model. The weights of models that did not arrive or are not finite are
    distributed over the other models in proportion.
    """
    kept = context.global_model if context.device_state is None else context.device_state
    return LocalState(context.copy(mean_of_holders(kept, *weighed(kept, context.received, context))))


def weighed(mine: ModelState, received: Sequence[Update], context: Context) -> tuple[list[Update], list[float]]:
    """Return the finite models among the device's own and the received ones, by device, and their weights."""
    own = Update(context.device, -1, context.task, mine, 0, 0, 0, {})
    usable, _ = finite(sorted([own, *received], key=lambda message: message.device))
    mixing = context.task.mixing
    if (context.device, context.device) not in mixing:
        return usable, [1.0] * len(usable)
    return usable, [mixing[m.device, context.device] for m in usable]


def written(values: Values, bits: int) -> Encoding:
    """Return the encoding of these values with `bits` bits, unless the name of the values fixes their bits."""
    return Encoding(values=values, bits=None if values in NAMED_BITS else bits)


def sent_and_kept(local: LocalState, context: Context) -> Finished:
    """Return a result in which a device sends its model and keeps the same model."""
    return Finished(local.weights, local.weights)


def own_model(w: ModelState) -> ModelState:
    """Return a copy of a device's model on the CPU for the reported mean, where its message is something else."""
    return on_cpu(model_in(w))


def mean_of_peers(state: Any, global_model: ModelState, updates: Sequence[Update], server: ServerContext) -> Aggregate:
    """Return the plain mean of the models of all devices that delivered. No device has it, but it can be evaluated."""
    models = [
        update if update.own_model is None else update._replace(body=update.own_model)
        for update in server.finite(updates)[0]
    ]
    usable, _ = server.finite(models)
    left_out = len(updates) - len(usable)
    model = server.mean(global_model, usable, [1.0] * len(usable)) if usable else None
    return Aggregate(state, model, metrics={"left_out": float(left_out)} if left_out else {})


def check_mixing(graph: PeerGraph, mixing: Mixing) -> None:
    """Raise ConfigError if Metropolis weights are asked for and a device hears a peer that does not hear it."""
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
    """Raise ConfigError if `reuse` exceeds the largest number of neighbours of a device. None: all neighbours."""
    most = int(graph.degree.max())
    if reuse is not None and reuse > most:
        raise ConfigError(f"method.reuse: must be at most the {most} neighbours that a device hears, got {reuse}{hint}")


# --- base classes of methods ------------------------------------------------------------------------------------


class OwnModelMethod(Method):
    """Base of methods whose devices keep models of their own. A run reports the mean of these models."""

    uses_kept_model: ClassVar[bool] = True

    def aggregate(
        self, state: Any, global_model: ModelState, updates: Sequence[Update], server: ServerContext, key: Key
    ) -> Aggregate:
        """Return the plain mean of the devices' models."""
        return mean_of_peers(state, global_model, updates, server)


@dataclass(frozen=True, kw_only=True)
class MixingMethod(OwnModelMethod):
    """Base of methods whose devices mix models with peers. Subclasses add the task of a device in a round.

    `mixing`: "uniform" weighs all models of a device equally, "samples" by the data sizes of their devices.
    "metropolis" is doubly stochastic on graphs in which peers hear each other, so that the mean of all devices stays
    the same.
    """

    mixing: Mixing = "uniform"  # fits every graph; doubly stochastic where all hear equally many and each other
    """Lian et al. ask for a symmetric, doubly stochastic W and leave the choice open. Equal weights fit every graph.
    `"metropolis"` is doubly stochastic on any graph of peers that hear each other. `"samples"` weighs by data sizes, as
    code released with the DA-DPFL paper does for other methods.
    """
    needs: ClassVar[Needs] = Needs(protocols=frozenset({"sync"}), device_state="computed", peers="any")

    def check_peers(self, graph: PeerGraph) -> None:
        """Raise ConfigError if the mixing does not fit the graph of peers."""
        check_mixing(graph, self.mixing)


@dataclass(frozen=True, kw_only=True)
class PeerMethod(MixingMethod):
    """Base of methods whose devices exchange models and may wait for models of the same round.

    `reuse`: number of neighbours earlier in the round that a device waits for, chosen by `wait_select`.
    """

    reuse: CountOrZero = 0  # 0: all devices train at once, as in the methods' own papers
    """Waiting for models of the round comes from DA-DPFL. The method's own paper has none."""
    wait_select: Select = "lowest_index"  # the default is known when the round starts, so no message is sent in vain
    """DA-DPFL bounds the number of awaited neighbours and does not specify which. `"first_finish"` costs more messages.
    """

    def check_peers(self, graph: PeerGraph) -> None:
        """Raise ConfigError if mixing or waiting does not fit the graph of peers."""
        super().check_peers(graph)
        check_reuse(graph, self.reuse)

    def plan_stretch(self, view: View, key: Key, sgd: LocalSGD) -> Plan:
        """Ask every reachable device to mix and to train `sgd`. Raises ConfigError as `check_peers`."""
        return peer_plan(view, key, peer_task(view, sgd, self.mixing), self.reuse, self.wait_select)
