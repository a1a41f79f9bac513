"""Data that already stand device by device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from edgesim.core.arrays import Ids
from edgesim.core.errors import ConfigError
from edgesim.core.limits import Count
from edgesim.core.rng import Key
from edgesim.learning.data.split import Partition, Split


@dataclass(frozen=True, kw_only=True)
class Blocks(Partition):
    """Consecutive samples: the first `samples_per_device` for the first device, and so on. Nothing is drawn."""

    by_classes: ClassVar[bool] = False  # labels of any kind

    samples_per_device: Count = 800  # as data `fedpns_synthetic` has by default

    def split(self, y_train: Ids, y_test: Ids, devices: int, classes: int, key: Key) -> Split:
        """Return the partition. Raises ConfigError unless the blocks are exactly the training set."""
        wanted = devices * self.samples_per_device
        if wanted != len(y_train):
            raise ConfigError(
                f"partition.samples_per_device: {self.samples_per_device} for each of {devices} devices are {wanted} "
                f"training samples, the data set has {len(y_train)}"
            )
        return Split(tuple(np.split(np.arange(wanted, dtype=np.int64), devices)))


PLUGINS = {"blocks": Blocks}
