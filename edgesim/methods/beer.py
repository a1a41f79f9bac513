"""BEER: peers follow the gradient of all of them, which each tracks, and exchange short differences.

Source: Zhao et al., "BEER: Fast O(1/T) Rate for Decentralized Nonconvex Optimization with Communication Compression"
(NeurIPS 2022), algorithm 1; its settings as a baseline of the DA-DPFL paper.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

import torch
from annotated_types import Ge, Le
from torch import Tensor

from edgesim.contracts import (
    DELIVERED,
    Bundle,
    Encoding,
    LocalPhase,
    LocalRule,
    Merged,
    Message,
    Needs,
    Payload,
    Plan,
    Setting,
    Task,
    View,
)
from edgesim.errors import ConfigError
from edgesim.learning.context import Context
from edgesim.learning.encode import uplinked
from edgesim.learning.merge import finite
from edgesim.learning.peers import edge, mean_of_peers, peer_task, plan_at_once, shown, written
from edgesim.learning.rules import cross_entropy
from edgesim.numbers import PositiveShare
from edgesim.peering import PeerGraph
from edgesim.rng import Key

Numbers: TypeAlias = dict[str, Tensor]

_H, _G = "h", "g"  # surrogates of a model and of its tracker, as all neighbours know them; "h 3" is that of device 3
_TRACKER, _GRADIENT, _PULL = "tracker", "gradient", "pull"
_HEARD = "heard"  # the round of the newest message that replicas hold, by device
_WHOLE = "whole"  # task whose message holds model and tracker instead of differences


@dataclass(frozen=True, kw_only=True)
class BEER:
    """Step along a tracked gradient from a mix of surrogates of the models; send what the surrogates lack.

    V <- V + gamma sum_j W_ij (G_j - G_i) + new gradient - old gradient;  G <- G + C(V - G)
    X <- X + gamma sum_j W_ij (H_j - H_i) - lr V;  H <- H + C(X - H)

    W: Metropolis weights. Both differences travel in one message and are used in the next round, by neighbours that
    keep replicas of H and G. C is the encoding of `values`, with so many `bits` unless it is "float32". In a device's
    first round V is its gradient, and H and G are 0 before. `mode` "original": the gradient of one mini-batch, without
    momentum, weight decay and clipping; "authors": `training.local_epochs` from X, and the gradient of the last batch.

    Whoever was away cannot follow differences. After a round that somebody missed, or in which somebody is away, all
    send their X and V whole, for H and G; until then a neighbour out of step is left out of both sums.
    """

    mode: Literal["original", "authors"] = "original"
    gamma: PositiveShare = 0.01  # how far surrogates are mixed in a round
    values: Literal["gsgd", "qsgd", "float32"] = "gsgd"
    bits: Annotated[int, Ge(3), Le(16)] = 9
    needs: ClassVar[Needs] = Needs(coordinators=frozenset({"sync"}), keep="computed", peers=True)
    fixed_peers: ClassVar[bool] = True  # replicas are of the same neighbours in every round

    def init(self, setting: Setting, key: Key) -> Any:
        """Return the empty state: devices keep their models themselves."""
        setting.cost.check(widths=0)
        return {}

    def check_peers(self, graph: PeerGraph) -> None:
        """Raise ConfigError unless peers hear each other, as no weights are doubly stochastic otherwise."""
        if not graph.symmetric:
            raise ConfigError("peers: BEER needs peers that hear each other, found a graph in which some do not")

    def plan(self, state: Any, view: View, key: Key) -> Plan:
        """Ask every device that is there for differences, or for all that it has if somebody may have missed some."""
        stretch = view.setting.training.stretch(view.round)
        knobs = {"round": float(view.round), "lr": stretch.lr}
        if self.mode == "original":  # the step along the tracker is the only one
            stretch = replace(stretch, epochs=0, steps=1, lr=0.0, momentum=0.0, weight_decay=0.0)
        task, kinds = peer_task(view, stretch, "metropolis"), frozenset({_H, _G})
        task = replace(task, knobs={**task.knobs, **knobs})
        if _in_step(view):
            return plan_at_once(view, replace(task, up=Payload(kinds, encoding=written(self.values, self.bits))))
        return plan_at_once(view, replace(task, name=_WHOLE, up=Payload(kinds, encoding=Encoding())))

    def local(self, task: Task) -> LocalRule:
        """Return the gradients that the mode says, then the step along the tracker."""
        phase = LocalPhase(loss=cross_entropy, adjust=_remembered)
        return LocalRule((phase,), start=partial(_mixed, gamma=self.gamma), finish=_stepped)

    def personal(self, base: Bundle, own: Bundle | None) -> Bundle:
        """Return the model that a device has, the first one if it never trained."""
        return base if own is None else {kind: own[kind] for kind in ("params", "buffers")}

    def merge(self, state: Any, base: Bundle, got: Sequence[Message], view: View, tools: Any, key: Key) -> Merged:
        """Return the plain mean of the devices' models."""
        return mean_of_peers(state, base, got)


def _in_step(view: View) -> bool:
    """Return whether every device is there and did its job in the round before, if there was one."""
    devices = len(view.setting.samples)
    before = [a for a in view.last if a.outcome in DELIVERED and a.job.round == view.round - 1]
    return len(view.idle) == devices and (view.round == 0 or len(before) == devices)


# --- a device's job ---------------------------------------------------------------------------------------------


def _mixed(base: Bundle, own: Bundle | None, context: Context, gamma: float) -> Bundle:
    """Return X, by what it is to be moved at the end, V less the old gradient, and all else that a device carries."""
    replicas = _replicas(own, context)
    if own is None:
        still = {name: torch.zeros_like(t) for name, t in base["params"].items()}
        return {**context.copy({**base, **dict.fromkeys((_H, _G, _TRACKER, _GRADIENT, _PULL), still)}), **replicas}
    v = _plus(_less(own[_TRACKER], own[_GRADIENT]), _pull(_G, gamma, own, replicas, context))
    carried = {kind: own[kind] for kind in ("params", "buffers", _H, _G, _GRADIENT)}
    pull = _pull(_H, gamma, own, replicas, context)
    return {**context.copy({**carried, _TRACKER: v, _PULL: pull}), **replicas}


def _remembered(grads: list[Tensor], w: Bundle, context: Context) -> list[Tensor]:
    for name, gradient in zip(context.trained, grads, strict=True):
        w[_GRADIENT][name].copy_(gradient)
    return grads


def _stepped(w: Bundle, context: Context) -> tuple[Bundle, Bundle, Mapping[str, Any]]:
    """Return the message after the step along V, what a device carries on, and its model."""
    lr, v = context.task.knobs["lr"], _plus(w[_TRACKER], w[_GRADIENT])
    x = {name: t + w[_PULL][name] - lr * v[name] for name, t in w["params"].items()}
    if context.task.name == _WHOLE:
        body = surrogates = {_H: x, _G: v}
    else:
        g = v if context.own is not None else w[_G]  # at first G stays 0
        body = {_H: _less(x, w[_H]), _G: _less(g, w[_G])}
        told = uplinked(body, context.task, Encoding(), context.key)
        surrogates = {kind: _plus(w[kind], told[kind]) for kind in (_H, _G)}
    kept = {**w, "params": x, _TRACKER: v, **surrogates}
    del kept[_PULL]
    return body, kept, shown(kept)


def _pull(kind: str, gamma: float, own: Bundle, replicas: Bundle, context: Context) -> Numbers:
    """Return gamma sum_j W_ij (H_j - H_i) over the neighbours j whose newest messages are in step."""
    total = {name: torch.zeros_like(t) for name, t in own[kind].items()}
    for message in context.received:
        if message.job < 0 or int(replicas[_HEARD].get(str(message.device), -1)) != _round(message):
            continue
        weight = gamma * context.task.knobs[edge(message.device, context.device)]
        for name, theirs in replicas[f"{kind} {message.device}"].items():
            total[name] += weight * (theirs - own[kind][name])
    return total


# --- replicas ---------------------------------------------------------------------------------------------------


def _replicas(own: Bundle | None, context: Context) -> dict[str, Mapping[str, Tensor]]:
    """Return the replicas of neighbours' surrogates after the messages of this round, and of which round each is.

    Differences only fit what is of the round before theirs; whole messages always fit.
    """
    found = {kind: ts for kind, ts in (own or {}).items() if " " in kind}
    heard = dict((own or {}).get(_HEARD, {}))
    usable, _ = finite([message for message in context.received if message.job >= 0])
    for message in usable:
        peer, round_ = str(message.device), _round(message)
        last = int(heard.get(peer, -1))
        if message.task.name == _WHOLE:
            new = {kind: message.body[kind] for kind in (_H, _G)}
        elif last == round_ - 1:
            new = {kind: _plus(found.get(f"{kind} {peer}"), message.body[kind]) for kind in (_H, _G)}
        else:
            continue
        found |= {f"{kind} {peer}": tensors for kind, tensors in new.items()}
        heard[peer] = torch.tensor(round_)
    return {**found, _HEARD: heard}


def _round(message: Message) -> int:
    return int(message.task.knobs["round"])


def _plus(old: Mapping[str, Tensor] | None, more: Mapping[str, Tensor]) -> Numbers:
    return {name: t + (0.0 if old is None else old[name]) for name, t in more.items()}


def _less(new: Mapping[str, Tensor], old: Mapping[str, Tensor]) -> Numbers:
    return {name: t - old[name] for name, t in new.items()}


PARTS = {"beer": BEER}
