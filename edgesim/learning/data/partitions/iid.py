"""Devices whose data are alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from edgesim.core.arrays import Ids
from edgesim.core.limits import Count
from edgesim.core.rng import Key
from edgesim.learning.data.split import Partition, Split, equal_share, require


@dataclass(frozen=True, kw_only=True)
class Iid(Partition):
    """Every device gets a uniform draw of the training set; no sample is given twice."""

    by_classes: ClassVar[bool] = False  # labels of any kind

    samples_per_device: Count | None = None  # None: all samples, sizes differing by at most one

    def split(self, y_train: Ids, y_test: Ids, devices: int, classes: int, key: Key) -> Split:
        """Return the partition. Raises ConfigError if there are too few samples."""
        rows = key.at(0).numpy().permutation(len(y_train))
        if self.samples_per_device is None:
            equal_share(len(rows), devices)
            return Split(tuple(np.array_split(rows, devices)))
        used = devices * self.samples_per_device
        require(used, len(rows), "partition.samples_per_device", f"for {devices} devices")
        return Split(tuple(np.split(rows[:used], devices)))


PLUGINS = {"iid": Iid}
