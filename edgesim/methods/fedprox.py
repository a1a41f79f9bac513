"""FedProx: FedAvg whose local models are kept near the received model by a proximal term.

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
    """Devices minimise their loss plus `mu` / 2 times the squared distance to the received model; 0 is FedAvg.

    The term does not apply to running statistics. Keys of the average: see FedAvg. The scenario sets the paper's
    variable local work: failure `partial_work`.

    Family: correction of local steps. Formula: `w_k minimises loss_k(w_k) + mu / 2 |w_k - w|^2`. Paper: arXiv
    1812.06127.
    """

    mu: NonNegativeFactor = 0.01  # within the usual grid 0.001, 0.01, 0.1, 1
    """The FedDHAD paper tunes it and does not give the value. The default is from the usual grid 0.001, 0.01, 0.1, 1.
    At 0 it is FedAvg, bit for bit.
    """

    def task(self, view: View) -> Task:
        """Return the training of the whole model, with the work of the proximal term."""
        return replace(super().task(view), passes=proximal_passes(self.mu))

    def local(self, task: Task) -> LocalRule:
        """Return SGD on the cross-entropy, with the proximal term unless `mu` is 0."""
        return proximal_sgd(self.mu)


def proximal_passes(mu: float) -> tuple[Pass, ...]:
    """Return the work of training with a proximal term: 4 extra FLOPs a parameter and step, unless `mu` is 0."""
    return (Pass(), Pass("param_step", times=4.0)) if mu else (Pass(),)


PLUGINS = {"fedprox": FedProx}
