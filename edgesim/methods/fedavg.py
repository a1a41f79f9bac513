"""FedAvg: a set of devices trains, the server averages their models by data size.

Source: McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data" (2017);
partial participation as in H. Wu, PhD thesis, York University (2023), chapter 2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from edgesim.core.method import Aggregate, Method, Needs, ServerContext
from edgesim.core.rng import Key
from edgesim.core.update import ModelState, Update


@dataclass(frozen=True, kw_only=True)
class FedAvg(Method):
    """Federated averaging: plain local training, and the mean of the local models by data size.

    `aggregate_over`: "participants" normalises over the updates that arrived; "all" lets every absent device
    count with the old model and its share of all data (the older form of the algorithm). A selection whose weights
    make what came count more than all data moves the model beyond the mean, in proportion.
    """

    aggregate_over: Literal["participants", "all"] = "participants"
    """All experiments of Wu's thesis (chapter 2) average over who took part; a footnote has the older form in which
    absent devices count with the old model and their share of the data: `"all"`.
    """

    needs: ClassVar[Needs] = Needs(networks=True)

    def combine(
        self, state: Any, global_model: ModelState, updates: Sequence[Update], server: ServerContext, key: Key
    ) -> Aggregate:
        """Return the mean of the models by data size, with the old model for absent devices if these count."""
        sizes = self.update_weights(updates, server.setting)
        everybody = float(server.setting.samples.sum())
        absent = everybody - sum(sizes) if self.aggregate_over == "all" else 0.0
        if absent > 0:
            updates, sizes = [*updates, updates[0]._replace(body=global_model)], [*sizes, absent]
        mean = server.mean(global_model, updates, sizes)
        return Aggregate(state, _beyond(global_model, mean, sum(sizes) / everybody) if absent < 0 else mean)


def _beyond(old: ModelState, mean: ModelState, times: float) -> ModelState:
    """Return the model that lies `times` as far from the old one as the mean does.

    So far go updates that the selection lets count more than there are data.
    """
    return {
        kind: {name: old[kind][name] + times * (new - old[kind][name]) for name, new in tensors.items()}
        for kind, tensors in mean.items()
    }


PLUGINS = {"fedavg": FedAvg}
