"""Natural partitions: a device holds the samples of one user, speaker, hospital or whatever a column says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from edgesim.core.arrays import Ids
from edgesim.core.errors import ConfigError
from edgesim.core.rng import Key
from edgesim.files.reading import quoted
from edgesim.learning.data.dataset import Dataset
from edgesim.learning.data.split import Partition, Split, by_class


@dataclass(frozen=True, kw_only=True)
class ByColumn(Partition):
    """Samples with equal values in a column of the data go to one device: the least value to device 0, and so on.

    A device's own test set has the test samples of its values, if all devices have some. More devices than values are
    refused. `surplus` is for more values than devices. "choose" draws one value for each device and leaves out the
    samples of other values. "merge" deals all values at random, so that devices differ by at most one value.
    """

    by_classes: ClassVar[bool] = False  # labels of any kind

    column: str = "user"  # of the data set, neither a feature nor a label
    surplus: Literal["refuse", "choose", "merge"] = "refuse"

    def divide(self, data: Dataset, rows: Ids, tests: Ids, devices: int, key: Key) -> Split:
        """Return the partition of these rows of both splits, as places in them. Raises ConfigError unless it fits."""
        if self.column not in data.columns:
            known = ", ".join(sorted(data.columns)) or "none"
            raise ConfigError(
                f"partition.column: data {data.name} has no column {quoted(self.column)} for it (it has {known})"
            )
        train, test = data.columns[self.column]
        values, codes = np.unique(train[rows], return_inverse=True)
        if len(values) < devices or (len(values) > devices and self.surplus == "refuse"):
            remedy = "" if len(values) < devices else "; partition.surplus = 'choose' or 'merge' allows fewer devices"
            raise ConfigError(
                f"partition.column: {quoted(self.column)} has {len(values)} different values, one for each device, "
                f"and there are {devices} devices{remedy}"
            )
        holders = np.arange(len(values))  # device of each value; those of no device have the number of devices
        if len(values) > devices:
            order = key.numpy().permutation(len(values))
            if self.surplus == "choose":
                holders[:] = devices
                holders[np.sort(order[:devices])] = np.arange(devices)
            else:
                holders[order] = np.arange(len(values)) % devices
        places = np.searchsorted(values, test[tests]).clip(max=len(values) - 1)
        test_holders = np.where(values[places] == test[tests], holders[places], devices)
        own, own_tests = (tuple(by_class(held, devices + 1)[:devices]) for held in (holders[codes], test_holders))
        return Split(own, own_tests if all(map(len, own_tests)) else None)


PLUGINS = {"by_column": ByColumn}
