"""Sources of data sets: the search for their files, and the reading of samples."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np

from edgesim.config.plugin_fields import plain
from edgesim.core.errors import ConfigError, DataError
from edgesim.core.limits import Count
from edgesim.files.reading import check_room
from edgesim.files.user_cache import cache_folder
from edgesim.learning.data.augment import Augment
from edgesim.learning.data.dataset import DataPart, Dataset, Numbers
from edgesim.learning.data.decoded import Decoded, decoded
from edgesim.learning.data.normalise import FeatureScaling, Moments, Preset, normalised, scaling_of

VARIABLE = "EDGESIM_DATA"
SYSTEM = Path("/usr/share/datasets")  # folder of Debian's dataset packages


def search_path(root: Path | None) -> list[Path]:
    """Return the folders to search, first to last: root, the folders of EDGESIM_DATA, the cache, the system's."""
    given = [] if root is None else [root.expanduser()]
    listed = [Path(entry).expanduser() for entry in os.environ.get(VARIABLE, "").split(os.pathsep) if entry]
    return [*given, *listed, cache_folder(), SYSTEM]


def places(root: Path | None, names: Sequence[str]) -> list[Path]:
    """Return the existing folders that may hold a data set known by these names, first to last.

    Only `root` may have another name: files of different data sets have equal names, so any other folder must have the
    name of its data set.
    """
    bases = search_path(root)
    itself = [base for base in bases if base.name in names or (root is not None and base == bases[0])]
    return [folder for folder in (*itself, *(base / name for base in bases for name in names)) if folder.is_dir()]


Limit = Count | None

_MOST_CLASSES = 1_000_000  # a model has a row of weights for each
_FLOAT_BYTES = 4
_AFTER_READING = ("normalise", "augment")  # keys that do not change the arrays as read


class Raw(NamedTuple):
    """A data set as read. Bytes (n, h, w) or (n, h, w, c) are pixels. Other types are kept unchanged."""

    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    classes: int | None = None  # None: the largest label + 1
    copies: Sequence[int] | None = None  # repetitions of the training samples of each class. None: once


@dataclass(frozen=True, kw_only=True)
class Source(DataPart):
    """Keys common to all data sources."""

    name: ClassVar[str]

    normalise: Preset | Moments = "none"  # means and deviations of channels, by name or given
    augment: Augment | None = None  # of training batches
    train_limit: Limit = None  # use only this many first samples, before any are repeated, for a quick run
    test_limit: Limit = None  # use only this many first test samples

    @property
    def origin(self) -> str:
        """Origin of the data for error messages: the name, or the file or folder of a user's own data."""
        return self.name

    @abstractmethod
    def read(self) -> Raw:
        """Return the arrays of this source. Raises DataError if they are missing or damaged."""

    def columns(self) -> Mapping[str, tuple[np.ndarray, np.ndarray]]:
        """Return further properties of all training and test samples by name, for partitions, in the order of `read`.

        The mapping may read a property when it is asked for.
        """
        return {}

    def files(self) -> list[Path] | None:
        """Return the files whose content, with the source's own keys, decides the result of `read`. None: unknown.

        If they are known, images are decoded once for all runs and cached: see `edgesim.learning.data.decoded`.
        """
        return None

    def load(self) -> Dataset:
        """Return the data set, limited and normalised.

        Raises DataError if files are missing or damaged, ConfigError if a key does not fit the data.
        """
        shipped = type(self).__module__.startswith("edgesim.")  # other code may change without notice
        keys = {field.name: vars(self)[field.name] for field in fields(self) if field.name not in _AFTER_READING}
        cls = f"{type(self).__module__}:{type(self).__qualname__}"
        held = {"class": cls, "keys": plain(keys)}
        arrays = decoded(self.files() if shipped else None, held, lambda: self.checked(self.read()))
        return self.assembled(arrays, self.columns())

    def assembled(self, arrays: Decoded, columns: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> Dataset:
        """Return the data set of arrays that `checked` returned. Raises DataError or ConfigError as `load` does."""
        x_train, x_test = arrays.x_train.array, arrays.x_test.array
        image = x_train.ndim == 4
        if self.augment is not None and not image:
            raise ConfigError(f"data.augment: needs images, {self.name} holds vectors of {x_train.shape[1]} features")
        height_width, channels = x_train.shape[1:-1], x_train.shape[-1]
        scaling = scaling_of(x_train, self.normalise)
        pixels = x_train.dtype == x_test.dtype == np.uint8  # pixels stay bytes until training
        if pixels:
            # Samples need a check only if the least or the greatest pixel becomes infinite or undefined.
            with np.errstate(over="ignore", invalid="ignore"):
                extremes = normalised(np.array([[0], [255]], np.uint8).repeat(x_train.shape[-1], axis=1), scaling)
            if not np.isfinite(extremes).all():
                self._normalised("train", x_train, scaling)
                self._normalised("test", x_test, scaling)
        else:
            check_room(_FLOAT_BYTES * (x_train.size + x_test.size), self.origin)
        labels, copies, rows = arrays.y_train.array, arrays.copies, None
        if copies is not None:
            if len(copies) != arrays.classes:
                raise ConfigError(
                    f"data.replicate: needs a number for each of the {arrays.classes} classes, got {len(copies)}"
                )
            rows = np.repeat(np.arange(len(labels)), np.asarray(copies)[labels])
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
            columns=columns,
        )

    def checked(self, raw: Raw) -> Decoded:
        """Return arrays as read, limited. Raises DataError if they do not fit together."""
        both = [np.asarray(labels) for labels in (raw.y_train, raw.y_test)]
        for labels in both:
            check_labels(self.origin, labels)
        # The number of classes follows from all labels, so that a limit does not change it.
        low, high = min(int(y.min()) for y in both), max(int(y.max()) for y in both)
        classes = raw.classes or min(high + 1, _MOST_CLASSES)
        if low < 0 or high >= classes:
            raise DataError(f"{self.origin}: labels lie in [{low}, {high}], expected [0, {classes - 1}]")
        x_train, y_train = self._cut("train", raw.x_train, raw.y_train, self.train_limit)
        x_test, y_test = self._cut("test", raw.x_test, raw.y_test, self.test_limit)
        if x_train.shape[1:] != x_test.shape[1:]:
            raise DataError(
                f"{self.origin}: training samples have shape {x_train.shape[1:]}, test samples {x_test.shape[1:]}"
            )
        copies = None if raw.copies is None else list(raw.copies)
        return Decoded(Numbers(x_train), Numbers(y_train), Numbers(x_test), Numbers(y_test), classes, copies)

    def _normalised(self, split: str, x: np.ndarray, scaling: FeatureScaling) -> np.ndarray:
        with np.errstate(over="ignore", invalid="ignore"):  # the error below names the sample
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


def check_labels(origin: str, labels: np.ndarray) -> None:
    """Raise DataError unless labels are integers of shape (n,) with n >= 1."""
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer) or labels.size == 0:
        raise DataError(f"{origin}: labels have type {labels.dtype} and shape {labels.shape}, expected integers (n,)")
