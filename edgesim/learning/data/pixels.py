"""Stacks decoded images into one array."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from edgesim.errors import DataError


def stack(images: Iterable[np.ndarray], count: int, origin: str) -> np.ndarray:
    """Return `count` images (h, w, c) as one uint8 array (count, h, w, c), held once in memory while they arrive.

    Raises DataError that names `origin` if two images differ in shape.
    """
    out = np.empty(0, dtype=np.uint8)
    for row, image in enumerate(images):
        if row == 0:
            out = np.empty((count, *image.shape), dtype=np.uint8)
        if image.shape != out.shape[1:]:
            raise DataError(
                f"{origin}: image {row} has shape {image.shape}, image 0 has {out.shape[1:]}; all must be the same"
            )
        out[row] = image
    return out
