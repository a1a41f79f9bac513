"""Optimal Aggregation: FedAvg whose server leaves out the updates that pull against the others.

Source: H. Wu, PhD thesis, York University (2023), chapter 4, algorithm 2; H. Wu, P. Wang, Node Selection Toward Faster
Convergence for Federated Learning on Non-IID Data (FedPNS), IEEE TNSE 2022, algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from edgesim.core.method import Needs
from edgesim.methods.fedavg import FedAvg
from edgesim.methods.weighting.optimal import DropsAdverse


@dataclass(frozen=True, kw_only=True)
class OptimalAggregation(DropsAdverse, FedAvg):
    """Average the local models by data size, without adverse ones; see `DropsAdverse` for their definition.

    Devices train as in FedAvg. With `aggregate_over` = "all" dropped devices count as absent.

    In your own class the mixin can stand before any method that averages: `class Mine(DropsAdverse, FedAdp)`, from
    `edgesim.methods.weighting.optimal`, has the keys of both. It averages the kept updates as FedAdp does.

    `aggregate_over`: losses are always computed for means over participants. Dropped devices count as absent.

    Family: selection of updates. Formula: `w <- sum_(k in S) n_k w_k / sum_(k in S) n_k, where S are the devices that
    are not adverse`. Paper: arXiv 2105.07066.
    """

    needs: ClassVar[Needs] = Needs(feedback=True)  # the number of loss checks, which take server time


PLUGINS = {"optimal_aggregation": OptimalAggregation}
