"""AD-PSGD: asynchronous decentralised SGD. A device takes a gradient, averages with one neighbour, then steps.

Source: Lian, Zhang, Zhang and Liu, "Asynchronous Decentralized Parallel Stochastic Gradient Descent" (ICML 2018),
algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from edgesim.core.encoding import FLOAT32
from edgesim.core.errors import ConfigError
from edgesim.core.limits import Count
from edgesim.core.local_sgd import Training
from edgesim.core.method import Finished, LocalPhase, LocalRule, LocalState
from edgesim.core.model_state import minus, plus
from edgesim.core.peer_graph import PeerGraph
from edgesim.core.rng import Key
from edgesim.core.task import Order, Task
from edgesim.core.update import ModelState, Update
from edgesim.core.view import Setting, Turn
from edgesim.learning.aggregate.mean import is_finite, mean_of_holders
from edgesim.learning.codec.transfer import on_cpu
from edgesim.learning.train.context import Context
from edgesim.methods.decentralised.own_clocks import OwnClockMethod


@dataclass(frozen=True, kw_only=True)
class ADPSGD(OwnClockMethod):
    """Asynchronous peers: each takes a gradient at its model x^, averages with a random neighbour, and then steps.

    Both devices keep the average of their models, X_i, X_j <- (X_i + X_j) / 2, which is doubly stochastic; then
    X_i <- X_i - lr g_i(x^). Neighbours may have changed X_i while the gradient was computed. It is applied to the
    changed model. `steps`: mini-batches a job, each at the model that the one before left. The sum of their moves is
    applied, running statistics included. `training.local_epochs` and `local_steps` have no effect. All peers must hear
    each other, because both change. A model that is not finite is not averaged. In the paper a device may also average
    while it computes. Here it averages afterwards, in the order of the algorithm.

    Family: peers. Formula: `X_i, X_j <- (X_i + X_j) / 2, then X_i <- X_i - lr g_i(x^)`. Paper: arXiv 1710.06952.
    """

    steps: Count = 1
    """Algorithm 1 has one mini-batch. More of them save trades, as in local SGD."""

    def init(self, setting: Setting, key: Key) -> Any:
        """Return no state. Raises ConfigError if messages are to be rounded."""
        if setting.encoding_up != FLOAT32:
            raise ConfigError(
                "encoding.up: adpsgd averages models as they are, so that both devices keep the same one; leave it out"
            )
        return super().init(setting, key)

    def check_peers(self, graph: PeerGraph) -> None:
        """Raise ConfigError if a device hears a peer that does not hear it."""
        if not graph.symmetric:
            raise ConfigError(
                "peers.name: adpsgd needs peers that hear each other, as both keep the average of a trade; use one "
                "such as ring, full or expander"
            )

    def next_order(self, state: Any, turn: Turn, key: Key) -> Order:
        """Ask for one gradient and a trade with a random reachable neighbour."""
        task = _task(turn.setting.training, turn.round, self.steps)
        if not len(turn.neighbours):
            return Order(turn.device, task)
        chosen = int(key.numpy().integers(len(turn.neighbours)))
        return Order(turn.device, task, (int(turn.neighbours[chosen]),))

    def local(self, task: Task) -> LocalRule:
        """Return plain SGD from the device's own model."""

        def start(context: Context) -> LocalState:
            return LocalState(context.copy(_before(context)))

        def finish(local: LocalState, context: Context) -> Finished:
            return Finished(local.weights, minus(on_cpu(local.weights), on_cpu(_before(context))))

        return LocalRule((LocalPhase(),), on_start=start, on_finish=finish)

    def traded(
        self, first: ModelState, mine: ModelState | None, theirs: ModelState | None
    ) -> tuple[ModelState, ModelState]:
        """Return the average of both models, twice."""
        models = [first if model is None else model for model in (mine, theirs)]
        if not all(is_finite(model) for model in models):
            return models[0], models[1]
        held = [Update(device, -1, Task(), model, 0, 0, 0, {}) for device, model in enumerate(models)]
        average = mean_of_holders(first, held, [1.0, 1.0])
        return average, average

    def joined(self, first: ModelState, device_state: ModelState | None, trained: ModelState | None) -> ModelState:
        """Return the device's model plus the move of its job. `trained`: the move."""
        now = first if device_state is None else device_state
        if trained is None:
            return now
        return plus(now, trained)


@lru_cache(maxsize=8)
def _task(training: Training, round_: int, steps: int) -> Task:
    """Return the task of a round, always the same object, so that the engine recognises it."""
    sgd = training.local_sgd(round_).for_steps(steps)
    return Task(start="device", local_sgd=(sgd,), own_clock="trade")


def _before(context: Context) -> ModelState:
    return context.global_model if context.device_state is None else context.device_state


PLUGINS = {"adpsgd": ADPSGD}
