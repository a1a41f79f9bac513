"""FedBuff: devices send their moves without rounds; the server applies the mean of every few moves.

Source: Nguyen et al., "Federated Learning with Buffered Asynchronous Aggregation" (2022), algorithm 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, ClassVar

from annotated_types import Ge, Lt

from edgesim.core.limits import PositiveFactor
from edgesim.core.local_sgd import Training
from edgesim.core.method import Aggregate, Finished, LocalRule, LocalState, Method, Needs, ServerContext
from edgesim.core.model_state import mapped, plus, stepped, weighted_sum
from edgesim.core.rng import Key
from edgesim.core.task import Payload, Task
from edgesim.core.update import ModelState, Update
from edgesim.core.view import Setting, View
from edgesim.learning.train.context import Context
from edgesim.learning.train.rules import PLAIN_SGD

_UP = Payload(collections=frozenset({"delta", "buffers"}))


@dataclass(frozen=True, kw_only=True)
class FedBuff(Method):
    """Asynchronous: the server collects moves in a buffer and applies their mean, with less weight for stale moves.

    x <- x + `eta_g` (s_1 d_1 + ... + s_K d_K) / K: d are the moves of parameters, s the weights of their staleness. K
    is the number of updates in a merge, the protocol's `buffer`. Neither data sizes nor the sum of the weights matter.
    With `momentum` the server steps along v <- momentum v + the mean instead of the mean. Devices send the running
    statistics of normalisation layers themselves, and the global ones move s_k / K of the way to each, because moves
    from older models could make a variance negative. Integer counters stay on the device.

    Family: asynchronous. Formula: `x <- x + eta_g sum_k s_k d_k / K`. Paper: arXiv 2106.06639.
    """

    eta_g: PositiveFactor = 1.0  # server's learning rate; at 1 a single fresh update becomes the global model
    """Nguyen et al., algorithm 1, name the server's learning rate without a value. At 1 a single fresh update is taken
    unchanged.
    """
    momentum: Annotated[float, Ge(0), Lt(1)] = 0.0  # off, as in the paper's algorithm
    """Not part of algorithm 1."""
    needs: ClassVar[Needs] = Needs(protocols=frozenset({"buffered"}))

    def init(self, setting: Setting, key: Key) -> Any:
        """Return a server without velocity."""
        return {**super().init(setting, key), "velocity": {}}

    def task(self, view: View) -> Task:
        """Return the training of the whole model, after which a device sends its move."""
        return _task(view.setting.training, view.round)

    def local(self, task: Task) -> LocalRule:
        """Return plain SGD on the cross-entropy, after which a device sends its difference to the received model."""

        def finish(local: LocalState, context: Context) -> Finished:
            received, w = context.global_model["params"], local.weights
            delta = mapped(lambda now, was: now - was.to(now.device), w["params"], received)
            return Finished({"delta": delta, "buffers": w["buffers"]})  # a name that no mean takes for a model

        return LocalRule(PLAIN_SGD.phases, on_finish=finish)

    def combine(
        self, state: Any, global_model: ModelState, updates: Sequence[Update], server: ServerContext, key: Key
    ) -> Aggregate:
        """Apply the moves that arrived."""
        weights = [message.weight for message in updates]
        total = weighted_sum((message.body for message in updates), weights)
        mean = mapped(lambda t: t / len(updates), total)
        step = mean["delta"]
        if self.momentum:
            if state["velocity"]:
                step = mapped(lambda s, before: s + self.momentum * before, step, state["velocity"])
            state = {"velocity": step}
        params = stepped(global_model["params"], step, self.eta_g)
        stays = 1.0 - sum(weights) / len(updates)
        old = mapped(lambda t: stays * t.double(), global_model["buffers"])
        buffers = mapped(lambda t, like: t.to(like.dtype), plus(old, mean["buffers"]), global_model["buffers"])
        return Aggregate(state, {"params": params, "buffers": buffers})


@lru_cache(maxsize=8)
def _task(training: Training, round_: int) -> Task:
    """Return the task of a round, always the same object, because devices are asked one by one."""
    return Task(local_sgd=(training.local_sgd(round_),), up=_UP)


PLUGINS = {"fedbuff": FedBuff}
