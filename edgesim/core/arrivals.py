"""Samples that come to devices while a run goes on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from edgesim.core.arrays import Arr, Ids


@dataclass(frozen=True, slots=True, eq=False)
class Arrivals:
    """Seconds at which each sample of each device arrives, one ascending array a device. The first is there at 0.

    `classes_s`: seconds at which the first sample of each class arrives anywhere; infinite for a class without training
    or test samples.
    """

    at_s: Sequence[Arr]
    classes_s: Arr = field(default_factory=lambda: np.empty(0))

    def held(self, ids: Ids, now_s: float) -> Ids:
        """Return the number of samples that devices have by `now_s`, int64, shape (k,)."""
        counts = [np.searchsorted(self.at_s[device], now_s, side="right") for device in ids.tolist()]
        return np.array(counts, dtype=np.int64)

    def classes(self, now_s: float) -> tuple[int, ...]:
        """Return the classes of which some device has a sample by `now_s`, ascending."""
        return tuple(np.flatnonzero(self.classes_s <= now_s).tolist())
