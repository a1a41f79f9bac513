"""State of a device, with the remainders of encoded updates. It needs no torch, for runs without training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from edgesim.core.update import ModelState

if TYPE_CHECKING:
    from torch import Tensor

# Followed by the name of a collection, these are names of collections that a device keeps.
RESIDUAL = "residual of "  # weights: the part that was not sent
MOMENTUM = "momentum of "  # weights and vectors: see `Encoding.momentum`
BASIS = "basis of "  # weights: see `Encoding.rank`. Shape of the tensor, but its first dimension counts the columns


class Kept(NamedTuple):
    """State of a device: for its method, None if the method keeps nothing, and for the encoding of its updates."""

    own: ModelState | None
    left: dict[str, Mapping[str, Tensor]]  # e.g. RESIDUAL + "params" -> name -> tensor of the whole model's shape

    @classmethod
    def of(cls, device_state: ModelState | None) -> Kept:
        """Return the two parts of a device's state."""
        state = device_state or {}
        left = {kind: tensors for kind, tensors in state.items() if kind.startswith((RESIDUAL, MOMENTUM, BASIS))}
        own = {kind: tensors for kind, tensors in state.items() if kind not in left}
        return cls(None if device_state is None or (left and not own) else own, left)

    def state(self) -> ModelState | None:
        """Return the device's state with both parts, or None if there is nothing to keep."""
        return None if self.own is None and not self.left else {**(self.own or {}), **self.left}
