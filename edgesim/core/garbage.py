"""Python's search for garbage, which work with many objects and hardly any cycles needs seldom."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_YOUNG_OBJECTS = 100_000  # new objects between two garbage collections; Python's own default is 700


@contextmanager
def seldom_collecting() -> Iterator[None]:
    """Let Python collect garbage cycles less often, and skip the objects that exist already, such as all of torch."""
    thresholds = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS, *thresholds[1:])
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()
