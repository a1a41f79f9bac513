"""HierFAVG: federated averaging over a tree. Edge servers average often, and the server averages rarely.

Source: Liu, Zhang, Song and Letaief, "Client-Edge-Cloud Hierarchical Federated Learning" (ICC 2020), algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from edgesim.core.limits import Count
from edgesim.core.local_sgd import Training
from edgesim.core.method import Method
from edgesim.core.task import Task
from edgesim.core.view import View


@dataclass(frozen=True, kw_only=True)
class HierFAVG(Method):
    """FedAvg for fleets with edge servers: devices take `kappa_1` SGD steps between two averages of an edge server.

    Averages are weighted by data size. The paper's kappa_2, the number of edge averages between two averages of the
    server, is `edges.rounds` of the scenario. The learning rate decays with every round of an edge server.
    `training.local_epochs` and `local_steps` are ignored.

    Family: edge servers. Formula: `w_edge <- sum_k n_k w_k / sum_k n_k after kappa_1 steps; w <- the mean of w_edge by
    data size`. Paper: arXiv 1905.06641.
    """

    kappa_1: Count = 6
    """The paper's experiments on MNIST take 6 to 60 local steps between two averages of an edge server."""

    def task(self, view: View) -> Task:
        """Return the task of `kappa_1` steps on the whole model."""
        return _steps(view.setting.training, view.round, self.kappa_1)


@lru_cache(maxsize=64)
def _steps(training: Training, round_: int, steps: int) -> Task:
    """Return the task of a round: always the same object, so that the engine recognises it."""
    return Task(local_sgd=(training.local_sgd(round_).for_steps(steps),))


PLUGINS = {"hierfavg": HierFAVG}
