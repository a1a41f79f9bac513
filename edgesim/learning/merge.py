"""Pure aggregation of messages. Each coordinate is averaged over the messages that contain it."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from edgesim.contracts import Bundle, Message
from edgesim.errors import ContractError

AVERAGED = frozenset({"params", "buffers"})  # kinds for which a mean makes sense


def mean_of_holders(base: Bundle, got: Sequence[Message], weights: Sequence[float]) -> Bundle:
    """Return the weighted mean of the tensors in `got`; a tensor that no message contains keeps its old value.

    A tensor's weights are normalised over the messages that hold it, so a layer that few devices trained is never
    mixed with zeros. Sums run in float64 in the order of `got`, so equal models give back exactly that model.
    `weights`: non-negative, shape (len(got),). Raises ContractError for a kind that has no mean.
    """
    for message in got:
        if unknown := message.body.keys() - AVERAGED:
            raise ContractError(f"cannot average {sorted(unknown)}: only {sorted(AVERAGED)} have a mean")
    return {
        kind: {name: _mean_of_tensor(kind, name, old, got, weights) for name, old in tensors.items()}
        for kind, tensors in base.items()
    }


def _mean_of_tensor(
    kind: str, name: str, old: torch.Tensor, got: Sequence[Message], weights: Sequence[float]
) -> torch.Tensor:
    held = [(m.body[kind][name], a) for m, a in zip(got, weights, strict=True) if name in m.body.get(kind, {})]
    total = sum(a for _, a in held)
    if total <= 0:
        return old
    mean = torch.zeros_like(old, dtype=torch.float64)
    for tensor, weight in held:
        mean.add_(tensor, alpha=weight / total)
    return mean.to(old.dtype)


def finite(got: Sequence[Message]) -> tuple[list[Message], dict[str, float]]:
    """Return the messages whose tensors are all finite, and a note of how many were left out, if any.

    A diverged device must not spoil the global model.
    """
    usable = [m for m in got if all(bool(t.isfinite().all()) for ts in m.body.values() for t in ts.values())]
    left_out = len(got) - len(usable)
    return usable, {"left_out": float(left_out)} if left_out else {}
