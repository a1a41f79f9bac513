"""Numbers of samples only, for runs that simulate time without training."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgesim.core.arrays import Ids
from edgesim.core.errors import ConfigError
from edgesim.core.limits import Count
from edgesim.core.rng import Key
from edgesim.learning.data.split import Partition


@dataclass(frozen=True, kw_only=True)
class Sizes(Partition):
    """A number of samples for every device, or [low, high] to draw from, both ends included. There are no samples.

    `samples`: the number of each device, in the order of the fleet, instead.
    """

    samples_per_device: Count | tuple[Count, Count] = 500  # as 100 devices have of CIFAR-10
    samples: tuple[Count, ...] | None = None

    def counts(self, devices: int, key: Key) -> Ids:
        """Return the number of samples of each device, int64, shape (devices,). Raises ConfigError if low > high, or if
        `samples` has another number of devices.
        """
        if self.samples is not None:
            if len(self.samples) != devices:
                raise ConfigError(
                    f"partition.samples: must have {devices} numbers, one a device, has {len(self.samples)}"
                )
            return np.array(self.samples, dtype=np.int64)
        given = self.samples_per_device
        low, high = (given, given) if isinstance(given, int) else given
        if low > high:
            raise ConfigError(f"partition.samples_per_device: needs [low, high] with low <= high, is [{low}, {high}]")
        return key.at(0).numpy().integers(low, high, devices, dtype=np.int64, endpoint=True)


PLUGINS = {"sizes": Sizes}
