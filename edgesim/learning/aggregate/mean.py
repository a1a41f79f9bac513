"""Pure aggregation of updates. Each parameter is averaged over the updates that contain it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from edgesim.core.errors import ContractError
from edgesim.core.method import Absent
from edgesim.core.update import AVERAGED, ModelState, Update
from edgesim.cost.profile import CostProfile
from edgesim.learning.aggregate.entry_mean import HeldTensor, mean_by_entry
from edgesim.learning.codec.packed import numbers_of
from edgesim.learning.submodel.slicing import Cut


def mean_of_holders(
    global_model: ModelState,
    updates: Sequence[Update],
    weights: Sequence[float],
    *,
    absent: Absent = "average_over_holders",
    cost_profile: CostProfile | None = None,
) -> ModelState:
    """Return the weighted mean of updates; what no update contains keeps its old value.

    `absent` "average_over_holders": the weights of every single parameter are normalised over the updates that hold it,
    so a layer or unit that few devices trained is never mixed with others' old values. "include_absent": an update that
    lacks a parameter counts as one with the old value. Sums run in float64 in the order of `updates`, so equal models
    give back exactly that model. `weights`: non-negative, shape (len(updates),). `cost_profile`: of the model, where
    updates come from thinner sub-models. Raises ContractError for a collection that has no mean.
    """
    for message in updates:
        if unknown := message.body.keys() - AVERAGED:
            raise ContractError(f"cannot average {sorted(unknown)}: only {sorted(AVERAGED)} have a mean")
    cuts = [_cut(message, cost_profile) for message in updates]
    everybody = sum(weights) if absent == "include_absent" else None

    def mean(collection: str, name: str, old: Tensor) -> Tensor:
        held = [
            HeldTensor(m.body[collection][name], weight, *_places(cut, name, old))
            for m, weight, cut in zip(updates, weights, cuts, strict=True)
            if name in m.body.get(collection, {})
        ]
        if sum(each.weight for each in held) <= 0:
            return old
        whole = all(each.rows is None and each.columns is None for each in held) and everybody is None
        return _mean_of_whole(old, held) if whole else mean_by_entry(old, held, everybody)

    return {
        collection: {name: mean(collection, name, old) for name, old in tensors.items()}
        for collection, tensors in global_model.items()
    }


def _cut(message: Update, cost_profile: CostProfile | None) -> Cut | None:
    submodel = message.task.submodel
    if not submodel.channels:
        return None
    if cost_profile is None:
        raise ContractError("the mean of thinner parts needs the cost profile of the model")
    return Cut(submodel, cost_profile)


def _mean_of_whole(old: Tensor, held: Sequence[HeldTensor]) -> Tensor:
    total = sum(each.weight for each in held)
    mean = torch.zeros_like(old, dtype=torch.float64)
    for each in held:
        mean.add_(each.tensor, alpha=each.weight / total)
    return mean.to(old.dtype)


def _places(cut: Cut | None, name: str, old: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """Return which rows and columns of a tensor a message has, each of shape (kept,); None: all."""
    index = cut.index(name, old) if cut else ...
    kept = () if index is ... else tuple(each.flatten() if isinstance(each, Tensor) else None for each in index)
    rows, columns = (*kept, None, None)[:2]
    return rows, columns


def is_finite(model_state: ModelState) -> bool:
    """Whether all numbers of a model state are finite. Nothing is unpacked, as zeros are."""
    return all(_all_finite(tensor) for tensors in model_state.values() for tensor in numbers_of(tensors))


def _all_finite(tensor: Tensor) -> bool:
    """Whether all numbers of a tensor are finite: those of a finite sum are, and a sum takes little time."""
    return math.isfinite(tensor.sum().item()) or bool(tensor.isfinite().all())


def finite(updates: Sequence[Update]) -> tuple[list[Update], dict[str, float]]:
    """Return the updates whose tensors are all finite, and the metric `left_out` if others were left out.

    A diverged device must not spoil the global model.
    """
    usable = [m for m in updates if is_finite(m.body)]
    left_out = len(updates) - len(usable)
    return usable, {"left_out": float(left_out)} if left_out else {}
