"""What devices keep, with what encodings of updates leave there. No torch, so that runs without training need none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from edgesim.core.update import ModelState

if TYPE_CHECKING:
    from torch import Tensor

# With the name of a collection after it, names of what a device keeps.
RESIDUAL = "residual of "  # weights: what was not sent
MOMENTUM = "momentum of "  # weights and vectors: see `Encoding.momentum`
BASIS = "basis of "  # weights: see `Encoding.rank`; of its shape, but for so many first places as there are columns


class Kept(NamedTuple):
    """What a device keeps: for its method, None if that has kept nothing, and for the encoding of its updates."""

    own: ModelState | None
    left: dict[str, Mapping[str, Tensor]]  # e.g. RESIDUAL + "params" -> name -> tensor as of the whole model

    @classmethod
    def of(cls, device_state: ModelState | None) -> Kept:
        """Return the two parts of a device's state."""
        state = device_state or {}
        left = {kind: tensors for kind, tensors in state.items() if kind.startswith((RESIDUAL, MOMENTUM, BASIS))}
        own = {kind: tensors for kind, tensors in state.items() if kind not in left}
        return cls(None if device_state is None or (left and not own) else own, left)

    def state(self) -> ModelState | None:
        """Return the device's state that has both parts; None if there is nothing to keep."""
        return None if self.own is None and not self.left else {**(self.own or {}), **self.left}
