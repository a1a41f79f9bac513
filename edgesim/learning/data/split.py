"""Abstract class of partitions, the samples of each device, and draws that several partitions share. NumPy only."""

from __future__ import annotations

from abc import ABC
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from edgesim.core.arrays import Ids
from edgesim.core.errors import ConfigError
from edgesim.core.rng import Key

if TYPE_CHECKING:
    from edgesim.learning.data.dataset import Dataset


@dataclass(frozen=True, eq=False)
class Split:
    """Rows of the training set, and of the test set if devices have their own, one int64 array per device."""

    train: tuple[Ids, ...]
    test: tuple[Ids, ...] | None = None

    @property
    def samples(self) -> Ids:
        """Return the number of training samples of each device, int64, shape (devices,)."""
        return np.array([len(rows) for rows in self.train], dtype=np.int64)

    def among(self, ids: Ids, devices: int) -> Split:
        """Return this split assigned to the devices `ids` among `devices`. Other devices hold nothing."""
        return Split(_placed(self.train, ids, devices), self.test and _placed(self.test, ids, devices))


def _placed(rows: Sequence[Ids], ids: Ids, devices: int) -> tuple[Ids, ...]:
    found = [np.zeros(0, dtype=np.int64)] * devices
    for device, own in zip(ids.tolist(), rows, strict=True):
        found[device] = own
    return tuple(found)


class Partition(ABC):
    """Division of samples among devices as a scenario names it: a frozen dataclass.

    A partition overrides one function: `split`, or `divide` if it reads more of the data than labels, or `counts` if
    there are only numbers of samples.
    """

    by_classes: ClassVar[bool] = True  # False: labels may be of any kind

    @property
    def has_samples(self) -> bool:
        """True if devices get samples, False if they get only a number of them."""
        return type(self).counts is Partition.counts

    def split(self, y_train: Ids, y_test: Ids, devices: int, classes: int, key: Key) -> Split:
        """Return the partition by labels, as places in these labels. Raises ConfigError if they do not fit."""
        raise NotImplementedError("it must have split(), divide() or counts()")

    def divide(self, data: Dataset, rows: Ids, tests: Ids, devices: int, key: Key) -> Split:
        """Return the partition of these rows of both splits, as places in them. Raises ConfigError unless it fits."""
        return self.split(data.labels("train")[rows], data.labels("test")[tests], devices, data.classes, key)

    def counts(self, devices: int, key: Key) -> Ids:
        """Return the number of samples of each device, int64, shape (devices,)."""
        raise NotImplementedError("it must have counts()")


class SamplePool:
    """Pool of training samples that remembers the used ones. Mutable: it lives inside one `split` call."""

    def __init__(self, y: Ids, generator: np.random.Generator) -> None:
        self._y = y
        self._unused = np.ones(len(y), dtype=bool)
        self._generator = generator

    def draw(self, labels: Ids, count: int) -> Ids:
        """Return `count` different samples drawn uniformly from these classes.

        Unused samples are preferred. The rest is drawn from used ones. Raises ConfigError if the classes together have
        fewer samples.
        """
        allowed = np.isin(self._y, labels)
        fresh = np.flatnonzero(allowed & self._unused)
        if len(fresh) >= count:
            rows = self._generator.choice(fresh, count, replace=False)
        else:
            require(count, int(allowed.sum()), "partition.samples_per_device", f"of classes {labels.tolist()}")
            again = self._generator.choice(np.flatnonzero(allowed & ~self._unused), count - len(fresh), replace=False)
            rows = np.concatenate([fresh, again])
        self._unused[rows] = False
        return rows

    def left(self, classes: int) -> Ids:
        """Return the number of unused samples of each class."""
        return np.bincount(self._y[self._unused], minlength=classes)


def require(needed: int, available: int, key: str, what: str = "") -> None:
    """Raise ConfigError that names `key` unless `available` training samples are enough."""
    if needed > available:
        raise ConfigError(f"{key}: needs {needed} training samples {what}".rstrip() + f", the data set has {available}")


def alike_devices(sigma: float, devices: int) -> int:
    """Return the number of i.i.d. devices, which are the first ones: a share `sigma`, where halves round up."""
    return int(np.floor(sigma * devices + 0.5))


def by_class(y: Ids, classes: int) -> list[Ids]:
    """Return the row numbers of each class, ascending."""
    ends = np.cumsum(np.bincount(y, minlength=classes))[:-1]
    return np.split(np.argsort(y, kind="stable"), ends)


def deal(rows: Ids, counts: Sequence[int] | Ids, generator: np.random.Generator) -> list[Ids]:
    """Return one array for each count, cut one after another from repeated shuffles of `rows`.

    All are disjoint if the counts add up to at most the number of rows.
    """
    total = int(np.sum(counts))
    shuffles = [generator.permutation(rows) for _ in range(-(-total // len(rows)))] if total else [rows]
    return np.split(np.concatenate(shuffles)[:total], np.cumsum(counts)[:-1])


def equal_share(samples: int, devices: int) -> int:
    """Return floor(samples / devices). Raises ConfigError if that is 0."""
    require(devices, samples, "partition.name", f"for {devices} devices")
    return samples // devices


def local_tests(
    train: Sequence[Ids], y_train: Ids, y_test: Ids, classes: int, generator: np.random.Generator
) -> tuple[Ids, ...]:
    """Return a test set for each device with the class shares of its training set.

    It has ceil(share * ceil(n_test / devices)) random images of every class from the global test set. Devices may share
    images. A device has an image twice only if the class has too few. Raises ConfigError if a class has none.

    Source: DA-DPFL, released code.
    """
    pools = by_class(y_test, classes)
    size = -(-len(y_test) // len(train))
    counts = np.stack([np.bincount(y_train[rows], minlength=classes) for rows in train])
    wanted = -(-counts * size // counts.sum(axis=1, keepdims=True))
    empty = [label for label in range(classes) if len(pools[label]) == 0 and wanted[:, label].any()]
    if empty:
        raise ConfigError(
            f"partition.name: local test sets need test samples of classes {empty}, the data set has none"
        )
    return tuple(
        np.concatenate([deal(pools[label], [need[label]], generator)[0] for label in np.flatnonzero(need)])
        for need in wanted
    )
