"""DFedAvg: federated averaging among peers. Every device averages what it hears, then trains for some epochs.

Source: Sun, Li and Wang, "Decentralized Federated Averaging" (2021), without its momentum and quantisation; as "D-PSGD"
among the baselines of the DA-DPFL paper, from which the waiting for fresh models comes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from edgesim.contracts import LocalRule, Plan, Task, View
from edgesim.learning.peers import PeerMethod, mixed, sent_and_kept
from edgesim.learning.rules import PLAIN_SGD
from edgesim.rng import Key


@dataclass(frozen=True, kw_only=True)
class DFedAvg(PeerMethod):
    """Mix models with neighbours, then train: `training.local_epochs` from the mix. Keys: see PeerMethod."""

    def plan(self, state: Any, view: View, key: Key) -> Plan:
        """Ask every device that is there. Raises ConfigError if the graph does not fit the mixing."""
        return self.plan_stretch(view, key, view.setting.training.stretch(view.round))

    def local(self, task: Task) -> LocalRule:
        """Return plain SGD from the mix."""
        return LocalRule(PLAIN_SGD.phases, start=mixed, finish=sent_and_kept)


PARTS = {"dfedavg": DFedAvg}
