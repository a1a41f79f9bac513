"""Devices that never leave."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, kw_only=True)
class Always:
    """Every device can be reached at every moment."""

    def mask(self, n: int, now_s: float) -> np.ndarray:
        """Return which of n devices can be reached at `now_s`, bool, shape (n,): all of them."""
        return np.ones(n, dtype=bool)


PARTS = {"always": Always}
