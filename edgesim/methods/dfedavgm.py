"""DFedAvgM: decentralised federated averaging with local momentum, whose peers exchange short increments.

Source: Sun, Li and Wang, "Decentralized Federated Averaging" (2021), algorithms 1 and 2; its settings as a baseline of
the DA-DPFL paper. Differs: the code released with that paper counts a device's own increment twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import torch
from annotated_types import Ge, Le, Lt

from edgesim.contracts import Bundle, Encoding, LocalPhase, LocalRule, Message, Payload, Plan, Task, View
from edgesim.learning.context import Context
from edgesim.learning.encode import uplinked
from edgesim.learning.merge import mean_of_holders
from edgesim.learning.peers import Mixing, MixingMethod, Values, mixed, peer_task, plan_at_once, shown, weighed, written
from edgesim.learning.rules import cross_entropy
from edgesim.rng import Key

_STARTED, _MOVED = "started", "moved"  # kinds of a device's own: where it trained from, and its increment


@dataclass(frozen=True, kw_only=True)
class DFedAvgM(MixingMethod):
    """Train with momentum from x_i to z_i, send q_i = Q(z_i - x_i), and x_i <- x_i + sum_j W_ij q_j, oneself included.

    An increment counts once, in the round after the one that it was made in. Of peers that did not train then nothing
    is added; the weights of those whose messages do not come are shared out. `payload` "model": models are exchanged
    and averaged instead, so that devices come closer to each other, which increments alone do not bring about. Q is
    the encoding of `values`, with so many `bits` where "qsgd" and "gsgd" ask for them. `momentum` takes the place of
    the scenario's; it starts anew in every round. `mixing`: see MixingMethod.
    """

    mixing: Mixing = "samples"
    momentum: Annotated[float, Ge(0), Lt(1)] = 0.9
    payload: Literal["increment", "model"] = "increment"
    values: Values = "float16"
    bits: Annotated[int, Ge(3), Le(16)] = 8

    def plan(self, state: Any, view: View, key: Key) -> Plan:
        """Ask every device that is there. Raises ConfigError if the graph does not fit the mixing."""
        task = peer_task(view, replace(view.setting.training.stretch(view.round), momentum=self.momentum), self.mixing)
        knobs = {**task.knobs, "round": float(view.round)}
        return plan_at_once(view, replace(task, up=Payload(encoding=written(self.values, self.bits)), knobs=knobs))

    def local(self, task: Task) -> LocalRule:
        """Return SGD with momentum from where the increments lead, or from the mix of models."""
        phases = (LocalPhase(loss=cross_entropy),)
        if self.payload == "model":
            return LocalRule(phases, start=mixed, finish=_model_sent)
        return LocalRule(phases, start=_moved_on, finish=_increment_sent)

    def personal(self, base: Bundle, own: Bundle | None) -> Bundle:
        """Return the model that a device trained last, as its peers know it; the first one if it never trained."""
        if own is None or _MOVED not in own:
            return base if own is None else own
        moved = {name: t + own[_MOVED][name] for name, t in own["params"].items()}
        return {"params": moved, "buffers": own["buffers"]}


def _moved_on(base: Bundle, own: Bundle | None, context: Context) -> Bundle:
    """Return where a device last trained from, moved by the mean of the increments that were made since.

    Running statistics travel as they are and are averaged: increments could make a variance negative.
    """
    before = base if own is None else own
    still = {name: torch.zeros_like(t) for name, t in before["params"].items()}
    mine = {"params": still if own is None else own[_MOVED], "buffers": before["buffers"]}
    received = [m if _is_new(m, context) else m._replace(body={"params": still}) for m in context.received]
    mean = mean_of_holders({**mine, "params": still}, *weighed(mine, received, context))
    started = {name: t + mean["params"][name] for name, t in before["params"].items()}
    return context.copy({"params": started, "buffers": mean["buffers"], _STARTED: started})


def _is_new(message: Message, context: Context) -> bool:
    """Return whether an increment is of the round before this one; an older one has counted already."""
    return bool(message.task.knobs.get("round") == context.task.knobs["round"] - 1)


def _increment_sent(w: Bundle, context: Context) -> tuple[Bundle, Bundle, Mapping[str, Any]]:
    """Return a device's increment, where it started and the increment as others get it, and its model."""
    started = w[_STARTED]
    body = {"params": {n: t - started[n] for n, t in w["params"].items()}, "buffers": w["buffers"]}
    moved = uplinked(body, context.task, Encoding(), context.key)["params"]
    return body, {"params": started, "buffers": w["buffers"], _MOVED: moved}, shown(w)


def _model_sent(w: Bundle, context: Context) -> tuple[Bundle, Bundle, Mapping[str, Any]]:
    """Return a device's model as what it sends, keeps and shows."""
    return w, w, shown(w)


PARTS = {"dfedavgm": DFedAvgM}
