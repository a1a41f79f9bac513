"""Functions of the C library, which not every system has."""

from __future__ import annotations

import ctypes
from typing import Any


def c_function(name: str) -> Any:
    """Return the function of the C library of this process that has a name; None if there is none.

    It takes and returns C integers.
    """
    return getattr(ctypes.CDLL(None), name, None)
