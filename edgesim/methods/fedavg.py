"""FedAvg: a set of devices trains, the server averages their models by data size.

Source: McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data" (2017);
partial participation as in H. Wu, PhD thesis, York University (2023), chapter 2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from edgesim.core.method import Aggregate, Method, Needs, ServerContext
from edgesim.core.model_state import mapped
from edgesim.core.rng import Key
from edgesim.core.update import ModelState, Update
from edgesim.core.view import Setting


@dataclass(frozen=True, kw_only=True)
class FedAvg(Method):
    """Federated averaging, the baseline: devices train locally, and the server averages their models by data size.

    `aggregate_over`: "participants" normalises over the updates that arrived; "all" counts every absent device with the
    old model and its share of all data (the older form of the algorithm). If the weights of a selection make the
    arrived updates count more than all data, the model moves beyond the mean, in proportion. `weights`: devices count
    by their samples, or all alike.

    Family: server average. Formula: `w <- sum_k n_k w_k / sum_k n_k`. Paper: arXiv 1602.05629.
    """

    aggregate_over: Literal["participants", "all"] = "participants"
    """All experiments of Wu's thesis (chapter 2) average over the participants. A footnote has the older form in which
    absent devices count with the old model and their share of the data: `"all"`.
    """

    weights: Literal["samples", "equal"] = "samples"
    """McMahan et al. (2017) weigh by samples. FedDHAD's paper says of FedAvg that it calculates a simple average."""

    needs: ClassVar[Needs] = Needs(networks=True)

    def combine(
        self, state: Any, global_model: ModelState, updates: Sequence[Update], server: ServerContext, key: Key
    ) -> Aggregate:
        """Return the mean of the models by data size, with the old model for absent devices if these count.

        Updates that the selection makes count more than all data move the model beyond the mean.
        """
        sizes = self.update_weights(updates, server.setting)
        held = server.setting.samples
        everybody = float(held.sum()) if self.weights == "samples" else float((held > 0).sum())
        absent = everybody - sum(sizes) if self.aggregate_over == "all" else 0.0
        if absent > 0:
            updates, sizes = [*updates, updates[0]._replace(body=global_model)], [*sizes, absent]
        mean = server.mean(global_model, updates, sizes)
        if absent < 0:
            times = sum(sizes) / everybody
            mean = mapped(lambda new, old: old + times * (new - old), mean, global_model)
        return Aggregate(state, mean)

    def update_weights(self, updates: Sequence[Update], setting: Setting) -> Sequence[float]:
        """Return data sizes or ones, times the protocol's weights."""
        return [each.weight * (each.samples if self.weights == "samples" else 1) for each in updates]


PLUGINS = {"fedavg": FedAvg}
