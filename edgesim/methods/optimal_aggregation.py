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
    """Average the local models by data size, without adverse ones; see `DropsAdverse` for what these are.

    Devices do what they do in FedAvg. With `aggregate_over` = "all" who was left out counts as absent.

    In a class of your own the same stands before any method that averages: `class Mine(DropsAdverse, FedAdp)`, from
    `edgesim.methods.weighting.optimal`, has the keys of both and averages, as FedAdp does, what is kept.

    `aggregate_over`: the means that losses are taken of are over participants in any case; who was dropped counts as
    absent.
    """

    needs: ClassVar[Needs] = Needs(feedback=True)  # how often losses are checked, which takes the server time


PLUGINS = {"optimal_aggregation": OptimalAggregation}
