"""What an attacker sends in place of what it learned."""

from __future__ import annotations

from torch import Tensor

from edgesim.core.update import ModelState


def attacked(body: ModelState, received: ModelState, factor: float) -> ModelState:
    """Return a body whose moves are multiplied by a factor.

    Parameters move from the model received, a method's own numbers from 0. Buffers and whole numbers stay.
    """
    return {
        kind: tensors
        if kind == "buffers"
        else {
            name: _scaled(t, received["params"].get(name) if kind == "params" else None, factor)
            for name, t in tensors.items()
        }
        for kind, tensors in body.items()
    }


def _scaled(tensor: Tensor, base: Tensor | None, factor: float) -> Tensor:
    if not tensor.is_floating_point():
        return tensor
    if base is None:
        return factor * tensor
    base = base.to(tensor.device)
    return base + factor * (tensor - base)
