"""What devices keep, with the residuals of their updates. No torch, so that runs without training need none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from edgesim.core.update import ModelState

if TYPE_CHECKING:
    from torch import Tensor

_RESIDUAL = "residual of "  # and a collection: one of what a device keeps


class Kept(NamedTuple):
    """What a device keeps: for its method, None if that has kept nothing, and of updates what was not sent."""

    own: ModelState | None
    residual: dict[str, Mapping[str, Tensor]]  # collection -> name -> tensor of the whole model's shape

    @classmethod
    def of(cls, device_state: ModelState | None) -> Kept:
        """Return the two parts of a device's state."""
        state = device_state or {}
        residual = {kind.removeprefix(_RESIDUAL): t for kind, t in state.items() if kind.startswith(_RESIDUAL)}
        own = {kind: tensors for kind, tensors in state.items() if not kind.startswith(_RESIDUAL)}
        return cls(None if device_state is None or (residual and not own) else own, residual)

    def state(self) -> ModelState | None:
        """Return the device's state that has both parts; None if there is nothing to keep."""
        if self.own is None and not self.residual:
            return None
        return {**(self.own or {}), **{_RESIDUAL + kind: tensors for kind, tensors in self.residual.items()}}
