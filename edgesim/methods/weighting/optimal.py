"""Optimal Aggregation: the server drops updates that pull against the others, one by one, where its samples agree.

Source: H. Wu, PhD thesis, York University (2023), chapter 4, algorithm 2; H. Wu, P. Wang, Node Selection Toward Faster
Convergence for Federated Learning on Non-IID Data (FedPNS), IEEE TNSE 2022, algorithm 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import torch

from edgesim.core.arrays import Arr
from edgesim.core.limits import Count, Share
from edgesim.core.method import Aggregate, Method, ServerContext, ServerSet
from edgesim.core.rng import Key
from edgesim.core.update import ModelState, Update
from edgesim.learning.aggregate.mean import finite, mean_of_holders

Mode: TypeAlias = Literal["sum", "mean"]

_CHECK_SAMPLES = {"first": 2000, "reserved": 2000, "random": 128}
_ALL = 2**63 - 1  # number of samples: the whole test set
_PLACES = 2**31  # stream below a merge's key, apart from the streams of the inner method; never renumber
_ROUNDING = 1e-12  # relative tolerance, so that rounding of products does not tell equal updates apart


@dataclass(frozen=True, kw_only=True)
class DropsAdverse(Method):
    """Drop updates that pull against the others before a method averages: `class Mine(DropsAdverse, FedAdp)`.

    The mixin stands before a method in a class. The method, here FedAdp, averages the updates that are kept.
    An update is adverse if without it the updates agree more on a direction: if the value n ||mean of n updates||^2
    grows. The update whose absence raises this value most is labelled. It is dropped unless the mean without it has the
    greater loss on samples of the server (the printed inequality is reversed; text and code agree on this). Then the
    rest are examined again, down to `min_keep`.
    `mode`: "sum" uses this value. "mean" omits its factor n and labels an update whenever updates differ.
    `v`: the share of the updates that always stays. `min_keep`, if given, replaces it by a number of updates.
    `check_set`: the test samples on which losses are computed. "first" takes always the first samples, "random" draws
    them anew each round, and "reserved" is as "first" but test accuracies leave these samples out. `check_samples`:
    their number (default 2000, 128 if "random"), at most all, at most half if reserved. For every device whose update
    arrived, the metrics hold `selected` = 1, and `labelled` and `excluded`, 1 or 0.
    """

    mode: Mode = "sum"
    """The paper's expectation over the updates is a mean, the authors' code sums. With the mean, one of several
    differing updates is always labelled: the average of the means without each update is the mean of all, so one of
    them is at least as long. The sum is a test that can fail. Both find the same update, and stop differently.
    """
    v: Share = 0.7
    """The paper prints it as the least number of updates, which 0.7 cannot be. A comment in the code reads it as a
    share: of 10 updates 7 stay.
    """
    min_keep: Count | None = None
    """The authors' released code has `8` instead of a share, for 10 updates. An older file of theirs has 7."""
    check_set: Literal["first", "random", "reserved"] = "first"
    """The code always takes the first test images, the paper a batch drawn at random (`"random"`, anew each round).
    Both let the test set guide training. `"reserved"` evaluates on the rest, unlike the published numbers, and is
    better for new studies.
    """
    check_samples: Count | None = None
    """2000 in the code. 128 in the paper, the default of `"random"`."""

    @property
    def server_set(self) -> ServerSet:
        """Test samples of the server."""
        if self.check_set == "random":
            return ServerSet(_ALL, at_most=True)
        return ServerSet(self._samples, reserved=self.check_set == "reserved", at_most=True)

    def aggregate(
        self, state: Any, global_model: ModelState, updates: Sequence[Update], server: ServerContext, key: Key
    ) -> Aggregate:
        """Return the method's aggregate of the updates that are kept.

        FLOPs of the server: the inner products of all updates. The server tools count the FLOPs of the loss checks.
        """
        usable, left_out = finite(updates)
        usable.sort(key=lambda message: message.device)  # ties: the lowest id
        sizes = np.array([message.samples * message.weight for message in usable])
        places = None  # samples of the server for this round's losses; None: all
        if self.check_set == "random":
            samples = len(server.tools.rows)
            drawn = key.at(_PLACES).numpy().choice(samples, min(self._samples, samples), replace=False)
            places = torch.from_numpy(drawn)

        def loss(of: Sequence[int]) -> float:
            mean = mean_of_holders(global_model, [usable[i] for i in of], sizes[list(of)].tolist())
            return float(server.tools.loss(mean, places))

        looks = len(usable) > self._fewest(len(usable))
        products = gram_of_moves(global_model, usable) if looks else np.zeros((len(usable), len(usable)))
        kept, labelled = sift(products, sizes, self._fewest(len(usable)), self.mode, loss)
        merged: Aggregate = super().aggregate(state, global_model, [usable[i] for i in kept], server, key)
        flags = {
            "selected": {m.device: 1.0 for m in usable},
            "labelled": {m.device: float(i in labelled) for i, m in enumerate(usable)},
            "excluded": {m.device: float(i not in kept) for i, m in enumerate(usable)},
        }
        parameters = sum(tensor.numel() for tensor in global_model["params"].values())
        flops = merged.server_flops + looks * parameters * len(usable) * (len(usable) + 1.0)
        return merged._replace(server_flops=flops, metrics={**merged.metrics, **left_out, **flags})

    @property
    def _samples(self) -> int:
        return self.check_samples or _CHECK_SAMPLES[self.check_set]

    def _fewest(self, updates: int) -> int:
        """Return the number of updates that always stay, out of `updates`."""
        return self.min_keep or max(1, math.ceil(self.v * updates - 1e-9))


def sift(
    products: Arr, sizes: Arr, fewest: int, mode: Mode, loss: Callable[[Sequence[int]], float]
) -> tuple[list[int], list[int]]:
    """Return the places of the kept updates, ascending, and of the labelled ones, in the order found.

    `products`: inner products of the updates, shape (n, n), in any unit; `sizes`: their weights, shape (n,); `loss`:
    the loss of the mean of the updates at some places. At least `fewest` stay. The search ends with an update that is
    labelled but not dropped, or when no update is adverse. Of equally adverse updates the first is labelled.
    """
    kept, labelled, value = list(range(len(sizes))), list[int](), 0.0
    if len(sizes):
        square = float(sizes @ products @ sizes) / float(sizes.sum()) ** 2
        value = square * (len(sizes) if mode == "sum" else 1)
    while len(kept) > fewest:
        left = np.ix_(kept, kept)
        without = values_without(products[left], sizes[kept], mode)
        worst = int(np.argmax(without))
        if without[worst] <= value * (1 + _ROUNDING):
            break
        labelled.append(kept[worst])
        rest = kept[:worst] + kept[worst + 1 :]
        if not loss(rest) <= loss(kept):  # so that a loss of NaN drops no update
            break
        kept, value = rest, float(without[worst])
    return kept, labelled


def values_without(products: Arr, sizes: Arr, mode: Mode) -> Arr:
    """Return the values of n updates without each of them, shape (n,), from their inner products, shape (n, n).

    With G = ||mean||^2, c_i = <mean, g_i> and N_i = ||g_i||^2 the mean of the others has, for equal sizes, the square
    (n^2 G - 2 n c_i + N_i) / (n - 1)^2.
    """
    pull = products @ sizes  # sizes.sum() c_i
    squares = sizes @ pull - 2 * sizes * pull + sizes**2 * products.diagonal()
    value: Arr = squares / (sizes.sum() - sizes) ** 2 * (len(sizes) - 1 if mode == "sum" else 1)
    return value


def gram_of_moves(global_model: ModelState, updates: Sequence[Update]) -> Arr:
    """Return the inner products of the moves of all parameters, as one vector a device, float64, shape (n, n).

    A parameter that a message does not contain has not moved.
    """
    products = torch.zeros(len(updates), len(updates), dtype=torch.float64)
    for name, old in global_model["params"].items():
        moves = (
            torch.stack([m.body["params"].get(name, old) for m in updates]).double().sub_(old).reshape(len(updates), -1)
        )
        products += moves @ moves.T
    return products.numpy()
