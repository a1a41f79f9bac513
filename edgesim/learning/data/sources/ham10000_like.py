"""Made-up images in place of HAM10000's photographs, which cannot be downloaded without an account.

Source of the class counts and of the repetitions of each class's training images: DA-DPFL paper and its authors'
published code. The images are edgesim's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from annotated_types import Ge, Le

from edgesim.core.arrays import Arr, Ids
from edgesim.core.limits import MOST_COUNT, check_memory
from edgesim.core.rng import Key, Purpose
from edgesim.learning.data.held_out import held_out
from edgesim.learning.data.normalise import Moments, Preset
from edgesim.learning.data.source import Raw, Source

# Actinic keratosis, basal cell carcinoma, benign keratosis, dermatofibroma, nevus, melanoma, vascular lesion.
COUNTS = (327, 514, 1099, 115, 6705, 1113, 142)
COPIES = {
    "released": (18, 12, 6, 53, 1, 44, 6),  # the last two look swapped, but they match the published costs
    "corrected": (18, 12, 6, 53, 1, 6, 44),
    "none": None,
}
WAVES = tuple(3.0 * (10 / 3) ** (c / 6) for c in range(len(COUNTS)))  # stripes of a lesion across the whole image

_TEST_SHARE = 0.2
_SKIN, _LESION = np.array([0.80, 0.62, 0.55]), np.array([-0.30, -0.32, -0.28])  # red, green, blue
_CLASS_TINT, _OWN_TINT, _STRIPES, _NOISE = 0.025, 0.05, 0.12, 0.12
_SPLIT, _TINTS, _IMAGES = range(3)  # streams


@dataclass(frozen=True, kw_only=True)
class Ham10000Like(Source):
    """10,015 made-up images of 3 x `side` x `side` pixels, 7 classes with HAM10000's class counts. NO medical images.

    They replace HAM10000 where costs, sizes and class imbalance matter. A model trained on them knows nothing about
    skin. Each image is a plain background with one soft, darker, striped ellipse of random place, size, proportions and
    direction. The number of stripes across the image gives the class, 3 to 10 in equal ratios. The direction and the
    phase of the stripes are random, so that no linear model can use them. Each class also has a faint tint, weaker than
    the tint of each image, and every pixel has noise.

    Of each class 80 %, rounded, are for training: 8,012 images. They are then repeated by class: "released" to 65,006
    training samples, "corrected" to 35,518, or "none". Limits count images before they are repeated.
    """

    name = "ham10000_like"

    normalise: Preset | Moments = "imagenet"  # as in DA-DPFL for HAM10000
    seed: Annotated[int, Ge(0)] = 1  # of the data alone: runs with different seeds of their own share the data
    side: Annotated[int, Ge(24), Le(MOST_COUNT)] = 64  # pixels. Below 24 the finest stripes are under two pixels wide
    replicate: Literal["released", "corrected", "none"] = "released"  # training images by class

    def files(self) -> list[Path] | None:
        """Return no files, because the images follow from the keys alone."""
        return []

    def read(self) -> Raw:
        """Return both splits in random order. An image depends only on `seed`, `side` and its number."""
        labels = np.repeat(np.arange(len(COUNTS)), COUNTS)
        train, test = held_out(labels, _TEST_SHARE, self._key().at(_SPLIT))
        x_train, x_test = self._images(labels, train[: self.train_limit]), self._images(labels, test[: self.test_limit])
        return Raw(x_train, labels[train], x_test, labels[test], len(COUNTS), COPIES[self.replicate])

    def _images(self, labels: Ids, rows: Ids) -> np.ndarray:
        """Return the images of these rows, bytes (rows, side, side, 3)."""
        tints = _CLASS_TINT * self._key().at(_TINTS).numpy().standard_normal((len(COUNTS), 3))
        check_memory(
            "data.side", len(rows) * self.side**2 * 15, f"{len(rows)} images of {self.side}x{self.side} pixels"
        )
        images = np.empty((len(rows), self.side, self.side, 3), dtype=np.uint8)
        for place, row in enumerate(rows.tolist()):
            label = int(labels[row])
            draws = self._key().at(_IMAGES, row).numpy()
            images[place] = _image(self.side, WAVES[label], tints[label], draws)
        return images

    def _key(self) -> Key:
        return Key(self.seed).at(Purpose.DATA)


def _image(side: int, waves: float, tint: Arr, draws: np.random.Generator) -> np.ndarray:
    """Draw one image, bytes (side, side, 3). Lengths are shares of the side."""
    at = (np.arange(side, dtype=np.float32) + 0.5) / side - 0.5
    x, y = at[None, :] - draws.uniform(-0.12, 0.12), at[:, None] - draws.uniform(-0.12, 0.12)
    axes, tilt, direction = draws.uniform(0.2, 0.36, size=2), draws.uniform(0, np.pi), draws.uniform(0, np.pi)
    along, across = x * np.cos(tilt) + y * np.sin(tilt), y * np.cos(tilt) - x * np.sin(tilt)
    depth = 1 - np.hypot(along / axes[0], across / axes[1])  # 1 in the centre, 0 at the edge
    inside = 1 / (1 + np.exp(-12 * depth))
    waves_here = waves * (x * np.cos(direction) + y * np.sin(direction)) + draws.uniform()
    grey = _STRIPES * inside * np.sin(2 * np.pi * waves_here) + _NOISE * draws.standard_normal((side, side), np.float32)
    own, skin = _OWN_TINT * draws.standard_normal((2, 3))
    darker, plain = (colour.astype(np.float32)[:, None, None] for colour in (_LESION + tint + own, _SKIN + skin))
    image = np.rint(255 * (plain + darker * inside + grey).clip(0, 1)).astype(np.uint8)
    return image.transpose(1, 2, 0)


PLUGINS = {"ham10000_like": Ham10000Like}
