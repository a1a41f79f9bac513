"""Message of an attacker in place of its trained model."""

from __future__ import annotations

from torch import Tensor

from edgesim.core.update import ModelState


def attacked(body: ModelState, received: ModelState, factor: float) -> ModelState:
    """Return a body whose moves are multiplied by a factor.

    Parameters move from the received model, a method's own numbers from 0. Buffers and integers stay.
    """

    def scaled(kind: str, name: str, tensor: Tensor) -> Tensor:
        if kind == "buffers" or not tensor.is_floating_point():
            return tensor
        base = received["params"].get(name) if kind == "params" else None
        if base is None:
            return factor * tensor
        base = base.to(tensor.device)
        return base + factor * (tensor - base)

    return {kind: {name: scaled(kind, name, t) for name, t in tensors.items()} for kind, tensors in body.items()}
