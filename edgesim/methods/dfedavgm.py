"""DFedAvgM: decentralised federated averaging with local momentum, whose peers exchange compressed increments.

Source: Sun, Li and Wang, "Decentralized Federated Averaging" (2021), algorithms 1 and 2; its settings as a baseline of
the DA-DPFL paper. Differs: the code released with that paper counts a device's own increment twice.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import torch
from annotated_types import Ge, Le, Lt

from edgesim.core.encoding import Encoding
from edgesim.core.method import Finished, LocalPhase, LocalRule, LocalState
from edgesim.core.model_state import ModelState, mapped, minus, plus
from edgesim.core.rng import Key
from edgesim.core.task import Payload, Plan, Task
from edgesim.core.view import Setting, View
from edgesim.learning.aggregate.mean import mean_of_holders
from edgesim.learning.codec.encode import uplinked
from edgesim.learning.train.context import Context
from edgesim.methods.decentralised.base import (
    Mixing,
    MixingMethod,
    Values,
    mixed,
    own_model,
    peer_task,
    plan_at_once,
    weighed,
    written,
)

_MOVED = "moved"  # collection that a device keeps: its increment


@dataclass(frozen=True, kw_only=True)
class DFedAvgM(MixingMethod):
    """Peers without a server train with momentum, send compressed increments, and add the mean of the received ones.

    A device trains from x_i to z_i, sends q_i = Q(z_i - x_i), and x_i <- x_i + sum_j W_ij q_j, itself included.
    An increment counts once, in the round after its training. Peers that did not train then add nothing. The weights of
    missing messages are shared out. With `payload` "model", models are exchanged and averaged instead. Devices then
    come closer to each other, which increments alone do not achieve. Q is the encoding of `values`, with this number of
    `bits` for "qsgd" and "gsgd". `momentum` replaces the scenario's; it starts anew in every round. `mixing`: see
    MixingMethod.

    The released code keeps a device's trained model and adds the mean increment to it, which includes its own. This is
    not followed. An increment of a peer that was not asked in the round before would count twice, so it is left out.
    Running statistics travel uncompressed and are averaged, because increments could make a variance negative.

    Family: peers. Formula: `x_i <- x_i + sum_j W_ij Q(z_j - x_j), where z_j is x_j after local SGD with momentum`.
    Paper: arXiv 2104.11375.
    """

    mixing: Mixing = "samples"
    """The code released with the DA-DPFL paper weighs by data sizes. Sun et al. ask for a symmetric, doubly stochastic
    W.
    """
    momentum: Annotated[float, Ge(0), Lt(1)] = 0.9
    """A usual value; it starts anew in every round."""
    payload: Literal["increment", "model"] = "increment"
    """Algorithm 2 sends quantised increments. They never bring different models closer to each other. `"model"` sends
    and averages models, in the same encoding.
    """
    values: Values = "float16"
    """The DA-DPFL comparison, at half the bytes. Sun et al. leave the quantiser open: any encoding."""
    bits: Annotated[int, Ge(3), Le(16)] = 8
    """Only for `"qsgd"` and `"gsgd"`."""

    def init(self, setting: Setting, key: Key) -> Any:
        """Return the first state. Raises ConfigError unless devices train by SGD, which has momentum."""
        setting.training.check_sgd("its momentum is that of SGD")
        return super().init(setting, key)

    def plan(self, state: Any, view: View, key: Key) -> Plan:
        """Ask every reachable device to train. Raises ConfigError if the graph does not fit the mixing."""
        sgd = replace(view.setting.training.local_sgd(view.round), momentum=self.momentum)
        task = peer_task(view, sgd, self.mixing)
        config = {"round": view.round}
        return plan_at_once(view, replace(task, up=Payload(encoding=written(self.values, self.bits)), config=config))

    def local(self, task: Task) -> LocalRule:
        """Return SGD with momentum from the sum of increments, or from the mix of models."""

        def increment_sent(local: LocalState, context: Context) -> Finished:
            w, started = local.weights, local.scratch
            body = {"params": minus(w["params"], started), "buffers": w["buffers"]}
            moved = uplinked(body, context.task, Encoding(), context.key)["params"]
            kept = {"params": started, "buffers": w["buffers"], _MOVED: moved}
            return Finished(body, kept, own_model=own_model(w))

        def model_sent(local: LocalState, context: Context) -> Finished:
            return Finished(local.weights, local.weights, own_model=own_model(local.weights))

        if self.payload == "model":
            return LocalRule((LocalPhase(),), on_start=mixed, on_finish=model_sent)
        return LocalRule((LocalPhase(),), on_start=_moved_on, on_finish=increment_sent)

    def personal_model(self, global_model: ModelState, device_state: ModelState | None) -> ModelState:
        """Return the model that a device trained last, as its peers know it, the first one if it never trained."""
        if device_state is None or _MOVED not in device_state:
            return super().personal_model(global_model, device_state)
        moved = plus(device_state["params"], device_state[_MOVED])
        return {"params": moved, "buffers": device_state["buffers"]}


def _moved_on(context: Context) -> LocalState:
    """Return the start of a device's last training plus the mean of the increments since; the scratch is this start.

    Increments count only from the round before this one; older ones have counted already. Running statistics travel
    uncompressed and are averaged, because increments could make a variance negative.
    """
    kept = context.device_state
    before = context.global_model if kept is None else kept
    still = mapped(torch.zeros_like, before["params"])
    mine = {"params": still if kept is None else kept[_MOVED], "buffers": before["buffers"]}
    last = context.task.config["round"] - 1
    received = [
        m if m.task.config.get("round") == last else m._replace(body={"params": still}) for m in context.received
    ]
    mean = mean_of_holders({**mine, "params": still}, *weighed(mine, received, context))
    started = plus(before["params"], mean["params"])
    w = context.copy({"params": started, "buffers": mean["buffers"]})
    return LocalState(w, context.copy(started))


PLUGINS = {"dfedavgm": DFedAvgM}
