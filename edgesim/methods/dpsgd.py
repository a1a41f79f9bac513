"""D-PSGD: decentralised parallel SGD. A device steps from the mix of its neighbours' models by its own gradient.

Source: Lian et al., "Can Decentralized Algorithms Outperform Centralized Algorithms? A Case Study for Decentralized
Parallel Stochastic Gradient Descent" (NeurIPS 2017), algorithm 1. Waiting for fresh models: DA-DPFL paper.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

from annotated_types import Ge
from torch import Tensor

from edgesim.contracts import Bundle, LocalPhase, LocalRule, Merged, Message, Needs, Plan, Setting, Task, View
from edgesim.learning.context import Batch, Context
from edgesim.learning.loop import gradients
from edgesim.learning.peers import (
    Mixing,
    Select,
    check_mixing,
    mean_of_peers,
    mixed,
    peer_plan,
    peer_task,
    sent_and_kept,
)
from edgesim.learning.rules import cross_entropy
from edgesim.peering import PeerGraph
from edgesim.rng import Key


@dataclass(frozen=True, kw_only=True)
class DPSGD:
    """One mini-batch a round: x_i <- sum_j W_ij x_j - lr g_i(x_i), the gradient at the device's own, unmixed model.

    `training.local_epochs` plays no part, and weight decay pulls at the mix. `mixing` gives W: "uniform" weighs all
    models that a device has alike, "metropolis" is doubly stochastic, on graphs in which peers hear each other.
    `reuse`: for how many neighbours that train earlier in the round a device waits, chosen by `wait_select`.
    """

    mixing: Mixing = "uniform"  # fits every graph; doubly stochastic where all hear equally many and each other
    reuse: Annotated[int, Ge(0)] = 0  # all train at once, as in the method's own paper
    wait_select: Select = "lowest_index"  # known when the round starts, so that nothing is sent in vain
    needs: ClassVar[Needs] = Needs(coordinators=frozenset({"sync"}), keep="computed", peers=True)

    def init(self, setting: Setting, key: Key) -> Any:
        """Return the empty state: devices keep their models themselves."""
        setting.cost.check(widths=0)
        return {}

    def check_peers(self, graph: PeerGraph) -> None:
        """Raise ConfigError if the mixing does not fit who hears whom."""
        check_mixing(graph, self.mixing)

    def plan(self, state: Any, view: View, key: Key) -> Plan:
        """Ask every device that is there for one step. Raises ConfigError if the graph does not fit the mixing."""
        step = replace(view.setting.training.stretch(view.round), epochs=0, steps=1)
        return peer_plan(view, key, peer_task(view, step, self.mixing), self.reuse, self.wait_select)

    def local(self, task: Task) -> LocalRule:
        """Return a step of the mix along the gradient at the device's own model."""
        phase = LocalPhase(loss=cross_entropy, gradient=_gradient_at_own)
        return LocalRule((phase,), start=mixed, finish=sent_and_kept)

    def merge(self, state: Any, base: Bundle, got: Sequence[Message], view: View, tools: Any, key: Key) -> Merged:
        """Return the plain mean of the devices' models."""
        return mean_of_peers(state, base, got)


def _gradient_at_own(w: Bundle, batch: Batch, context: Context) -> list[Tensor]:
    """Return the gradients at the model that the device had before it mixed; running statistics are those of `w`."""
    own = context.copy(context.base if context.own is None else context.own)
    wrt = [own["params"][name].requires_grad_() for name in context.trained]
    return gradients(cross_entropy({**w, "params": own["params"]}, batch, context), wrt)


PARTS = {"dpsgd": DPSGD}
