"""Probabilities that units of a network are left out on a device, by their importance and the device's speed.

Source: "Efficient Federated Learning with Heterogeneous Data and Adaptive Dropout", arXiv 2507.10430 (FedAD).
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np

from edgesim.core.arrays import Arr, Ids
from edgesim.core.price_list import ChannelGroup
from edgesim.core.task import Payload, Submodel, Task
from edgesim.core.view import Setting
from edgesim.core.workload import full_speed_s

RankNorm: TypeAlias = Literal["layer_max", "none"]


def normalised(importance: Arr, sizes: Sequence[int], how: RankNorm) -> Arr:
    """Return importances, shape (units,), with those of each layer divided by its largest; zeros stay.

    `sizes`: units of each layer, in order. "none": as they are. Negative ones count by their magnitude.
    """
    if how == "none":
        return importance
    layers = np.split(importance, np.cumsum(sizes)[:-1])
    return np.concatenate([layer / (np.abs(layer).max() or 1.0) for layer in layers])


def drop_probabilities(importance: Arr, mean: float, most: float) -> Arr:
    """Return probabilities proportional to exp(-importance), shape (units,), with this mean and none above `most`.

    The excess of capped units goes to the others in proportion. All are `most` if the mean cannot be reached.
    """
    if mean >= most:
        return np.full(len(importance), most)
    weight = np.exp(importance.min() - importance)
    capped = np.zeros(len(importance), dtype=bool)
    while True:
        left = mean * len(importance) - most * capped.sum()
        result = np.where(capped, most, weight * (left / weight[~capped].sum()))
        over = ~capped & (result > most)
        if not over.any():
            return result
        capped |= over


def shares_of_time(seconds: Arr, samples: Arr, ratio: float) -> tuple[float, Arr]:
    """Return ET_max and every device's share of its own time that ET_max leaves it, at most 1, shape (devices,).

    `seconds`: time for the whole model on each device, shape (devices,). ET_max is the time of the device with the most
    samples, the first of several, times `ratio`.
    """
    longest_s = float(seconds[np.argmax(samples)]) * ratio
    return longest_s, np.minimum(longest_s / seconds, 1.0)


def round_seconds(setting: Setting, submodel: Submodel, round_: int) -> Arr:
    """Return the seconds for each device to download, train and upload a submodel, shape (devices,).

    It follows from the server's knowledge, with links without contention and the plain weights as payload.
    """
    cost_profile, model = setting.cost_profile, Payload()
    down_s = 8.0 * cost_profile.nbytes(model, submodel, setting.encoding_down) / setting.down_bps
    up_s = 8.0 * cost_profile.nbytes(model, submodel, setting.encoding_up) / setting.up_bps
    task = Task(submodel=submodel, local_sgd=(setting.training.local_sgd(round_),))
    compute_s = full_speed_s(task, setting, np.arange(len(setting.samples)))
    seconds: Arr = down_s + compute_s + up_s + 2.0 * setting.latency_s
    return seconds


def largest_shares(setting: Setting, groups: Sequence[ChannelGroup], longest_s: float, round_: int) -> Arr:
    """Return the largest share of all units, in steps of 0.001, with which each device takes at most `longest_s`.

    Shape (devices,); 0 where one unit of each layer is too many.
    """
    known: dict[int, Arr] = {}

    def seconds(thousandths: int) -> Arr:
        if thousandths not in known:
            counts = {group.name: max(1, round(thousandths * group.size / 1000)) for group in groups}
            submodel = Submodel(width=1, channels=tuple((name, tuple(range(count))) for name, count in counts.items()))
            known[thousandths] = round_seconds(setting, submodel, round_)
        return known[thousandths]

    def largest(device: int) -> int:
        return bisect_right(range(1001), longest_s, key=lambda thousandths: float(seconds(thousandths)[device])) - 1

    return np.array([max(0, largest(device)) for device in range(len(setting.samples))]) / 1000


def drawn(probability: Arr, importance: Arr, exact: bool, draws: np.random.Generator) -> Ids:
    """Draw the units of a layer that stay, ascending: each independently, or `exact`, as many as expected.

    `probability` that each is left out, and `importance`, shape (units,). At least one stays, if need be the most
    important one.
    """
    if exact:
        chance = 1 - probability
        count = max(1, round(float(chance.sum())))
        return np.sort(draws.choice(len(chance), count, replace=False, p=chance / chance.sum()))
    kept = np.flatnonzero(draws.random(len(probability)) >= probability)
    return kept if len(kept) else np.array([np.argmax(importance)])


# --- when ---------------------------------------------------------------------------------------------------

WAITING: Mapping[str, Any] = {"best": math.inf, "stall": 0, "delta": math.nan, "started": False}


def triggered(
    before: Mapping[str, Any], delta: float, round_: int, every: int, patience: int, gain: float, latest: int
) -> tuple[bool, dict[str, Any]]:
    """Return True if rates are to be updated after a check, and the state for the next check; at first `WAITING`.

    `delta`: the change of importances since the last check, NaN at the first. The first update comes once no delta was
    below the least so far by the share `gain` for `patience` rounds, `every` of which pass from check to check, or in
    round `latest`. Later updates come whenever a delta is below the one before.
    """
    if before["started"]:
        return delta < before["delta"], {**before, "delta": delta}
    best, stall = before["best"], before["stall"]
    if delta < (1 - gain) * best:
        best, stall = delta, 0
    elif not math.isnan(delta):
        stall += every
    fires = stall >= patience or round_ >= latest
    return fires, {"best": best, "stall": stall, "delta": delta, "started": fires}
