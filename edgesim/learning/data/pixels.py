"""Encoded images to one array."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

import numpy as np
from PIL import Image

from edgesim.core.errors import DataError
from edgesim.files.reading import check_regular, check_room, reading

Size = tuple[int, int]

# Others are not only rarer: Pillow hands PostScript, whatever the name of its file, to an interpreter.
_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "PPM", "TIFF", "WEBP")


def decode(source: Path | BinaryIO, origin: str, grey: bool = True, size: Size | None = None) -> np.ndarray:
    """Return an encoded image as bytes (h, w, c), c = 1 for a grey image if `grey` allows it, else c = 3.

    `size`: height and width to scale it to. Raises DataError that names `origin` if it cannot be decoded.
    """
    if isinstance(source, Path):
        check_regular(source)
    with warnings.catch_warnings(), reading(origin, "image"):
        warnings.simplefilter("error", Image.DecompressionBombWarning)  # more than 89 million pixels
        with Image.open(source, formats=_FORMATS) as image:
            mode = "L" if grey and image.mode in ("1", "L") else "RGB"
            plain = image.convert(mode)
    scaled = plain if size is None else plain.resize(size[::-1], Image.Resampling.BILINEAR)
    return np.asarray(scaled).reshape(scaled.height, scaled.width, -1)


def stack(images: Iterable[np.ndarray], count: int, origin: str) -> np.ndarray:
    """Return `count` images (h, w, c) as one uint8 array (count, h, w, c), held once in memory while they arrive.

    Raises DataError that names `origin` if two images differ in shape.
    """
    out = np.empty(0, dtype=np.uint8)
    for row, image in enumerate(images):
        if row == 0:
            check_room(count * image.nbytes, origin)
            out = np.empty((count, *image.shape), dtype=np.uint8)
        if image.shape != out.shape[1:]:
            raise DataError(
                f"{origin}: image {row} has shape {image.shape}, image 0 has {out.shape[1:]}; all must be the same"
            )
        out[row] = image
    return out
