"""The handwritten digits that come with scikit-learn: always there, no files, quick to train on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgesim.learning.data.source import Raw, Source

_TEST_EVERY = 6  # about 300 of the 1797 samples, one sixth as in MNIST's 70000


@dataclass(frozen=True, kw_only=True)
class Digits(Source):
    """1797 images of 1 x 8 x 8 pixels in [0, 1], 10 classes. Every sixth sample of each class is a test sample.

    Source: E. Alpaydin, C. Kaynak, Optical Recognition of Handwritten Digits, UCI Machine Learning Repository.
    """

    name = "digits"

    def read(self) -> Raw:
        """Return the two splits, always the same."""
        from sklearn.datasets import load_digits  # costs 70 MB, which other data sets can do without

        pixels, labels = load_digits(return_X_y=True)
        order = np.argsort(labels, kind="stable")
        starts = np.searchsorted(labels[order], labels[order])
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order)) - starts  # how many samples of its class come before it
        test = rank % _TEST_EVERY == _TEST_EVERY - 1
        images = pixels.reshape(-1, 8, 8) / 16
        return Raw(images[~test], labels[~test], images[test], labels[test], 10)


PARTS = {"digits": Digits}
