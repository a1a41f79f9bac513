"""FedPNS: devices are drawn with probabilities that fall each time the server finds their update adverse.

Source: H. Wu, P. Wang, Node Selection Toward Faster Convergence for Federated Learning on Non-IID Data (FedPNS), IEEE
TNSE 2022; H. Wu, PhD thesis, York University (2023), chapter 4, algorithm 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from edgesim.core.arrays import Arr, Ids
from edgesim.core.limits import Count, Share
from edgesim.core.method import Aggregate, Needs, ServerContext
from edgesim.core.rng import Key, PlanStream
from edgesim.core.task import Plan
from edgesim.core.update import ModelState, Update
from edgesim.core.view import Setting, View
from edgesim.methods.optimal_aggregation import OptimalAggregation


@dataclass(frozen=True, kw_only=True)
class FedPNS(OptimalAggregation):
    """Draw devices by probability, average with Optimal Aggregation, and lower the probability of adverse devices.

    The scenario's selection gives the number of devices, the probabilities decide which ones. At first all
    probabilities are equal. A device that was labelled adverse in a share x of its updates so far loses the share
    min((x + `beta`)^`alpha`, 1) of its probability to all devices that were not labelled in this round. A device with
    probability 0 is asked only if there are too few other devices.
    `first_round`: drawn by "probabilities", or by the scenario's "selection", which may be stratified.
    The metrics have every device's `probability` after the round, and the metrics of Optimal Aggregation.

    Family: selection of updates. Formula: `P_k <- P_k (1 - min((x_k + beta)^alpha, 1)) for an adverse device k; its
    loss goes to the others`. Paper: arXiv 2105.07066.
    """

    alpha: Count = 2
    """The best value of Figure 4.5 of the thesis, which tries 1, 2 and 3."""
    beta: Share = 0.7
    """The best value of Figure 4.5, which tries 0.5, 0.7 and 0.8. With `alpha` = 2 a device that was labelled in 3 of
    10 updates loses all of its probability.
    """
    first_round: Literal["probabilities", "selection"] = "probabilities"
    """The algorithm starts from equal probabilities. The code starts from a draw of equally many i.i.d. and other
    devices: `"selection"`, with a stratified selection.
    """
    needs: ClassVar[Needs] = Needs(feedback=True)

    def init(self, setting: Setting, key: Key) -> Any:
        """Return each device's probability and its numbers of arrived and of labelled updates, shape (devices,)."""
        super().init(setting, key)
        probability = setting.by_device(np.full(setting.devices, 1 / setting.devices))
        never = np.zeros(len(probability), dtype=np.int64)
        return {"probability": probability, "selected": never, "labelled": never}

    def plan(self, state: Any, view: View, key: Key) -> Plan:
        """Ask reachable devices, drawn by probability, to train the whole model."""
        chosen = view.choose(key)
        if view.round or self.first_round == "probabilities":
            chosen = draw(state["probability"], view.idle, len(chosen), key.at(PlanStream.DEVICES))
        return Plan.of_one_task(chosen.tolist(), self.task(view))

    def aggregate(
        self, state: Any, global_model: ModelState, updates: Sequence[Update], server: ServerContext, key: Key
    ) -> Aggregate:
        """Return the mean of the kept updates, and lower the probabilities of labelled devices."""
        merged = super().aggregate(state, global_model, updates, server, key)
        flags = merged.metrics["labelled"]
        arrived, labelled = _ids(flags), _ids([device for device, flag in flags.items() if flag])
        new = {name: state[name].copy() for name in ("selected", "labelled")}
        new["selected"][arrived] += 1
        new["labelled"][labelled] += 1
        share = new["labelled"][labelled] / new["selected"][labelled]
        members = server.setting.ids
        probability = lowered(
            state["probability"][members],
            np.searchsorted(members, labelled),
            np.minimum((share + self.beta) ** self.alpha, 1.0),
        )
        metrics = {**merged.metrics, "probability": dict(zip(members.tolist(), probability.tolist(), strict=True))}
        return merged._replace(state={"probability": server.setting.by_device(probability), **new}, metrics=metrics)


def draw(probability: Arr, among: Ids, count: int, key: Key) -> Ids:
    """Return `count` distinct ids of `among`, ascending, drawn one after the other by probability, shape (devices,).

    If fewer ids have a probability above 0, all of these and random others.
    """
    generator, weight = key.numpy(), probability[among]
    likely = among[weight > 0]
    if len(likely) < count:
        others = generator.choice(among[weight == 0], count - len(likely), replace=False)
        return np.sort(np.concatenate([likely, others]))
    return np.sort(generator.choice(among, count, replace=False, p=weight / weight.sum()))


def lowered(probability: Arr, labelled: Ids, share: Arr) -> Arr:
    """Return probabilities, shape (devices,), after labelled devices lost these shares to all others equally.

    If all devices were labelled, all probabilities stay.
    """
    others = np.ones(len(probability), dtype=bool)
    others[labelled] = False
    if not others.any():
        return probability
    lost = np.zeros_like(probability)
    lost[labelled] = probability[labelled] * share
    new = np.maximum(probability - lost + others * lost.sum() / others.sum(), 0.0)
    return new / new.sum() if abs(new.sum() - 1) > 1e-9 else new


def _ids(devices: Any) -> Ids:
    return np.array(list(devices), dtype=np.int64)


PLUGINS = {"fedpns": FedPNS}
