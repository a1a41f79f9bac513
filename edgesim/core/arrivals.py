"""Samples that come to devices while a run goes on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from edgesim.core.arrays import Arr, Ids


@dataclass(frozen=True, slots=True, eq=False)
class Arrivals:
    """Seconds at which each sample of each device arrives, one ascending array a device. The first is there at 0."""

    at_s: Sequence[Arr]

    def held(self, ids: Ids, now_s: float) -> Ids:
        """Return the number of samples that devices have by `now_s`, int64, shape (k,)."""
        counts = [np.searchsorted(self.at_s[device], now_s, side="right") for device in ids.tolist()]
        return np.array(counts, dtype=np.int64)
