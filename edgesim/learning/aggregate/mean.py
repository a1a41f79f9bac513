"""Means of models: weighted, by entry, and over non-zero entries."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Container, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from edgesim.core.errors import ContractError
from edgesim.core.method import Absent
from edgesim.core.price_list import CostProfile
from edgesim.core.update import AVERAGED, ModelState, Update
from edgesim.learning.codec.packed import Packed, Tensors, numbers_of
from edgesim.learning.codec.transfer import on_cpu
from edgesim.learning.submodel.slicing import Cut


def mean_of_holders(
    global_model: ModelState,
    updates: Sequence[Update],
    weights: Sequence[float],
    *,
    absent: Absent = "average_over_holders",
    cost_profile: CostProfile | None = None,
) -> ModelState:
    """Return the weighted mean of updates. Parameters that no update contains keep their old value.

    `absent` "average_over_holders": the weights of every single parameter are normalised over the updates that hold it,
    so that a layer or unit that few devices trained is never mixed with old values. "include_absent": an update that
    lacks a parameter counts as one with the old value. Sums run in float64 in the order of `updates`, so that the mean
    of equal models is exactly that model. `weights`: non-negative, shape (len(updates),). `cost_profile`: of the model,
    needed for updates from thinner sub-models. Raises ContractError for a collection that has no mean.
    """
    cuts: list[Cut | None] = []
    for message in updates:
        if unknown := message.body.keys() - AVERAGED:
            raise ContractError(f"cannot average {sorted(unknown)}: only {sorted(AVERAGED)} have a mean")
    for submodel in (message.task.submodel for message in updates):
        if submodel.channels and cost_profile is None:
            raise ContractError("the mean of thinner parts needs the cost profile of the model")
        cuts.append(Cut(submodel, cost_profile) if submodel.channels and cost_profile is not None else None)
    everybody = sum(weights) if absent == "include_absent" else None

    def mean(collection: str, name: str, old: Tensor) -> Tensor:
        held: list[HeldTensor] = []
        for message, weight, cut in zip(updates, weights, cuts, strict=True):
            if name in message.body.get(collection, {}):
                index = cut.index(name, old) if cut else ...
                kept = () if index is ... else (each.flatten() if isinstance(each, Tensor) else None for each in index)
                rows, columns = (*kept, None, None)[:2]
                held.append(HeldTensor(message.body[collection][name], weight, rows, columns))
        total = sum(each.weight for each in held)
        if total <= 0:
            return old
        if everybody is not None or any(each.rows is not None or each.columns is not None for each in held):
            return mean_by_entry(old, held, everybody)
        result = torch.zeros_like(old, dtype=torch.float64)
        for each in held:
            result.add_(each.tensor, alpha=each.weight / total)
        return result.to(old.dtype)

    return {
        collection: {name: mean(collection, name, old) for name, old in tensors.items()}
        for collection, tensors in global_model.items()
    }


def is_finite(model_state: ModelState) -> bool:
    """Return True if all numbers of a model state are finite. Nothing is unpacked, because zeros are finite."""
    numbers = (tensor for tensors in model_state.values() for tensor in numbers_of(tensors))
    # A finite sum has finite terms, and it takes little time.
    return all(math.isfinite(tensor.sum().item()) or bool(tensor.isfinite().all()) for tensor in numbers)


def finite_or_none(model_state: ModelState) -> ModelState | None:
    """Return a state that a device may keep, on the CPU. None: it has diverged, so the device keeps its old state."""
    kept = on_cpu(model_state)
    return kept if is_finite(kept) else None


def not_below_0(name: str, value: Tensor) -> Tensor:
    """Return a tensor of a model after noise or rounding: a running variance is raised to at least 0."""
    return value.clamp(min=0.0) if name.endswith("running_var") else value


def finite(updates: Sequence[Update]) -> tuple[list[Update], dict[str, float]]:
    """Return the updates whose tensors are all finite, and the metric `left_out` if any others were left out.

    A diverged device must not corrupt the global model.
    """
    usable = [m for m in updates if is_finite(m.body)]
    left_out = len(updates) - len(usable)
    return usable, {"left_out": float(left_out)} if left_out else {}


_BLOCK = 1 << 16  # entries that are processed at once


class HeldTensor(NamedTuple):
    """A tensor of a message, its weight, and the rows and columns of the model's tensor that it has. None: all."""

    tensor: Tensor
    weight: float
    rows: Tensor | None = None
    columns: Tensor | None = None


def mean_by_entry(old: Tensor, held: Sequence[HeldTensor], everybody: float | None) -> Tensor:
    """Return the mean of each entry over the messages that have it, in the layout of `old`. Other entries stay.

    `everybody`: the weight of all messages, if messages without an entry count with the old value. Sums run in float64
    in the order of `held`. The numbers of `held` must be finite.
    """
    base = _by_rows(old)
    size, inside, columns = base.shape
    held_weight = base.new_zeros(size, columns, dtype=torch.float64)  # of the messages that have an entry
    for each in held:
        row, column = (held_weight.new_zeros(length) for length in held_weight.shape)
        row[... if each.rows is None else each.rows] = each.weight
        column[... if each.columns is None else each.columns] = 1.0
        held_weight.addr_(row, column)
    weights, spreads = held_weight.unsqueeze(1), [_Spread(each, columns) for each in held]
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
    """A tensor of a message in shape (rows, inside, columns), with the rows and columns that it has. Rows ascend."""

    def __init__(self, held: HeldTensor, columns: int) -> None:
        self._tensor, self._rows = _by_rows(held.tensor), held.rows
        if held.rows is not None:
            self._rows, order = held.rows.sort()
            if not torch.equal(self._rows, held.rows):
                self._tensor = self._tensor[order]
        self._edges = range(len(self._tensor)) if self._rows is None else self._rows.tolist()
        self._source, self._factor = None, held.tensor.new_full((columns,), held.weight, dtype=torch.float64)
        if held.columns is not None:
            self._source = held.columns.new_zeros(columns)  # a column that is missing takes the first one's, times 0
            self._source[held.columns] = torch.arange(len(held.columns), device=held.columns.device)
            self._factor = torch.zeros_like(self._factor).index_fill_(0, held.columns, held.weight)

    def add_to(self, total: Tensor, start: int, wide: Tensor, product: Tensor) -> None:
        """Add the tensor times its weight to `total`, whose first row is row `start` of the model's tensor.

        `wide` and `product` are buffers of the tensor's type and of float64.
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
    """Return a tensor in shape (rows, inside, columns), with the pixels of kernels inside, as in channels-last order.

    Vectors have one column. The result shares memory with the tensor if it is stored in this order.
    """
    if tensor.dim() < 2:
        return tensor.reshape(-1, 1, 1)
    return tensor.movedim(1, -1).reshape(len(tensor), -1, tensor.shape[1])


_NONZERO_BLOCK = 1 << 15  # entries that are processed at once, a multiple of 8


def mean_of_nonzero(models: Iterable[ModelState], covered: Container[str]) -> dict[str, dict[str, Tensor]]:
    """Return the mean of each weight over the models in which it is not 0, and 0 if it is 0 in all.

    `covered`: names of the parameters that masks cover. Others are averaged over all models. `models`: finite, of equal
    weight, summed in float64 in the given order. One tensor of a model is read at a time, and packed ones in blocks.
    """
    read: dict[str, dict[str, list[Any]]] = {}
    for model in models:
        for collection, tensors in model.items():
            names = read.setdefault(collection, {})
            for name in tensors:
                names.setdefault(name, []).append(tensors)
    result: dict[str, dict[str, Tensor]] = {}
    for collection, names in read.items():
        result[collection] = found = {}
        for name, those in names.items():
            held = [tensors.stored[name] if isinstance(tensors, Tensors) else tensors[name] for tensors in those]
            found[name] = _mean(held, collection == "params" and name in covered)
    return result


def _mean(held: Sequence[Tensor | Packed], covered: bool) -> Tensor:
    """Return the mean of a tensor, in the layout of the first one. `covered`: over its non-zero entries."""
    first = held[0].tensor() if isinstance(held[0], Packed) else held[0]
    mean = torch.empty_like(first)
    streams: list[Iterator[Tensor]] = []  # blocks in the order in which those of `mean` lie in memory
    for each in held:
        if isinstance(each, Packed) and each.stride == mean.stride():
            streams.append(each.blocks(_NONZERO_BLOCK))
        else:
            tensor = each.tensor() if isinstance(each, Packed) else each
            tensor = tensor if tensor.stride() == mean.stride() else torch.empty_like(mean).copy_(tensor)
            streams.append(_pieces(tensor))
    sums = mean.new_empty(_NONZERO_BLOCK, dtype=torch.float64)
    wide, counts, there = torch.empty_like(sums), sums.to(torch.int32), sums.to(torch.bool)
    for into, *blocks in zip(_pieces(mean), *streams, strict=True):
        total, product, having, nonzero = (room[: len(into)] for room in (sums, wide, counts, there))
        total.zero_()
        having.fill_(0 if covered else len(held))
        for block in blocks:
            total += product.copy_(block)
            if covered:
                np.not_equal(block.numpy(), 0, out=nonzero.numpy())  # in a tenth of torch's time
                having += nonzero
        into.copy_(total.div_(having.clamp_(min=1)))
    return mean


def _pieces(tensor: Tensor) -> Iterator[Tensor]:
    """Return the entries of a contiguous tensor in blocks of its memory."""
    return iter(torch.split(tensor.as_strided((tensor.numel(),), (1,)), _NONZERO_BLOCK))
