"""Weights that fall with a device's degree of non-IID data, and gradients to learn this degree.

Device k has the degree D_k = v_k JS_k + b_k and the weight q_k ~ n_k / D_k. The loss F of the mean model depends on D_k
through the weights alone. Its derivative therefore needs two dot products for each device and no extra backward pass.

Source: "Efficient Federated Learning with Heterogeneous Data and Adaptive Dropout", arXiv 2507.10430 (FedDH).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.special import rel_entr
from torch import Tensor

from edgesim.core.arrays import Arr
from edgesim.core.method import Absent
from edgesim.core.price_list import CostProfile
from edgesim.core.update import ModelState, Update
from edgesim.learning.submodel.slicing import Cut


class Degrees(NamedTuple):
    """Degrees of non-IID data: a divergence, stretched by `v` and shifted by `b`; each of shape (k,)."""

    js: Arr
    v: Arr
    b: Arr

    @property
    def value(self) -> Arr:
        """D, shape (k,). A learned degree may be negative."""
        return self.v * self.js + self.b


class Rates(NamedTuple):
    """Learning rates of `v` and `b`."""

    v: float
    b: float


# --- divergences --------------------------------------------------------------------------------------------


def shares_of(counts: Arr) -> Arr:
    """Return label distributions from label counts, both of shape (k, classes); zeros for a device without samples."""
    shares: Arr = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    return shares


def js_divergence(shares: Arr, mean: Arr, log_base: float = np.e) -> Arr:
    """Return the Jensen-Shannon divergence of each row of `shares`, shape (k, classes), from `mean`, shape (classes,).

    It lies between 0 and log 2 to the base, 1 for base 2; shape (k,).
    """
    middle = (shares + mean) / 2
    divergence: Arr = (rel_entr(shares, middle) + rel_entr(mean, middle)).sum(axis=1) / (2 * np.log(log_base))
    return divergence


# --- weights ------------------------------------------------------------------------------------------------


def weights_of(sizes: Arr, degree: Arr, floor: float, most: float | None = None) -> Arr:
    """Return the weights q of models, proportional to sizes / max(degree, floor), shape (k,), with sum 1.

    `most`: the largest weight. The excess of larger weights goes to the other models in proportion. If all would be at
    `most`, all weights are equal. All zero if all sizes are.
    """
    importance = sizes / np.maximum(degree, floor)
    total = importance.sum()
    q: Arr = importance / total if total > 0 else importance
    if most is None:
        return q
    having = int(np.count_nonzero(q))
    if most * having <= 1:
        return np.where(q > 0, 1 / max(1, having), 0.0)
    capped = np.zeros(len(q), dtype=bool)
    while True:
        left = 1 - most * capped.sum()
        result = np.where(capped, most, q * left / q[~capped].sum())
        over = ~capped & (result > most)
        if not over.any():
            return result
        capped |= over


# --- gradients ----------------------------------------------------------------------------------------------


def pseudo_gradient(
    global_model: ModelState, updates: Sequence[Update], sizes: Arr, lr: float, cost_profile: CostProfile | None = None
) -> dict[str, Tensor]:
    """Return the mean gradient of devices on their way from `global_model`, by parameter, float64.

    The gradient of device k is its move, negated and divided by `lr` and its number of steps. A device without steps
    does not count, and at a rate of 0 no device does. Each entry is averaged by `sizes`, shape (k,), over the devices
    that hold it, and is zero if no device does. `cost_profile`: profile of the model, if updates cover thinner models.
    """
    cuts = _cuts(updates, cost_profile)
    weights = [size if message.steps and lr else 0.0 for message, size in zip(updates, sizes.tolist(), strict=True)]

    def mean(name: str, old: Tensor) -> Tensor:
        total, weight = torch.zeros_like(old, dtype=torch.float64), torch.zeros_like(old, dtype=torch.float64)
        for k, tensor, index in _holders(updates, cuts, name, old):
            total[index] += (old[index].double() - tensor) * (weights[k] / ((lr or 1.0) * max(updates[k].steps, 1)))
            weight[index] += weights[k]
        return total / weight.where(weight > 0, 1.0)

    return {name: mean(name, old) for name, old in global_model["params"].items()}


def gains(
    gradient: Mapping[str, Tensor],
    global_model: ModelState,
    model: ModelState,
    updates: Sequence[Update],
    q: Arr,
    cost_profile: CostProfile | None = None,
    *,
    absent: Absent = "average_over_holders",
) -> Arr:
    """Return gamma, shape (k,): the growth rate of F as the weight of model k rises and the others fall in proportion.

    `gradient`: the gradient of F at `model`, the result of `mean_of_holders` for `global_model`, `updates`, the weights
    `q` (with sum 1) and `absent`. F does not depend on running statistics. If all devices hold all entries, gamma_k is
    <gradient, w_k - w>. If the mean is over the holders of an entry, an entry counts more the smaller the total weight
    Q of its holders: gamma_k = sum over the entries i that k holds of gradient_i (w_ki - w_i) / Q_i. The sum of q gamma
    is zero.
    """
    cuts = _cuts(updates, cost_profile)
    gamma = torch.zeros(len(updates), dtype=torch.float64)
    for name, new in model["params"].items():
        old, slope = global_model["params"][name], gradient[name]
        held = list(_holders(updates, cuts, name, old))
        if absent == "include_absent":  # a device that lacks an entry counts with the old value
            gamma += (slope * (old.double() - new)).sum()
            middle = old
        else:
            weight = torch.zeros_like(new, dtype=torch.float64)  # of the holders of each entry
            for k, _, index in held:
                weight[index] += float(q[k])
            slope, middle = slope / weight.where(weight > 0, 1.0), new
        for k, tensor, index in held:
            gamma[k] += (slope[index] * (tensor.double() - middle[index])).sum()
    result: Arr = gamma.numpy()
    return result


def degree_slopes(degree: Arr, floor: float, q: Arr, gamma: Arr) -> Arr:
    """Return dF/dD = -(q / D) gamma, shape (k,), for D = max(degree, floor). The sum of D dF/dD is zero."""
    slopes: Arr = -q / np.maximum(degree, floor) * gamma
    return slopes


def stepped(degrees: Degrees, slopes: Arr, rates: Rates, floor: float, step_limit: float) -> Degrees:
    """Return the degrees after a gradient step of `v` and `b` down F; `slopes`: dF/dD, shape (k,).

    A degree below `floor` may only rise. No degree changes by more than `step_limit` of max(degree, floor): longer
    steps of its `v` and `b` are shortened. A degree with a slope that is not finite stays.
    """
    value = np.maximum(degrees.value, floor)
    moves = np.isfinite(slopes) & ((degrees.value >= floor) | (slopes < 0))
    slopes = np.where(moves, slopes, 0.0)
    v_step, b_step = -rates.v * degrees.js * slopes, -rates.b * slopes
    change = np.abs(degrees.js * v_step + b_step)
    shorter = np.minimum(1.0, np.divide(step_limit * value, change, out=np.ones_like(change), where=change > 0))
    return Degrees(degrees.js, degrees.v + shorter * v_step, degrees.b + shorter * b_step)


def _cuts(updates: Sequence[Update], cost_profile: CostProfile | None) -> list[Cut | None]:
    """Return the cut of each message, which gives its entries; None: the message has whole tensors."""
    return [
        Cut(message.task.submodel, cost_profile) if cost_profile and message.task.submodel.channels else None
        for message in updates
    ]


def _holders(
    updates: Sequence[Update], cuts: Sequence[Cut | None], name: str, old: Tensor
) -> Iterator[tuple[int, Tensor, Any]]:
    """Yield, for each message with entries of a parameter, its place, these entries and their index in the whole."""
    for k, (message, cut) in enumerate(zip(updates, cuts, strict=True)):
        if name in message.body["params"]:
            yield k, message.body["params"][name], cut.index(name, old) if cut else ...
