"""Robust alternatives to the mean where some updates may be malicious. Pure functions of tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from edgesim.core.model_state import mapped
from edgesim.core.update import ModelState, Update


def by_entry(
    global_model: ModelState, updates: Sequence[Update], centre: Callable[[Tensor], Tensor]
) -> dict[str, dict[str, Tensor]]:
    """Return a model whose entries are the centres of the updates' entries.

    `centre`: maps values (updates, ...), float64, sorted along the first dimension, to shape (...). Every update has
    all tensors of the model.
    """

    def joint(old: Tensor, *sent: Tensor) -> Tensor:
        return centre(torch.stack(sent).double().sort(0).values).to(old.dtype)

    return mapped(joint, global_model, *(update.body for update in updates))


def median(values: Tensor) -> Tensor:
    """Return the median of sorted values (n, ...). For an even n it is the mean of the two middle values."""
    n = len(values)
    return values[(n - 1) // 2 : n // 2 + 1].mean(0)


def trimmed_mean(values: Tensor, share: float) -> Tensor:
    """Return the mean of sorted values (n, ...) without the lowest and highest floor(share n). `share` is below 1/2."""
    cut = int(share * len(values) + 1e-9)
    return values[cut : len(values) - cut].mean(0)


def square_distances(updates: Sequence[Update]) -> Tensor:
    """Return the squared distances between the updates' parameters, each as one vector: (n, n), float64."""
    total = torch.zeros(len(updates), len(updates), dtype=torch.float64)
    for name in updates[0].body["params"]:
        values = torch.stack([update.body["params"][name].flatten() for update in updates]).double()
        for row in range(len(updates) - 1):
            apart = (values[row + 1 :] - values[row]).square().sum(1)
            total[row, row + 1 :] += apart
            total[row + 1 :, row] += apart
    return total


def krum_scores(distances: Tensor, neighbours: int) -> Tensor:
    """Return the sum of each update's squared distances to its `neighbours` nearest others, shape (n,).

    Source: Blanchard et al., "Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent" (NeurIPS 2017),
    section 4.
    """
    nearest = distances.sort(1).values[:, 1:]  # the first is the distance to itself, 0
    return nearest[:, :neighbours].sum(1)
