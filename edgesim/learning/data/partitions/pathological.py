"""Devices of equal size that hold a fixed number of random classes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgesim.core.arrays import Ids
from edgesim.core.errors import ConfigError
from edgesim.core.limits import Count
from edgesim.core.rng import Key
from edgesim.learning.data.split import Partition, Split, by_class, deal, equal_share, local_tests


@dataclass(frozen=True, kw_only=True)
class Pathological(Partition):
    """Each device draws every sample from one of its `n_cls` classes, all equally likely, and has a local test set.

    A class that has run out starts anew, so that samples may be used by several devices, and, where a device is
    served across such an end, twice by one.

    Source: DA-DPFL, released code.
    """

    n_cls: Count = 2  # DA-DPFL: 2 of CIFAR-10 and HAM10000, 10 of CIFAR-100

    def split(self, y_train: Ids, y_test: Ids, devices: int, classes: int, key: Key) -> Split:
        """Return the partition with local test sets. Raises ConfigError if there are too few classes or samples."""
        rows, size, generator = by_class(y_train, classes), equal_share(len(y_train), devices), key.at(0).numpy()
        held = np.flatnonzero([len(part) for part in rows])
        if self.n_cls > len(held):
            raise ConfigError(f"partition.n_cls: needs {self.n_cls} classes, the data set has {len(held)}")
        counts = np.zeros((devices, classes), dtype=np.int64)
        for device in range(devices):
            labels = generator.choice(held, self.n_cls, replace=False)
            counts[device, labels] = generator.multinomial(size, np.full(self.n_cls, 1 / self.n_cls))
        pieces = [deal(rows[label], counts[:, label], generator) for label in held]
        train = tuple(np.concatenate(mine) for mine in zip(*pieces, strict=True))
        return Split(train, local_tests(train, y_train, y_test, classes, key.at(1).numpy()))


PLUGINS = {"pathological": Pathological}
