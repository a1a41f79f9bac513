"""The mean of tensors of which each has only some rows and columns, entry by entry.

Ten models are many times what a processor's cache holds, so a few rows at a time are summed over all of them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

_BLOCK = 1 << 16  # entries that are worked on at once


class HeldTensor(NamedTuple):
    """A tensor of a message, its weight, and which rows and columns of the model's tensor it has; None: all."""

    tensor: Tensor
    weight: float
    rows: Tensor | None = None
    columns: Tensor | None = None


def mean_by_entry(old: Tensor, held: Sequence[HeldTensor], everybody: float | None) -> Tensor:
    """Return the mean of an entry over those who have it, in the layout of `old`; what nobody has stays.

    `everybody`: the weight of all messages, if those without an entry count with the old one. Sums run in float64, in
    the order of `held`. The numbers of `held` have to be finite.
    """
    base = _by_rows(old)
    size, inside, columns = base.shape
    weights, spreads = _weights(base, held), [_Spread(each, columns) for each in held]
    few = max(1, _BLOCK // (inside * columns))
    sums, product = (base.new_empty(few, inside, columns, dtype=torch.float64) for _ in range(2))
    mean, wide = base.new_empty(base.shape), base.new_empty(few, inside, columns)
    for start in range(0, size, few):
        was, weight = base[start : start + few], weights[start : start + few]
        total = sums[: len(was)].zero_()
        for spread in spreads:
            spread.add_to(total, start, wide, product)
        if everybody is not None:
            total += (everybody - weight) * was
            weight = torch.full_like(weight, everybody)
        found = total.div_(weight.where(weight > 0, 1.0)).to(old.dtype)
        mean[start : start + few] = found.where(weight > 0, was)
    in_memory = mean.view(*old.shape[:1], *old.shape[2:], *old.shape[1:2])
    return torch.empty_like(old).copy_(in_memory.movedim(-1, 1) if old.dim() > 2 else in_memory)


class _Spread:
    """A tensor of a message, of shape (rows, inside, columns) with the rows and columns that it has, rows ascending."""

    def __init__(self, held: HeldTensor, columns: int) -> None:
        self._tensor, self._rows = _by_rows(held.tensor), held.rows
        if held.rows is not None:
            self._rows, order = held.rows.sort()
            if not torch.equal(self._rows, held.rows):
                self._tensor = self._tensor[order]
        self._edges = range(len(self._tensor)) if self._rows is None else self._rows.tolist()
        self._source, self._factor = None, held.tensor.new_full((columns,), held.weight, dtype=torch.float64)
        if held.columns is not None:
            self._source = held.columns.new_zeros(columns)  # of each column: what lacks has the first one's, times 0
            self._source[held.columns] = torch.arange(len(held.columns), device=held.columns.device)
            self._factor = torch.zeros_like(self._factor).index_fill_(0, held.columns, held.weight)

    def add_to(self, total: Tensor, start: int, wide: Tensor, product: Tensor) -> None:
        """Add the tensor times its weight to the rows of `total`, the first of which is row `start` of the model's.

        `wide` and `product` are room to work in, of the tensor's type and of float64.
        """
        first, last = (bisect_left(self._edges, edge) for edge in (start, start + len(total)))
        block = self._tensor[first:last]
        if self._source is not None:
            widened = wide[: len(block)].flatten(0, 1)  # with two dimensions index_select is several times as fast
            torch.index_select(block.flatten(0, 1), 1, self._source, out=widened)
            block = widened.view(-1, *total.shape[1:])
        weighed = product[: len(block)].copy_(block).mul_(self._factor)
        if self._rows is None:
            total += weighed
        else:
            total.index_add_(0, self._rows[first:last] - start, weighed)


def _by_rows(tensor: Tensor) -> Tensor:
    """Return a tensor as one of shape (rows, inside, columns): the pixels of kernels inside, as channels-last has them.

    Vectors have one column. It shares its memory if that is in this order.
    """
    if tensor.dim() < 2:
        return tensor.reshape(-1, 1, 1)
    return tensor.movedim(1, -1).reshape(len(tensor), -1, tensor.shape[1])


def _weights(base: Tensor, held: Sequence[HeldTensor]) -> Tensor:
    """Return the weight of all who have an entry of `base`, (rows, inside, columns), as (rows, 1, columns), float64."""
    weight = base.new_zeros(base.shape[0], base.shape[2], dtype=torch.float64)
    for each in held:
        row, column = (weight.new_zeros(size) for size in weight.shape)
        row[... if each.rows is None else each.rows] = each.weight
        column[... if each.columns is None else each.columns] = 1.0
        weight.addr_(row, column)
    return weight.unsqueeze(1)
