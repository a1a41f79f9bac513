"""Arrays over devices: types of their entries and their shapes by name."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

Ids: TypeAlias = np.ndarray  # device ids from 0, int64, shape (k,)
Arr: TypeAlias = np.ndarray  # float64, shape (k,)
