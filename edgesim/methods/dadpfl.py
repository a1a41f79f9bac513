"""DA-DPFL: DisPFL whose devices reuse models of the same round, and prune for good once training has settled.

Source: DA-DPFL paper (decentralised personalised federated learning by dynamic aggregation and sparse-to-sparser
training), algorithms 1 and 2, and its authors' published code.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from annotated_types import Ge, Lt
from torch import Tensor

from edgesim.contracts import (
    Bundle,
    LocalPhase,
    LocalRule,
    Merged,
    Message,
    Needs,
    Order,
    Plan,
    Setting,
    Task,
    View,
)
from edgesim.errors import ConfigError
from edgesim.learning import masks, pruning, sparse_peers
from edgesim.learning.context import Context
from edgesim.learning.peers import Select, check_reuse, peer_plan
from edgesim.learning.rules import cross_entropy
from edgesim.learning.sparse_peers import FirstMasks, Growth, Initial, Maskable
from edgesim.numbers import NonNegativeNumber, PositiveNumber, PositiveShare, Share
from edgesim.peering import PeerGraph
from edgesim.rng import Key

Schedule: TypeAlias = Literal["constant", "step_down"]
Sends: TypeAlias = Literal["pruned", "trained"]

_ORIGIN, _DISTANCES = "origin", "distances"  # kinds that a device keeps: its first mask, its first and last distance


class _Settings(NamedTuple):
    """What a preset decides unless the scenario does."""

    wait_schedule: Schedule
    maskable: Maskable
    initial_masks: Initial
    distance: pruning.Distance
    clock: pruning.Clock
    max_prunings: int
    sends: Sends
    gamma: float
    eta: float


_PAPER = _Settings("constant", "2d", "per_device", "squared", "paper", 20, "pruned", 1.0, 0.0)
_PRESETS = {
    "paper": _PAPER,
    "paper_literal": _PAPER._replace(gamma=0.9, eta=1.0),
    "authors": _Settings("step_down", "authors", "shared", "norms", "authors", 21, "trained", 1.0, 0.0),
}


@dataclass(frozen=True, kw_only=True)
class DADPFL:
    """Peers with sparse models that wait for fresh ones of those before them, and vote on when to prune for good.

    Mixing, training and moving masks: see DisPFL. A device waits for `reuse` neighbours that come before it in the
    round's random order, chosen by `wait_select`; unset: for all. "step_down": for one fewer in each of `reuse` + 1
    equal parts of the `end_round` rounds. It waits as long as it takes or, once nothing else is missing, `wait_timeout`
    times its own training time for each training in the longest chain of waits before it. If that is over or a
    neighbour fails it does without ("drop"), or takes the model of the round's start, which it has fetched as well
    ("stale"); by "first_finish" it has fetched those of all neighbours anyway.
    A device votes for pruning if its `distance` to its first model changed by less than `change_below` of what it did
    in its first round. After the round in which a share `majority` of the votes says so, devices prune in the rounds of
    the `clock`, which goes by `b` and `c`, at most `max_prunings` times and until a share `target_sparsity` is zero: of
    every layer what it can spare by the PQ index, `p`, `q`, `gamma`, `eta` and `beta`. What such a round `sends` is the
    "pruned" model, or the "trained" one. Keys that are left out are those of the `preset`. The notes hold the means of
    `sparsity`, `change` and `vote`.
    """

    preset: Literal["paper", "paper_literal", "authors"] = "paper"
    reuse: Annotated[int, Ge(0)] | None = None
    wait_select: Select = "lowest_index"
    wait_schedule: Schedule | None = None  # as many all the time, or ever fewer
    wait_timeout: PositiveNumber | None = None
    on_prior_failure: Literal["drop", "stale"] = "drop"  # do without, or use its old model
    sparsity: Annotated[float, Ge(0), Lt(1)] = 0.5
    maskable: Maskable | None = None  # which tensors masks cover
    initial_masks: Initial | None = None  # one for each device, or one for all
    alpha: Share = 0.3  # share of the kept weights that moves, falling along a cosine
    end_round: Annotated[int, Ge(1)] = 500
    growth: Growth = "gradient"  # where weights grow back: at large gradients, or anywhere
    target_sparsity: Annotated[float, Ge(0), Lt(1)] = 0.8
    distance: pruning.Distance | None = None
    change_below: PositiveNumber = 0.02
    majority: PositiveShare = 0.5
    clock: pruning.Clock | None = None
    b: NonNegativeNumber = 0.0
    c: PositiveNumber = 1.3
    max_prunings: Annotated[int, Ge(0)] | None = None
    sends: Sends | None = None
    p: PositiveNumber = 0.5
    q: PositiveNumber = 1.0
    gamma: Share | None = None
    eta: NonNegativeNumber | None = None
    beta: Share = 0.9
    needs: ClassVar[Needs] = Needs(coordinators=frozenset({"sync"}), keep="computed", feedback=True, peers=True)

    def init(self, setting: Setting, key: Key) -> Any:
        """Return how many weights devices keep at first, and that nobody has decided anything.

        Raises ConfigError for a model that no mask fits, and for keys that contradict each other.
        """
        setting.cost.check(widths=0)
        if self.target_sparsity < self.sparsity:
            raise ConfigError(
                f"method.target_sparsity: must be at least method.sparsity, {self.sparsity:g}, "
                f"got {self.target_sparsity:g}"
            )
        if self.p >= self.q:
            raise ConfigError(f"method.p: must be below method.q, {self.q:g}, got {self.p:g}")
        first = self._first()
        counts = first.counts(first.shapes(setting.card))
        return {"first": counts, "kept": {}, "seed": key.exact_word(), "settled": 0, "rounds": []}

    def check_peers(self, graph: PeerGraph) -> None:
        """Raise ConfigError if devices are to wait for more neighbours than any of them has."""
        check_reuse(graph, self.reuse, "; all: leave it out")

    def plan(self, state: Any, view: View, key: Key) -> Plan:
        """Ask every device that is there to wait, mix, train and move its mask, and in some rounds to prune."""
        t, most = view.round + 1, int(view.peers.degree.max())
        orders = peer_plan(view, key, Task(home="self"), self.cap(t, most), self.wait_select).orders
        knobs = sparse_peers.knobs_of(state["seed"], sparse_peers.share_at(self.alpha, t, self.end_round))
        if t in state["rounds"]:
            knobs["prune"] = 1.0
        kept = {device: state["kept"].get(device, state["first"]) for device in view.idle.tolist()}
        orders = sparse_peers.sparse_orders(orders, view, kept, knobs, self.growth)
        if self.on_prior_failure == "stale":
            orders = tuple(_with_old_models(order) for order in orders)
        if self.wait_timeout is not None:
            orders = sparse_peers.impatient(orders, view.setting, self.wait_timeout)
        return Plan(orders)

    def local(self, task: Task) -> LocalRule:
        """Return SGD under a mask from the mix, after which the device prunes if told to, moves its mask and votes."""
        phase = LocalPhase(loss=cross_entropy, adjust=masks.masked_gradients)
        start = partial(sparse_peers.mixed, first=self._first())
        return LocalRule((phase,), start=start, finish=self._finish)

    def personal(self, base: Bundle, own: Bundle | None) -> Bundle:
        """Return the model that a device trained last, the first one if it never trained."""
        return base if own is None else sparse_peers.plain(own)

    def merge(self, state: Any, base: Bundle, got: Sequence[Message], view: View, tools: Any, key: Key) -> Merged:
        """Return the mean of each weight over the devices that have it, and count the votes."""
        merged, usable = sparse_peers.mean_of_sparse(state, base, got)
        if not usable:
            return merged
        state = {**state, "kept": {**state["kept"], **{m.device: m.signals["kept"] for m in usable}}}
        vote = float(np.mean([m.signals["vote"] for m in usable]))
        if not state["settled"] and vote >= self.majority:
            state |= {"settled": view.round + 1, "rounds": self.rounds(view.round + 1)}
        size = sum(math.prod(shape) for shape in self._first().shapes(view.setting.card).values())
        sparsity = 1 - float(np.mean([sum(m.signals["kept"].values()) for m in usable])) / size
        change = float(np.mean([m.signals["change"] for m in usable]))
        return merged._replace(
            state=state, notes={"sparsity": sparsity, "change": change, "vote": vote, **merged.notes}
        )

    def cap(self, t: int, most: int) -> int:
        """Return for how many neighbours devices wait in round `t`, counted from 1, that have at most `most`."""
        cap = most if self.reuse is None else self.reuse
        if self._settings().wait_schedule == "constant":
            return cap
        return max(0, cap - (t - 1) // max(1, self.end_round // (cap + 1)))

    def rounds(self, settled: int) -> list[int]:
        """Return the rounds in which devices prune after the votes of round `settled`."""
        settings = self._settings()
        return pruning.pruning_rounds(settled, self.end_round, settings.clock, self.b, self.c, settings.max_prunings)

    def _finish(self, w: Bundle, context: Context) -> tuple[Bundle, Bundle, dict[str, Any]]:
        """Return the model to send, what the device keeps, and its vote, the change behind it and its new counts."""
        settings, own, mask = self._settings(), context.own or {}, masks.masks_in(w)
        model = sparse_peers.plain(w)
        origin = own.get(_ORIGIN, mask)
        started = masks.applied(context.base, {name: m.cpu() for name, m in origin.items()})
        now = pruning.distance(model["params"], started["params"], settings.distance)
        first, last = own[_DISTANCES][_DISTANCES].tolist() if own else (now, 0.0)
        change = pruning.change(now, last, first)
        if "prune" in context.task.knobs and sparsity_of(mask) < self.target_sparsity:
            mask = self._pruned(model["params"], mask)
            model = sparse_peers.plain(masks.applied(model, mask)) if settings.sends == "pruned" else model
        mask = sparse_peers.moved(model, mask, context, self.growth)
        keep = sparse_peers.memory(model, mask)
        distances = torch.tensor([first, now], dtype=torch.float64)
        keep |= {_ORIGIN: {n: m.cpu() for n, m in origin.items()}, _DISTANCES: {_DISTANCES: distances}}
        vote = float(first > 0 and change < self.change_below)
        return model, keep, {"vote": vote, "change": change, "kept": masks.counts_of(mask)}

    def _pruned(self, params: Mapping[str, Tensor], mask: masks.Masks) -> dict[str, Tensor]:
        settings = self._settings()
        rule = pruning.PQ(self.p, self.q, settings.gamma, settings.eta, self.beta)
        spared = {name: pruning.spared(params[name][m], rule) for name, m in mask.items()}
        return {name: masks.without_smallest(params[name], m, spared[name]) for name, m in mask.items()}

    def _settings(self) -> _Settings:
        given = {name: getattr(self, name) for name in _Settings._fields}
        return _PRESETS[self.preset]._replace(**{name: value for name, value in given.items() if value is not None})

    def _first(self) -> FirstMasks:
        settings = self._settings()
        return FirstMasks(self.sparsity, settings.maskable, settings.initial_masks)


def sparsity_of(mask: masks.Masks) -> float:
    """Return the share of weights that masks leave out."""
    return 1 - sum(masks.counts_of(mask).values()) / sum(m.numel() for m in mask.values())


def _with_old_models(order: Order) -> Order:
    """Return an order that also fetches the start-of-round models of those that it waits for."""
    return order._replace(inputs=tuple(sorted({*order.inputs, *order.wait.peers})))


PARTS = {"dadpfl": DADPFL}
