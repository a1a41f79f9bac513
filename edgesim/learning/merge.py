"""Pure aggregation of messages. Each coordinate is averaged over the messages that contain it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from edgesim.card import ModelCard
from edgesim.contracts import Bundle, Merged, Message
from edgesim.errors import ContractError
from edgesim.learning.entry_mean import Held, mean_by_entry
from edgesim.learning.packed import numbers_of
from edgesim.learning.parts import Cut

AVERAGED = frozenset({"params", "buffers"})  # kinds for which a mean makes sense
Absent: TypeAlias = Literal["skip", "keep_old"]  # what a message says about coordinates that it does not contain


def mean_of_holders(
    base: Bundle,
    got: Sequence[Message],
    weights: Sequence[float],
    *,
    absent: Absent = "skip",
    card: ModelCard | None = None,
) -> Bundle:
    """Return the weighted mean of the messages in `got`; what no message contains keeps its old value.

    `absent` "skip": the weights of every single parameter are normalised over the messages that hold it, so a layer or
    unit that few devices trained is never mixed with others' old values. "keep_old": a message that lacks a parameter
    counts as one with the old value. Sums run in float64 in the order of `got`, so equal models give back exactly that
    model. `weights`: non-negative, shape (len(got),). `card`: of the model, where messages come from thinner parts.
    Raises ContractError for a kind that has no mean.
    """
    for message in got:
        if unknown := message.body.keys() - AVERAGED:
            raise ContractError(f"cannot average {sorted(unknown)}: only {sorted(AVERAGED)} have a mean")
    cuts = [_cut(message, card) for message in got]
    everybody = sum(weights) if absent == "keep_old" else None

    def mean(kind: str, name: str, old: Tensor) -> Tensor:
        held = [
            Held(m.body[kind][name], weight, *_places(cut, name, old))
            for m, weight, cut in zip(got, weights, cuts, strict=True)
            if name in m.body.get(kind, {})
        ]
        if sum(each.weight for each in held) <= 0:
            return old
        whole = all(each.rows is None and each.columns is None for each in held) and everybody is None
        return _mean_of_whole(old, held) if whole else mean_by_entry(old, held, everybody)

    return {kind: {name: mean(kind, name, old) for name, old in tensors.items()} for kind, tensors in base.items()}


def _cut(message: Message, card: ModelCard | None) -> Cut | None:
    part = message.task.part
    if not part.units:
        return None
    if card is None:
        raise ContractError("the mean of thinner parts needs the card of the model")
    return Cut(part, card)


def _mean_of_whole(old: Tensor, held: Sequence[Held]) -> Tensor:
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


def mean_by_size(
    state: Any, base: Bundle, got: Sequence[Message], absent: Absent = "skip", card: ModelCard | None = None
) -> Merged:
    """Return the mean of what arrived by data size, with an unchanged state; the old model stays if nothing did.

    `absent` and `card`: as for `mean_of_holders`.
    """
    usable, notes = finite(got)
    if not usable:
        return Merged(state, None, notes=notes)
    weights = [message.samples * message.weight for message in usable]
    return Merged(state, mean_of_holders(base, usable, weights, absent=absent, card=card), notes=notes)


def is_finite(bundle: Bundle) -> bool:
    """Whether all numbers of a bundle are finite. Nothing is unpacked, as zeros are."""
    return all(bool(tensor.isfinite().all()) for tensors in bundle.values() for tensor in numbers_of(tensors))


def finite(got: Sequence[Message]) -> tuple[list[Message], dict[str, float]]:
    """Return the messages whose tensors are all finite, and a note of how many were left out, if any.

    A diverged device must not spoil the global model.
    """
    usable = [m for m in got if is_finite(m.body)]
    left_out = len(got) - len(usable)
    return usable, {"left_out": float(left_out)} if left_out else {}
