"""Sources of data sets: where their files lie, and how they become samples."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from edgesim.config.plugin_fields import plain
from edgesim.core.arrays import Ids
from edgesim.core.errors import ConfigError, DataError
from edgesim.core.limits import Count
from edgesim.files.reading import check_room
from edgesim.files.user_cache import cache_folder
from edgesim.learning.data.augment import Augment
from edgesim.learning.data.dataset import Dataset, Numbers
from edgesim.learning.data.decoded import Decoded, decoded
from edgesim.learning.data.normalise import Moments, Preset, Scaling, normalised, scaling_of

VARIABLE = "EDGESIM_DATA"
SYSTEM = Path("/usr/share/datasets")  # where Debian's dataset packages put their files


def search_path(root: Path | None) -> list[Path]:
    """Return the folders to look below, first to last: root, those of EDGESIM_DATA, the cache, the system's."""
    given = [] if root is None else [root.expanduser()]
    listed = [Path(entry).expanduser() for entry in os.environ.get(VARIABLE, "").split(os.pathsep) if entry]
    return [*given, *listed, cache_folder(), SYSTEM]


def places(root: Path | None, names: Sequence[str]) -> list[Path]:
    """Return the existing folders in which a data set known by these names may lie, first to last.

    A folder is taken without its name only if it is `root`: files of different data sets have equal names, so any
    other folder must say what it holds.
    """
    bases = search_path(root)
    itself = [base for base in bases if base.name in names or (root is not None and base == bases[0])]
    return [folder for folder in (*itself, *(base / name for base in bases for name in names)) if folder.is_dir()]


Limit = Count | None

_MOST_CLASSES = 1_000_000  # a model has a row of weights for each
_FLOAT_BYTES = 4
_AFTER_READING = ("normalise", "augment")  # keys that leave the arrays as they were read


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

    def files(self) -> list[Path] | None:
        """Return the files whose content decides what `read` gives, beside the part's own keys; None: unknown.

        Images are then decoded once for all runs, and kept: see `edgesim.learning.data.decoded`.
        """
        return None

    def load(self) -> Dataset:
        """Return the data set, limited and normalised.

        Raises DataError if files are missing or damaged, ConfigError if a key does not fit the data.
        """
        shipped = type(self).__module__.startswith("edgesim.")  # what others' code does may change unseen
        arrays = decoded(self.files() if shipped else None, self._reading_keys(), self._checked)
        x_train, x_test = arrays.x_train.array, arrays.x_test.array
        image = x_train.ndim == 4
        if self.augment is not None and not image:
            raise ConfigError(f"data.augment: needs images, {self.name} holds vectors of {x_train.shape[1]} features")
        height_width, channels = x_train.shape[1:-1], x_train.shape[-1]
        scaling = scaling_of(x_train, self.normalise)
        pixels = x_train.dtype == x_test.dtype == np.uint8  # they stay bytes until they are trained on
        if pixels:
            self._check_pixels(x_train, x_test, scaling)
        else:
            check_room(_FLOAT_BYTES * (x_train.size + x_test.size), self.origin)
        labels = arrays.y_train.array
        rows = None if arrays.copies is None else _repeated(labels, arrays.copies, arrays.classes)
        return Dataset(
            name=self.name,
            x_train=arrays.x_train if pixels else self._normalised("train", x_train, scaling),
            y_train=arrays.y_train if rows is None else labels[rows],
            x_test=arrays.x_test if pixels else self._normalised("test", x_test, scaling_of(x_test, self.normalise)),
            y_test=arrays.y_test,
            classes=arrays.classes,
            input_shape=(channels, *height_width),
            augment=self.augment,
            train_rows=rows,
            scaling=scaling if pixels else None,
        )

    def _reading_keys(self) -> dict[str, Any]:
        """Return class and keys on which the arrays depend."""
        keys = {field.name: getattr(self, field.name) for field in fields(self) if field.name not in _AFTER_READING}
        return {"class": f"{type(self).__module__}:{type(self).__qualname__}", "keys": plain(keys)}

    def _checked(self) -> Decoded:
        """Return the arrays of this source, limited. Raises DataError if they do not fit together."""
        raw = self.read()
        classes = _classes(self.origin, raw)
        x_train, y_train = self._cut("train", raw.x_train, raw.y_train, self.train_limit)
        x_test, y_test = self._cut("test", raw.x_test, raw.y_test, self.test_limit)
        if x_train.shape[1:] != x_test.shape[1:]:
            raise DataError(
                f"{self.origin}: training samples have shape {x_train.shape[1:]}, test samples {x_test.shape[1:]}"
            )
        copies = None if raw.copies is None else list(raw.copies)
        return Decoded(Numbers(x_train), Numbers(y_train), Numbers(x_test), Numbers(y_test), classes, copies)

    def _check_pixels(self, x_train: np.ndarray, x_test: np.ndarray, scaling: Scaling) -> None:
        """Raise DataError if a scaled pixel is no float32; all are looked at only if the least or greatest is none."""
        with np.errstate(over="ignore", invalid="ignore"):
            extremes = normalised(np.array([[0], [255]], np.uint8).repeat(x_train.shape[-1], axis=1), scaling)
        if not np.isfinite(extremes).all():
            for split, x in (("train", x_train), ("test", x_test)):
                self._normalised(split, x, scaling)

    def _normalised(self, split: str, x: np.ndarray, scaling: Scaling) -> np.ndarray:
        with np.errstate(over="ignore", invalid="ignore"):  # refused by name below
            normal = normalised(x, scaling)
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
