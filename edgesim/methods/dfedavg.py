"""DFedAvg: federated averaging among peers. Every device averages what it hears, then trains for some epochs.

Source: Sun, Li and Wang, "Decentralized Federated Averaging" (2021), without its momentum and quantisation; as "D-PSGD"
among the baselines of the DA-DPFL paper, from which the waiting for fresh models comes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from annotated_types import Ge

from edgesim.contracts import Bundle, LocalRule, Merged, Message, Needs, Plan, Setting, Task, View
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
from edgesim.learning.rules import PLAIN_SGD
from edgesim.peering import PeerGraph
from edgesim.rng import Key


@dataclass(frozen=True, kw_only=True)
class DFedAvg:
    """Mix models with neighbours, then train: `training.local_epochs` from the mix.

    `mixing`: "uniform" weighs all models that a device has alike, "metropolis" keeps the mean of all devices where it
    is, on graphs in which peers hear each other. `reuse`: for how many neighbours that train earlier in the round a
    device waits, chosen by `wait_select`.
    """

    mixing: Mixing = "uniform"  # fits every graph
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
        """Ask every device that is there. Raises ConfigError if the graph does not fit the mixing."""
        task = peer_task(view, view.setting.training.stretch(view.round), self.mixing)
        return peer_plan(view, key, task, self.reuse, self.wait_select)

    def local(self, task: Task) -> LocalRule:
        """Return plain SGD from the mix."""
        return LocalRule(PLAIN_SGD.phases, start=mixed, finish=sent_and_kept)

    def merge(self, state: Any, base: Bundle, got: Sequence[Message], view: View, tools: Any, key: Key) -> Merged:
        """Return the plain mean of the devices' models."""
        return mean_of_peers(state, base, got)


PARTS = {"dfedavg": DFedAvg}
