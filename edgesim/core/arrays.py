"""Arrays over devices: types of their entries and their shapes by name."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

Ids: TypeAlias = np.ndarray  # device ids from 0, int64, shape (k,)
Arr: TypeAlias = np.ndarray  # float64, shape (k,)


def compact(column: np.ndarray) -> np.ndarray:
    """Return a read-only column. A value common to all devices takes the memory of one value."""
    if (column == column[0]).all():
        return np.broadcast_to(column[0], column.shape)
    column.setflags(write=False)
    return column
