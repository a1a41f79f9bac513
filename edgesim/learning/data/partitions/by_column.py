"""Natural partitions: a device holds the samples of one user, speaker, hospital or whatever a column says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from edgesim.core.arrays import Ids
from edgesim.core.errors import ConfigError
from edgesim.core.rng import Key
from edgesim.files.reading import quoted
from edgesim.learning.data.dataset import Dataset
from edgesim.learning.data.split import Partition, Split


@dataclass(frozen=True, kw_only=True)
class ByColumn(Partition):
    """Samples with equal values in a column of the data go to one device: the least value to device 0, and so on.

    A device's own test set is what the test split has of its value, if all have some. Nothing is drawn. As many values
    as devices are needed.
    """

    by_classes: ClassVar[bool] = False  # labels of any kind

    column: str = "user"  # of the data set, neither a feature nor a label

    def divide(self, data: Dataset, rows: Ids, tests: Ids, devices: int, key: Key) -> Split:
        """Return the partition of these rows of both splits, as places in them. Raises ConfigError unless it fits."""
        if self.column not in data.columns:
            known = ", ".join(sorted(data.columns)) or "none"
            raise ConfigError(
                f"partition.column: data {data.name} has no column {quoted(self.column)} for it (it has {known})"
            )
        train, test = data.columns[self.column]
        values, codes = np.unique(train[rows], return_inverse=True)
        if len(values) != devices:
            raise ConfigError(
                f"partition.column: {quoted(self.column)} has {len(values)} different values, one for each device, "
                f"and there are {devices} devices"
            )
        own = tuple(np.flatnonzero(codes == place) for place in range(devices))
        own_tests = tuple(np.flatnonzero(test[tests] == value) for value in values)
        return Split(own, own_tests if all(map(len, own_tests)) else None)


PLUGINS = {"by_column": ByColumn}
