"""BEER: peers track the gradient of the whole network and exchange compressed differences.

Source: Zhao et al., "BEER: Fast O(1/T) Rate for Decentralized Nonconvex Optimization with Communication Compression"
(NeurIPS 2022), algorithm 1; its settings as a baseline of the DA-DPFL paper.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

import torch
from annotated_types import Ge, Le
from torch import Tensor

from edgesim.core.encoding import Encoding
from edgesim.core.errors import ConfigError
from edgesim.core.job import DELIVERED
from edgesim.core.limits import PositiveShare
from edgesim.core.method import Finished, LocalPhase, LocalRule, LocalState, Needs
from edgesim.core.model_state import mapped, minus, model_in, plus
from edgesim.core.peer_graph import PeerGraph
from edgesim.core.rng import Key
from edgesim.core.task import Payload, Plan, Task
from edgesim.core.update import ModelState, Update
from edgesim.core.view import Setting, View
from edgesim.learning.aggregate.mean import finite
from edgesim.learning.codec.encode import uplinked
from edgesim.learning.train.context import Context
from edgesim.methods.decentralised.base import OwnModelMethod, own_model, peer_task, plan_at_once, written

Numbers: TypeAlias = dict[str, Tensor]

_H, _G = "h", "g"  # surrogates of a model and of its tracker, as all neighbours know them; "h 3" belongs to device 3
_TRACKER, _GRADIENT = "tracker", "gradient"
_HEARD = "heard"  # the round of the newest message in the replicas, by device
_WHOLE = "whole"  # task whose message holds model and tracker instead of differences


@dataclass(frozen=True, kw_only=True)
class BEER(OwnModelMethod):
    """For peers that stay reachable: they track the average gradient and send compressed changes of model and gradient.

    V <- V + gamma sum_j W_ij (G_j - G_i) + new gradient - old gradient;  G <- G + C(V - G)
    X <- X + gamma sum_j W_ij (H_j - H_i) - lr V;  H <- H + C(X - H)

    X is a device's model and V its tracker of the gradient. H and G are their surrogates, as the neighbours know them.
    W: Metropolis weights. Both differences travel in one message. Neighbours that keep replicas of H and G use them in
    the next round. C is the encoding of `values`, with this number of `bits` unless it is "float32". In a device's
    first round V is its gradient, and H and G are 0 before. `mode` "original": the gradient of one mini-batch, without
    momentum, weight decay and clipping; "authors": `training.local_epochs` from X, and the gradient of the last batch.

    A device that was away cannot follow differences. After a round that a device missed, or in which a device is away,
    all devices send their X and V whole, for H and G. Until then a neighbour out of step is left out of both sums.

    On an expander of degree 10 the Metropolis weights are the 1/11 of the comparison. The paper does not specify
    devices that miss a message. Here all devices then send model and tracker whole, which costs far more bytes.
    Graphs that are drawn anew every round are refused.

    Family: peers. Formula: `X <- X + gamma sum_j W_ij (H_j - H_i) - lr V; V <- V + gamma sum_j W_ij (G_j - G_i) + new
    gradient - old gradient`. Paper: arXiv 2201.13320.
    """

    mode: Literal["original", "authors"] = "original"
    """Algorithm 1 takes one gradient a round. The code released with the DA-DPFL paper trains for local epochs before
    it and takes the gradient of their last batch: `"authors"`.
    """
    gamma: PositiveShare = 0.01  # step by which surrogates are mixed in a round
    """The DA-DPFL comparison on CIFAR-10; 0.005 on CIFAR-100."""
    values: Literal["gsgd", "qsgd", "float32"] = "gsgd"
    """Zhao et al.; `"qsgd"` is unbiased and may enlarge errors, `"float32"` loses nothing. Each layer has its own
    scale, and biases travel uncompressed.
    """
    bits: Annotated[int, Ge(3), Le(16)] = 9
    """The DA-DPFL comparison, which speaks of half the bytes; two vectors of 9 bits are 56 %."""
    # a replica belongs to the same neighbour in every round
    needs: ClassVar[Needs] = Needs(protocols=frozenset({"sync"}), device_state="computed", peers="fixed")

    def check_peers(self, graph: PeerGraph) -> None:
        """Raise ConfigError unless peers hear each other. Otherwise no weights are doubly stochastic."""
        if not graph.symmetric:
            raise ConfigError("peers: BEER needs peers that hear each other, found a graph in which some do not")

    def init(self, setting: Setting, key: Key) -> Any:
        """Return the first state. Raises ConfigError unless devices train by SGD, whose gradients BEER tracks."""
        setting.training.check_sgd("it tracks gradients and steps along them")
        return super().init(setting, key)

    def plan(self, state: Any, view: View, key: Key) -> Plan:
        """Ask every reachable device for differences, or for whole models if a device may have missed differences."""
        setting, sgd = view.setting, view.setting.training.local_sgd(view.round)
        config = {"round": view.round, "lr": sgd.lr}
        if self.mode == "original":  # the step along the tracker is the only one
            sgd = replace(sgd.for_steps(1), lr=0.0, momentum=0.0, weight_decay=0.0)
        task, kinds = peer_task(view, sgd, "metropolis"), frozenset({_H, _G})
        task = replace(task, config=config)
        before = [each for each in view.last if each.outcome in DELIVERED and each.job.round == view.round - 1]
        if len(view.idle) == setting.devices and (view.round == 0 or len(before) == setting.devices):
            return plan_at_once(view, replace(task, up=Payload(kinds, encoding=written(self.values, self.bits))))
        return plan_at_once(view, replace(task, name=_WHOLE, up=Payload(kinds, encoding=Encoding())))

    def local(self, task: Task) -> LocalRule:
        """Return SGD that keeps its last gradient, followed by the step along the tracker."""

        def remembered(grads: list[Tensor], local: LocalState, context: Context) -> list[Tensor]:
            for name, gradient in zip(context.trained, grads, strict=True):
                local.scratch.gradient[name].copy_(gradient)
            return grads

        phase = LocalPhase(adjust_gradients=remembered)
        return LocalRule((phase,), on_start=partial(_mixed, gamma=self.gamma), on_finish=_stepped)


# --- a device's job ---------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Scratch:
    """Scratch of a job: V less the old gradient, the gradient, the mixing term of X, and surrogates with replicas.

    `carried`: surrogates and replicas, which a device keeps.
    """

    tracker: Mapping[str, Tensor]
    gradient: Mapping[str, Tensor]
    pull: Mapping[str, Tensor]
    carried: dict[str, Mapping[str, Tensor]]


def _mixed(context: Context, gamma: float) -> LocalState:
    """Return X with the scratch of the job."""
    own, replicas = context.device_state, _replicas(context.device_state, context)
    if own is None:
        still = mapped(torch.zeros_like, context.global_model["params"])
        zeros = [context.copy(still) for _ in range(5)]
        carried = {_H: zeros[3], _G: zeros[4], **replicas}
        return LocalState(context.copy(context.global_model), _Scratch(zeros[0], zeros[1], zeros[2], carried))
    v = plus(minus(own[_TRACKER], own[_GRADIENT]), _pull(_G, gamma, own, replicas, context))
    pull = _pull(_H, gamma, own, replicas, context)
    rest = context.copy({_TRACKER: v, _GRADIENT: own[_GRADIENT], "pull": pull, _H: own[_H], _G: own[_G]})
    model = context.copy(model_in(own))
    carried = {_H: rest[_H], _G: rest[_G], **replicas}
    return LocalState(model, _Scratch(rest[_TRACKER], rest[_GRADIENT], rest["pull"], carried))


def _stepped(local: LocalState, context: Context) -> Finished:
    """Take the step along V. Return the message, and the state and model that the device keeps."""
    w, scratch, lr = local.weights, local.scratch, context.task.config["lr"]
    v = plus(scratch.gradient, scratch.tracker)
    x = mapped(lambda t, pull, step: t + pull - lr * step, w["params"], scratch.pull, v)
    if context.task.name == _WHOLE:
        body: dict[str, Numbers] = {_H: x, _G: v}
        surrogates: Mapping[str, Mapping[str, Tensor]] = body
    else:
        g = v if context.device_state is not None else scratch.carried[_G]  # at first G stays 0
        body = {_H: minus(x, scratch.carried[_H]), _G: minus(g, scratch.carried[_G])}
        told = uplinked(body, context.task, Encoding(), context.key)
        surrogates = {kind: plus(told[kind], scratch.carried[kind]) for kind in (_H, _G)}
    kept = {
        "params": x,
        "buffers": w["buffers"],
        _TRACKER: v,
        _GRADIENT: scratch.gradient,
        **scratch.carried,
        **surrogates,
    }
    return Finished(body, kept, own_model=own_model(kept))


def _pull(kind: str, gamma: float, device_state: ModelState, replicas: ModelState, context: Context) -> Numbers:
    """Return gamma sum_j W_ij (H_j - H_i) over the neighbours j whose newest messages are in step."""
    total = mapped(torch.zeros_like, device_state[kind])
    for message in context.received:
        if message.job < 0 or int(replicas[_HEARD].get(str(message.device), -1)) != _round(message):
            continue
        weight = gamma * context.task.mixing[message.device, context.device]
        apart = minus(replicas[f"{kind} {message.device}"], device_state[kind])
        total = mapped(lambda t, away, weight=weight: t + weight * away, total, apart)
    return total


# --- replicas ---------------------------------------------------------------------------------------------------


def _replicas(device_state: ModelState | None, context: Context) -> dict[str, Mapping[str, Tensor]]:
    """Return the replicas of neighbours' surrogates after the messages of this round, and the round of each.

    Differences fit only replicas of the round before theirs. Whole messages always fit.
    """
    found = {kind: ts for kind, ts in (device_state or {}).items() if " " in kind}
    heard = dict((device_state or {}).get(_HEARD, {}))
    usable, _ = finite([message for message in context.received if message.job >= 0])
    for message in usable:
        peer, round_ = str(message.device), _round(message)
        last = int(heard.get(peer, -1))
        if message.task.name == _WHOLE:
            new = {kind: message.body[kind] for kind in (_H, _G)}
        elif last == round_ - 1:
            old = {kind: found.get(f"{kind} {peer}") for kind in (_H, _G)}
            new = {kind: _plus(message.body[kind], old[kind]) for kind in (_H, _G)}
        else:
            continue
        found |= {f"{kind} {peer}": tensors for kind, tensors in new.items()}
        heard[peer] = torch.tensor(round_)
    return {**found, _HEARD: heard}


def _round(message: Update) -> int:
    return int(message.task.config["round"])


def _plus(more: Mapping[str, Tensor], old: Mapping[str, Tensor] | None) -> Numbers:
    return mapped(lambda t: t + 0.0, more) if old is None else plus(more, old)


PLUGINS = {"beer": BEER}
