"""D-PSGD: decentralised parallel SGD. A device steps from the mix of its neighbours' models by its own gradient.

Source: Lian et al., "Can Decentralized Algorithms Outperform Centralized Algorithms? A Case Study for Decentralized
Parallel Stochastic Gradient Descent" (NeurIPS 2017), algorithm 1. Waiting for fresh models: DA-DPFL paper.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from edgesim.contracts import Bundle, LocalPhase, LocalRule, Plan, Task, View
from edgesim.learning.context import Batch, Context
from edgesim.learning.loop import gradients
from edgesim.learning.peers import PeerMethod, mixed, sent_and_kept
from edgesim.learning.rules import cross_entropy
from edgesim.rng import Key


@dataclass(frozen=True, kw_only=True)
class DPSGD(PeerMethod):
    """One mini-batch a round: x_i <- sum_j W_ij x_j - lr g_i(x_i), the gradient at the device's own, unmixed model.

    `training.local_epochs` plays no part, and weight decay pulls at the mix. `mixing` gives W. Keys: see PeerMethod.
    """

    def plan(self, state: Any, view: View, key: Key) -> Plan:
        """Ask every device that is there for one step. Raises ConfigError if the graph does not fit the mixing."""
        step = replace(view.setting.training.stretch(view.round), epochs=0, steps=1)
        return self.plan_stretch(view, key, step)

    def local(self, task: Task) -> LocalRule:
        """Return a step of the mix along the gradient at the device's own model."""
        phase = LocalPhase(loss=cross_entropy, gradient=_gradient_at_own)
        return LocalRule((phase,), start=mixed, finish=sent_and_kept)


def _gradient_at_own(w: Bundle, batch: Batch, context: Context) -> list[Tensor]:
    """Return the gradients at the model that the device had before it mixed; running statistics are those of `w`."""
    own = context.copy(context.base if context.own is None else context.own)
    wrt = [own["params"][name].requires_grad_() for name in context.trained]
    return gradients(cross_entropy({**w, "params": own["params"]}, batch, context), wrt)


PARTS = {"dpsgd": DPSGD}
