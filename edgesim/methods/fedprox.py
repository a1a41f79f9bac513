"""FedProx: FedAvg whose devices are held near the model that they received.

Source: Li et al., "Federated Optimization in Heterogeneous Networks" (MLSys 2020), algorithm 2; aggregation and search
grid as among the baselines of the FedDHAD paper.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from edgesim.contracts import LocalRule, Order, Pass, Plan, Task, View
from edgesim.learning.rules import proximal_sgd
from edgesim.methods.fedavg import FedAvg
from edgesim.numbers import NonNegativeNumber
from edgesim.rng import Key


@dataclass(frozen=True, kw_only=True)
class FedProx(FedAvg):
    """Devices minimise their loss plus `mu` / 2 times the squared distance to the model received; 0 is FedAvg.

    Running statistics are not held. Keys of the average: see FedAvg. The paper's variable local work is a matter of
    the scenario: failure `partial_work`.
    """

    mu: NonNegativeNumber = 0.01  # within the usual grid 0.001, 0.01, 0.1, 1

    def plan(self, state: Any, view: View, key: Key) -> Plan:
        """Ask the selected devices to train the whole model."""
        task = Task(stretches=(view.setting.training.stretch(view.round),), passes=proximal_passes(self.mu))
        return Plan(tuple(Order(device, task) for device in view.choose(key).tolist()))

    def local(self, task: Task) -> LocalRule:
        """Return SGD on the cross-entropy with the proximal term, if there is one."""
        return proximal_sgd(self.mu)


def proximal_passes(mu: float) -> tuple[Pass, ...]:
    """Return the work of training with a proximal term: 4 FLOPs a parameter and step on top, if there is a term."""
    return (Pass(), Pass("param_step", times=4.0)) if mu else (Pass(),)


PARTS = {"fedprox": FedProx}
