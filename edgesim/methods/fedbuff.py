"""FedBuff: devices send how far they moved, without rounds; the server applies every few of these moves at once.

Source: Nguyen et al., "Federated Learning with Buffered Asynchronous Aggregation" (2022), algorithm 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, ClassVar

import torch
from annotated_types import Ge, Lt
from torch import Tensor

from edgesim.contracts import (
    Bundle,
    LocalRule,
    Merged,
    Message,
    Needs,
    Order,
    Payload,
    Plan,
    Setting,
    Task,
    Training,
    View,
)
from edgesim.learning.context import Context
from edgesim.learning.merge import finite
from edgesim.learning.rules import PLAIN_SGD
from edgesim.numbers import PositiveNumber
from edgesim.rng import Key

_UP = Payload(kinds=frozenset({"delta", "buffers"}))


@dataclass(frozen=True, kw_only=True)
class FedBuff:
    """x <- x + `eta_g` (s_1 d_1 + ... + s_K d_K) / K: d are the moves of parameters, s the weights of their staleness.

    K is how many updates come to a merge, the coordinator's `buffer`; neither data sizes nor the sum of the weights
    matter. With `momentum` the server steps along v <- momentum v + the mean instead of the mean. Running statistics
    of normalisation layers are sent as they are, and the global ones go s_k / K of the way to each: along moves taken
    from older models a variance could become negative. Integer counters stay on the device.
    """

    eta_g: PositiveNumber = 1.0  # one device, never stale: the global model becomes the device's
    momentum: Annotated[float, Ge(0), Lt(1)] = 0.0  # off, as in the paper's algorithm
    needs: ClassVar[Needs] = Needs(coordinators=frozenset({"buffered"}))

    def init(self, setting: Setting, key: Key) -> Any:
        """Return a server at rest."""
        setting.cost.check(widths=0)
        return {"velocity": {}}

    def plan(self, state: Any, view: View, key: Key) -> Plan:
        """Ask the selected devices to train the whole model."""
        task = _task(view.setting.training, view.round)
        return Plan(tuple(Order(device, task) for device in view.choose(key).tolist()))

    def local(self, task: Task) -> LocalRule:
        """Return plain SGD on the cross-entropy that ends with the difference to the model received."""
        return LocalRule(PLAIN_SGD.phases, finish=_moves)

    def merge(self, state: Any, base: Bundle, got: Sequence[Message], view: View, tools: Any, key: Key) -> Merged:
        """Apply the arrived moves; the model stays if none of them is usable."""
        usable, notes = finite(got)
        if not usable:
            return Merged(state, None, notes=notes)
        step = {name: _mean("delta", name, usable) for name in base["params"]}
        if self.momentum:
            before = state["velocity"]
            step = {name: s + self.momentum * before[name] if before else s for name, s in step.items()}
            state = {"velocity": step}
        params = {name: (x + self.eta_g * step[name]).to(x.dtype) for name, x in base["params"].items()}
        buffers = {name: _towards(x, name, usable) for name, x in base["buffers"].items()}
        return Merged(state, {"params": params, "buffers": buffers}, notes=notes)


@lru_cache(maxsize=8)
def _task(training: Training, round_: int) -> Task:
    """Return the task of a round: one object, as devices are asked one by one."""
    return Task(stretches=(training.stretch(round_),), up=_UP)


def _moves(w: Bundle, context: Context) -> tuple[Bundle, None, dict[str, Any]]:
    """Return the difference of the parameters to those received, under a name that nobody averages by mistake."""
    delta = {name: tensor - context.base["params"][name].to(tensor.device) for name, tensor in w["params"].items()}
    return {"delta": delta, "buffers": w["buffers"]}, None, {}


def _mean(kind: str, name: str, got: Sequence[Message]) -> Tensor:
    """Return the weighted sum over the number of messages, float64."""
    total = torch.zeros_like(got[0].body[kind][name], dtype=torch.float64)
    for message in got:
        total.add_(message.body[kind][name], alpha=message.weight)
    return total / len(got)


def _towards(old: Tensor, name: str, got: Sequence[Message]) -> Tensor:
    stays = 1.0 - sum(message.weight for message in got) / len(got)
    return (stays * old.double() + _mean("buffers", name, got)).to(old.dtype)


PARTS = {"fedbuff": FedBuff}
