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
_ALL = 2**63 - 1  # samples of the test set
_PLACES = 2**31  # stream below a merge's key, out of the way of the method inside; never renumber
_ROUNDING = 1e-12  # relative: equal updates are equal, however their products were rounded


@dataclass(frozen=True, kw_only=True)
class DropsAdverse(Method):
    """Stands before a method in a class: `class Mine(DropsAdverse, FedAdp)` averages, as FedAdp does, what is kept.

    An update is adverse if without it the updates point more clearly one way: if the value n ||mean of n updates||^2
    grows. The one whose absence lets it grow most is labelled, and dropped unless the mean without it has the greater
    loss on samples of the server; then the rest are looked at again, down to `min_keep`.
    `mode`: "sum", that value; "mean" leaves its factor n out and labels somebody whenever updates differ.
    `v`: the share of the updates that always stays; `min_keep`, if given, their number.
    `check_set`: where losses are taken, among samples of the test set. "first": always the first; "random": drawn anew
    each round; "reserved": as "first", and test accuracies leave them out. `check_samples` of them (default 2000; 128
    if "random"), at most all; at most half if reserved. The metrics hold for every device whose update arrived
    `selected` = 1, `labelled` and `excluded`, 1 or 0.
    """

    mode: Mode = "sum"
    """The paper's expectation over the updates is a mean, the authors' code sums. By the mean, one of several
    differing updates is always labelled: the means without each one have the mean of all as their mean, so one of
    them is at least as long. The sum is a test that can fail. Both find the same update, and stop differently.
    """
    v: Share = 0.7
    """Printed as the least number of updates, which 0.7 cannot be; a comment of the code reads it as a share: of 10
    updates 7 stay.
    """
    min_keep: Count | None = None
    """`8` is what the authors' released code has instead, for 10 updates; an older file of theirs has 7."""
    check_set: Literal["first", "random", "reserved"] = "first"
    """In the code always the first test images, in the paper a batch drawn at random (`"random"`, anew each round).
    Both let the test set guide training; `"reserved"` evaluates on the rest, which the published numbers do not.
    Better for new studies.
    """
    check_samples: Count | None = None
    """2000 in the code; 128 in the paper, the default of `"random"`."""

    @property
    def server_set(self) -> ServerSet:
        """Test samples of the server."""
        if self.check_set == "random":
            return ServerSet(_ALL, at_most=True)
        return ServerSet(self._samples, reserved=self.check_set == "reserved", at_most=True)

    def aggregate(
        self, state: Any, global_model: ModelState, updates: Sequence[Update], server: ServerContext, key: Key
    ) -> Aggregate:
        """Return what the method makes of the updates that are kept.

        FLOPs of the server: the inner products of all updates; those of the loss checks are the tools' to count.
        """
        usable, left_out = finite(updates)
        usable.sort(key=lambda message: message.device)  # ties: the lowest id
        sizes = np.array([message.samples * message.weight for message in usable])
        places = self._places(server.tools, key)

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
        """Return how many of so many updates always stay."""
        return self.min_keep or max(1, math.ceil(self.v * updates - 1e-9))

    def _places(self, tools: Any, key: Key) -> torch.Tensor | None:
        """Return which of the server's samples are looked at in this round; None: all."""
        if self.check_set != "random":
            return None
        samples = len(tools.rows)
        drawn = key.at(_PLACES).numpy().choice(samples, min(self._samples, samples), replace=False)
        return torch.from_numpy(drawn)


def sift(
    products: Arr, sizes: Arr, fewest: int, mode: Mode, loss: Callable[[Sequence[int]], float]
) -> tuple[list[int], list[int]]:
    """Return the places of the updates that are kept, ascending, and of those labelled, in the order found.

    `products`: inner products of the updates, shape (n, n), in any unit; `sizes`: their weights, shape (n,). `loss` of
    the mean of the updates at some places. At least `fewest` stay. The search ends with an update that is labelled but
    not dropped, or once none is adverse. Of equally adverse ones the first is labelled.
    """
    kept, labelled = list(range(len(sizes))), list[int]()
    value = _value(products, sizes, mode)
    while len(kept) > fewest:
        left = np.ix_(kept, kept)
        without = values_without(products[left], sizes[kept], mode)
        worst = int(np.argmax(without))
        if without[worst] <= value * (1 + _ROUNDING):
            break
        labelled.append(kept[worst])
        rest = kept[:worst] + kept[worst + 1 :]
        if not loss(rest) <= loss(kept):  # so that a loss that is no number drops nobody
            break
        kept, value = rest, float(without[worst])
    return kept, labelled


def values_without(products: Arr, sizes: Arr, mode: Mode) -> Arr:
    """Return the value of n updates without each of them, shape (n,), from their inner products, shape (n, n).

    With G = ||mean||^2, c_i = <mean, g_i> and N_i = ||g_i||^2 the mean of the others has, for equal sizes, the square
    (n^2 G - 2 n c_i + N_i) / (n - 1)^2.
    """
    pull = products @ sizes  # sizes.sum() c_i
    squares = sizes @ pull - 2 * sizes * pull + sizes**2 * products.diagonal()
    value: Arr = squares / (sizes.sum() - sizes) ** 2 * (len(sizes) - 1 if mode == "sum" else 1)
    return value


def _value(products: Arr, sizes: Arr, mode: Mode) -> float:
    if not len(sizes):
        return 0.0
    square = float(sizes @ products @ sizes) / float(sizes.sum()) ** 2
    return square * (len(sizes) if mode == "sum" else 1)


def gram_of_moves(global_model: ModelState, updates: Sequence[Update]) -> Arr:
    """Return the inner products of the moves of all parameters, as one vector a device, float64, shape (n, n).

    What a message does not contain has not moved.
    """
    products = torch.zeros(len(updates), len(updates), dtype=torch.float64)
    for name, old in global_model["params"].items():
        moves = (
            torch.stack([m.body["params"].get(name, old) for m in updates]).double().sub_(old).reshape(len(updates), -1)
        )
        products += moves @ moves.T
    return products.numpy()
