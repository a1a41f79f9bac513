"""DFedAvg: federated averaging among peers. Every device averages the received models, then trains for some epochs.

Source: Sun, Li and Wang, "Decentralized Federated Averaging" (2021), without its momentum and quantisation; as "D-PSGD"
among the baselines of the DA-DPFL paper, from which the waiting for fresh models comes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from edgesim.core.method import LocalRule
from edgesim.core.rng import Key
from edgesim.core.task import Plan, Task
from edgesim.core.view import View
from edgesim.learning.train.rules import PLAIN_SGD
from edgesim.methods.decentralised.base import PeerMethod, mixed, sent_and_kept


@dataclass(frozen=True, kw_only=True)
class DFedAvg(PeerMethod):
    """Peers without a server mix models with neighbours, then train from the mix. Keys: see PeerMethod.

    Family: peers. Formula: `x_i <- sum_j W_ij x_j, then local SGD from x_i`. Paper: arXiv 2104.11375.
    """

    def plan(self, state: Any, view: View, key: Key) -> Plan:
        """Ask every reachable device to train. Raises ConfigError if the graph does not fit the mixing."""
        return self.plan_stretch(view, key, view.setting.training.local_sgd(view.round))

    def local(self, task: Task) -> LocalRule:
        """Return plain SGD from the mix."""
        return LocalRule(PLAIN_SGD.phases, on_start=mixed, on_finish=sent_and_kept)


PLUGINS = {"dfedavg": DFedAvg}
