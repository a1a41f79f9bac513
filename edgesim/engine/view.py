"""What a method may know at a moment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from edgesim.contracts import Arrival, Ids, Setting
from edgesim.rng import Key


@dataclass(frozen=True, kw_only=True)
class FleetView:
    """A snapshot; `contracts.View` says what each field means. The idle set is worked out when first asked for."""

    setting: Setting
    now_s: float
    version: int
    round: int
    exchange: int
    last: Sequence[Arrival]
    reachable: np.ndarray  # bool, shape (devices,)
    selection: object

    @cached_property
    def idle(self) -> Ids:
        """Ids of reachable devices without a job, int64, ascending."""
        ids = np.flatnonzero(self.reachable)
        ids.setflags(write=False)
        return ids

    @property
    def free_places(self) -> int:
        """How many devices may still be asked now."""
        return len(self.idle)

    def choose(self, key: Key) -> Ids:
        """Return distinct idle devices, ascending, by the scenario's selection rule."""
        return self.selection.choose(self.idle, self.setting.level, key)  # type: ignore[attr-defined, no-any-return]
