"""What all data sources share: their common keys, and the way from arrays as read to a Dataset."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import torch

from edgesim.core.arrays import Ids
from edgesim.core.errors import ConfigError, DataError
from edgesim.core.numbers import Count
from edgesim.files.reading import check_room
from edgesim.learning.data.augment import Augment
from edgesim.learning.data.dataset import Dataset
from edgesim.learning.data.normalise import Moments, Preset, normalised

Limit = Count | None

_MOST_CLASSES = 1_000_000  # a model has a row of weights for each
_FLOAT_BYTES = 4


class Raw(NamedTuple):
    """A data set as read. Bytes (n, h, w) or (n, h, w, c) are pixels; other types are kept as they are."""

    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    classes: int | None = None  # None: the largest label + 1
    copies: Sequence[int] | None = None  # how often the training samples of each class count; None: once


@dataclass(frozen=True, kw_only=True)
class Source(ABC):
    """Keys common to all data sources."""

    name: ClassVar[str]

    normalise: Preset | Moments = "none"  # means and deviations of channels, by name or given
    augment: Augment | None = None  # of training batches
    train_limit: Limit = None  # only the first so many samples, before any are repeated, for a quick run
    test_limit: Limit = None  # only the first so many test samples

    @property
    def origin(self) -> str:
        """What a message names where its data are at fault: the name, or the file or folder of one's own data."""
        return self.name

    @abstractmethod
    def read(self) -> Raw:
        """Return the arrays of this source. Raises DataError if they are missing or damaged."""

    def load(self) -> Dataset:
        """Return the data set, limited and normalised.

        Raises DataError if files are missing or damaged, ConfigError if a key does not fit the data.
        """
        raw = self.read()
        classes = _classes(self.origin, raw)
        x_train, y_train = self._cut("train", raw.x_train, raw.y_train, self.train_limit)
        x_test, y_test = self._cut("test", raw.x_test, raw.y_test, self.test_limit)
        if x_train.shape[1:] != x_test.shape[1:]:
            raise DataError(
                f"{self.origin}: training samples have shape {x_train.shape[1:]}, test samples {x_test.shape[1:]}"
            )
        image = x_train.ndim == 4
        if self.augment is not None and not image:
            raise ConfigError(f"data.augment: needs images, {self.name} holds vectors of {x_train.shape[1]} features")
        height_width, channels = x_train.shape[1:-1], x_train.shape[-1]
        check_room(_FLOAT_BYTES * (x_train.size + x_test.size), self.origin)
        rows = None if raw.copies is None else _repeated(y_train, raw.copies, classes)
        return Dataset(
            name=self.name,
            x_train=torch.from_numpy(self._normalised("train", x_train)),
            y_train=torch.from_numpy(y_train if rows is None else y_train[rows]),
            x_test=torch.from_numpy(self._normalised("test", x_test)),
            y_test=torch.from_numpy(y_test),
            classes=classes,
            input_shape=(channels, *height_width),
            augment=self.augment,
            train_rows=None if rows is None else torch.from_numpy(rows),
        )

    def _normalised(self, split: str, x: np.ndarray) -> np.ndarray:
        with np.errstate(over="ignore", invalid="ignore"):  # refused by name below
            normal = normalised(x, self.normalise)
        if not np.isfinite([normal.min(), normal.max()]).all():
            sample = int(np.isfinite(normal).reshape(len(x), -1).all(axis=1).argmin())
            raise DataError(f"{self.origin}: {split} sample {sample} has a number that float32 cannot hold, normalised")
        return normal

    def _cut(self, split: str, x: np.ndarray, y: np.ndarray, limit: int | None) -> tuple[np.ndarray, np.ndarray]:
        if x.ndim not in (2, 3, 4) or not np.can_cast(x.dtype, np.float64, "same_kind"):
            found, expected = f"shape {x.shape} of {x.dtype}", "numbers (n, features) or (n, h, w[, c])"
            raise DataError(f"{self.origin}: {split} has {found}, expected {expected}")
        x, y = x[:limit], np.array(y[:limit], dtype=np.int64)
        if len(x) != len(y) or x.size == 0:
            raise DataError(
                f"{self.origin}: {split} has {len(x)} samples of shape {x.shape[1:]} and {len(y)} labels; "
                "needs as many, at least 1, none of them empty"
            )
        if x.dtype.kind == "f" and not (finite := np.isfinite(x).reshape(len(x), -1).all(axis=1)).all():
            raise DataError(f"{self.origin}: {split} sample {int(finite.argmin())} has a number that is not finite")
        return (x[..., None] if x.ndim == 3 else x), y


def _classes(origin: str, raw: Raw) -> int:
    """Return the number of classes, read from all labels so that a limit does not change it."""
    both = [np.asarray(labels) for labels in (raw.y_train, raw.y_test)]
    for labels in both:
        check_labels(origin, labels)
    low, high = min(int(y.min()) for y in both), max(int(y.max()) for y in both)
    classes = raw.classes or min(high + 1, _MOST_CLASSES)
    if low < 0 or high >= classes:
        raise DataError(f"{origin}: labels lie in [{low}, {high}], expected [0, {classes - 1}]")
    return classes


def check_labels(origin: str, labels: np.ndarray) -> None:
    """Raise DataError unless labels are integers, shape (n,), at least one."""
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer) or labels.size == 0:
        raise DataError(f"{origin}: labels have type {labels.dtype} and shape {labels.shape}, expected integers (n,)")


def _repeated(labels: Ids, copies: Sequence[int], classes: int) -> Ids:
    """Return each row as often as its class counts, copies side by side. Raises ConfigError unless all classes do."""
    if len(copies) != classes:
        raise ConfigError(f"data.replicate: needs a number for each of the {classes} classes, got {len(copies)}")
    return np.repeat(np.arange(len(labels)), np.asarray(copies)[labels])
