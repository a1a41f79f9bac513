"""FedProx: FedAvg whose devices are held near the model that they received.

Source: Li et al., "Federated Optimization in Heterogeneous Networks" (MLSys 2020), algorithm 2; aggregation and search
grid as among the baselines of the FedDHAD paper.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from edgesim.core.limits import NonNegativeFactor
from edgesim.core.method import LocalRule
from edgesim.core.task import Pass, Task
from edgesim.core.view import View
from edgesim.learning.train.rules import proximal_sgd
from edgesim.methods.fedavg import FedAvg


@dataclass(frozen=True, kw_only=True)
class FedProx(FedAvg):
    """Devices minimise their loss plus `mu` / 2 times the squared distance to the model received; 0 is FedAvg.

    Running statistics are not held. Keys of the average: see FedAvg. The paper's variable local work is a matter of
    the scenario: failure `partial_work`.
    """

    mu: NonNegativeFactor = 0.01  # within the usual grid 0.001, 0.01, 0.1, 1
    """FedDHAD tunes it and does not say to what; of the usual grid 0.001, 0.01, 0.1, 1. At 0 it is FedAvg, bit for
    bit.
    """

    def task(self, view: View) -> Task:
        """Return the training of the whole model, with the work of the proximal term."""
        return replace(super().task(view), passes=proximal_passes(self.mu))

    def local(self, task: Task) -> LocalRule:
        """Return SGD on the cross-entropy with the proximal term, if there is one."""
        return proximal_sgd(self.mu)


def proximal_passes(mu: float) -> tuple[Pass, ...]:
    """Return the work of training with a proximal term: 4 FLOPs a parameter and step on top, if there is a term."""
    return (Pass(), Pass("param_step", times=4.0)) if mu else (Pass(),)


PLUGINS = {"fedprox": FedProx}
