"""What methods without a server share: whom a device hears and waits for, how it mixes models, what a run reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

import numpy as np
import torch
from annotated_types import Ge

from edgesim.contracts import (
    Bundle,
    Encoding,
    Ids,
    Merged,
    Message,
    Needs,
    Order,
    Plan,
    Setting,
    Stretch,
    Task,
    View,
    Wait,
)
from edgesim.encoding import NAMED_BITS
from edgesim.encoding import Values as Values
from edgesim.errors import ConfigError
from edgesim.learning.context import Context
from edgesim.learning.merge import finite, mean_of_holders
from edgesim.peering import PeerGraph, awaited, reuse_order
from edgesim.rng import Key

Select: TypeAlias = Literal["lowest_index", "first_finish"]
Mixing: TypeAlias = Literal["uniform", "samples", "metropolis"]

_SHOWN = "model"  # signal with a device's model


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


def peer_task(view: View, stretch: Stretch, mixing: Mixing) -> Task:
    """Return the task of training from a mix of models; its knobs hold the weights, unless all are alike.

    Raises ConfigError if Metropolis weights are asked for and somebody is not heard by whom it hears.
    """
    weights = {"uniform": _no_weights, "samples": _samples, "metropolis": _metropolis}[mixing]
    return Task(home="self", stretches=(stretch,), knobs=weights(view))


def mixed(base: Bundle, own: Bundle | None, context: Context) -> Bundle:
    """Return the mean of the model that a device kept and those that it received, weighted as its task says.

    A device that never trained has `base`, the first model. Weights of peers whose models did not come, or are not
    finite, are shared out among the others in proportion.
    """
    kept = base if own is None else own
    return context.copy(mean_of_holders(kept, *weighed(kept, context.received, context)))


def weighed(mine: Bundle, received: Sequence[Message], context: Context) -> tuple[list[Message], list[float]]:
    """Return what a device has and what it received, all that is finite, by device, and the weights of its task."""
    own = Message(context.device, -1, context.task, mine, 0, 0, 0, {})
    usable, _ = finite(sorted([own, *received], key=lambda message: message.device))
    knobs = context.task.knobs
    if edge(context.device, context.device) not in knobs:
        return usable, [1.0] * len(usable)
    return usable, [knobs[edge(m.device, context.device)] for m in usable]


def written(values: Values, bits: int) -> Encoding:
    """Return an encoding with so many bits, if its values do not say themselves how many."""
    return Encoding(values=values, bits=None if values in NAMED_BITS else bits)


def sent_and_kept(w: Bundle, context: Context) -> tuple[Bundle, Bundle, Mapping[str, Any]]:
    """Return what a device sends, which is also what it keeps, and no signals."""
    return w, w, {}


def shown(w: Bundle) -> Mapping[str, Any]:
    """Return signals with the model of a device whose message is something else, for the mean that a run reports.

    The model stays where it is: no link carries it, and no peer may look at it. As arrays, like all signals.
    """
    return {_SHOWN: {kind: {n: t.detach().cpu().numpy() for n, t in w[kind].items()} for kind in ("params", "buffers")}}


def mean_of_peers(state: Any, base: Bundle, got: Sequence[Message]) -> Merged:
    """Return the plain mean of the models of all devices that delivered: nobody has it, but it can be evaluated."""
    usable, _ = finite([_with_model(message) for message in finite(got)[0]])
    left_out = len(got) - len(usable)
    model = mean_of_holders(base, usable, [1.0] * len(usable)) if usable else None
    return Merged(state, model, notes={"left_out": float(left_out)} if left_out else {})


def _with_model(message: Message) -> Message:
    """Return a message with the model of its device as its body."""
    if _SHOWN not in message.signals:
        return message
    model = message.signals[_SHOWN]
    return message._replace(body={k: {n: torch.from_numpy(a) for n, a in ts.items()} for k, ts in model.items()})


def _no_weights(view: View) -> Mapping[str, float]:
    """Return no weights: all models count alike."""
    return {}


def _samples(view: View) -> Mapping[str, float]:
    """Return the local data sizes of senders by edge, those of devices themselves among them."""
    samples = view.setting.samples.tolist()
    graph: PeerGraph = view.peers
    heard = zip(graph.sources.tolist(), graph.targets.tolist(), strict=True)
    weights = {edge(source, target): float(samples[source]) for source, target in heard}
    return weights | {edge(device, device): float(samples[device]) for device in view.idle.tolist()}


def _metropolis(view: View) -> Mapping[str, float]:
    """Return the Metropolis weights of this round by edge, those of devices' own models among them."""
    graph: PeerGraph = view.peers
    check_mixing(graph, "metropolis")
    weights: dict[str, float] = {}
    for device in view.idle.tolist():
        of_peers, weights[edge(device, device)] = graph.metropolis(device)
        heard = zip(graph.of(device).tolist(), of_peers.tolist(), strict=True)
        weights.update((edge(source, device), weight) for source, weight in heard)
    return weights


def edge(source: int, target: int) -> str:
    """Return the name of the knob with the weight of one device's model for another."""
    return f"{source} to {target}"


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


@dataclass(frozen=True, kw_only=True)
class MixingMethod:
    """What methods of peers have in common; each adds what a device does and how far it goes in a round.

    `mixing`: "uniform" weighs all models that a device has alike, "samples" by their devices' data; "metropolis" is
    doubly stochastic, so that it keeps the mean of all devices where it is, on graphs in which peers hear each other.
    """

    mixing: Mixing = "uniform"  # fits every graph; doubly stochastic where all hear equally many and each other
    needs: ClassVar[Needs] = Needs(coordinators=frozenset({"sync"}), keep="computed", peers=True)

    def init(self, setting: Setting, key: Key) -> Any:
        """Return the empty state: devices keep their models themselves."""
        setting.cost.check(widths=0)
        return {}

    def check_peers(self, graph: PeerGraph) -> None:
        """Raise ConfigError if the mixing does not fit who hears whom."""
        check_mixing(graph, self.mixing)

    def personal(self, base: Bundle, own: Bundle | None) -> Bundle:
        """Return the model that a device trained last, the first one if it never trained."""
        return base if own is None else own

    def merge(self, state: Any, base: Bundle, got: Sequence[Message], view: View, tools: Any, key: Key) -> Merged:
        """Return the plain mean of the devices' models."""
        return mean_of_peers(state, base, got)


@dataclass(frozen=True, kw_only=True)
class PeerMethod(MixingMethod):
    """A method whose devices exchange models, which they may also wait for.

    `reuse`: for how many neighbours that train earlier in the round a device waits, chosen by `wait_select`.
    """

    reuse: Annotated[int, Ge(0)] = 0  # all train at once, as in the methods' own papers
    wait_select: Select = "lowest_index"  # known when the round starts, so that nothing is sent in vain

    def check_peers(self, graph: PeerGraph) -> None:
        """Raise ConfigError if mixing or waiting does not fit who hears whom."""
        super().check_peers(graph)
        check_reuse(graph, self.reuse)

    def plan_stretch(self, view: View, key: Key, stretch: Stretch) -> Plan:
        """Ask every device that is there to mix and to train so much. Raises ConfigError as `check_peers`."""
        return peer_plan(view, key, peer_task(view, stretch, self.mixing), self.reuse, self.wait_select)
