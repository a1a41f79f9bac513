"""D-PSGD: decentralised parallel SGD. A device steps from the mix of its neighbours' models by its own gradient.

Source: Lian et al., "Can Decentralized Algorithms Outperform Centralized Algorithms? A Case Study for Decentralized
Parallel Stochastic Gradient Descent" (NeurIPS 2017), algorithm 1. Waiting for fresh models: DA-DPFL paper.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from edgesim.core.method import LocalPhase, LocalRule, LocalState
from edgesim.core.rng import Key
from edgesim.core.task import Plan, Task
from edgesim.core.view import View
from edgesim.learning.train.context import Batch, Context
from edgesim.learning.train.loop import gradients
from edgesim.learning.train.rules import objective_loss
from edgesim.methods.decentralised.base import PeerMethod, mixed, sent_and_kept


@dataclass(frozen=True, kw_only=True)
class DPSGD(PeerMethod):
    """Peers without a server mix their models and take one gradient step in each round.

    x_i <- sum_j W_ij x_j - lr g_i(x_i), with the gradient of one mini-batch at the device's own, unmixed model.
    `training.local_epochs` and `local_steps` have no effect, and weight decay acts on the mix. `mixing` gives W. Keys:
    see PeerMethod.

    Family: peers. Formula: `x_i <- sum_j W_ij x_j - lr g_i(x_i)`. Paper: arXiv 1705.09056.
    """

    def plan(self, state: Any, view: View, key: Key) -> Plan:
        """Ask every reachable device for one step. Raises ConfigError if the graph does not fit the mixing."""
        step = view.setting.training.local_sgd(view.round).for_steps(1)
        return self.plan_stretch(view, key, step)

    def local(self, task: Task) -> LocalRule:
        """Return a step of the mix along the gradient at the device's own model, with the mix's running statistics."""

        def gradient(local: LocalState, batch: Batch, context: Context) -> list[Tensor]:
            own = context.copy(context.global_model if context.device_state is None else context.device_state)
            wrt = [own["params"][name].requires_grad_() for name in context.trained]
            return gradients(objective_loss({**local.weights, "params": own["params"]}, batch, context), wrt)

        return LocalRule((LocalPhase(gradient=gradient),), on_start=mixed, on_finish=sent_and_kept)


PLUGINS = {"dpsgd": DPSGD}
