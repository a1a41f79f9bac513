"""The handwritten digits of scikit-learn: always available, without files of their own, and quick to train on."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from edgesim.files.reading import reading
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
        table = _table()
        pixels, labels = table[:, :-1], table[:, -1].astype(np.int64)
        order = np.argsort(labels, kind="stable")
        starts = np.searchsorted(labels[order], labels[order])
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order)) - starts  # number of earlier samples of the same class
        test = rank % _TEST_EVERY == _TEST_EVERY - 1
        images = pixels.reshape(-1, 8, 8) / 16
        return Raw(images[~test], labels[~test], images[test], labels[test], 10)


def _table() -> np.ndarray:
    """Return pixels and label, shape (1797, 65), as `sklearn.datasets.load_digits` reads them."""
    return shipped_numbers("digits.csv.gz")


def shipped_numbers(name: str, delimiter: str | None = ",", skiprows: int = 0) -> np.ndarray:
    """Return the numbers of a table in scikit-learn's package, shape (rows, columns).

    The file is read without loading scikit-learn, which would take a second and 70 MB.
    """
    package = importlib.util.find_spec("sklearn")
    [folder] = (package and package.submodule_search_locations) or [""]
    file = Path(folder, "datasets", "data", name)
    with reading(file, "the tables that come with scikit-learn"):
        table: np.ndarray = np.loadtxt(file, delimiter=delimiter, skiprows=skiprows)
    return table


PLUGINS = {"digits": Digits}
