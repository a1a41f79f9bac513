"""Devices that hold a given number of classes each, in uneven shares.

Source: H. Wu, P. Wang, Fast-Convergent Federated Learning with Adaptive Weighting, IEEE TCCN 2021; H. Wu, P. Wang,
Node Selection Toward Faster Convergence for Federated Learning on Non-IID Data, IEEE TNSE 2022.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from edgesim.core.arrays import Ids
from edgesim.core.errors import ConfigError
from edgesim.core.limits import Count, CountOrZero
from edgesim.core.rng import Key
from edgesim.learning.data.split import Partition, SamplePool, Split, require


def draw_classes(
    y: Ids, numbers: Sequence[int], samples: int, classes: int, key: Key, iid: int = 0, name: str = "partition.x"
) -> Split:
    """Return first `iid` devices alike, then one device for each of `numbers` with that many random classes.

    Devices may have classes in common. A device draws uniformly from the union of its classes, so that its class
    shares are only about equal; it takes samples of others only where a class runs short. Raises ConfigError that
    names `name` if there are too few classes or samples.
    """
    if max(numbers, default=0) > classes:
        raise ConfigError(f"{name}: needs {max(numbers)} classes, the data set has {classes}")
    require(iid * samples, len(y), "partition.samples_per_device", f"for {iid} devices")
    pick, pool = key.at(0).numpy(), SamplePool(y, key.at(1).numpy())
    labels = [np.arange(classes)] * iid + [pick.choice(classes, number, replace=False) for number in numbers]
    return Split(tuple(pool.draw(held, samples) for held in labels))


@dataclass(frozen=True, kw_only=True)
class XClass(Partition):
    """Every device holds samples of x random classes."""

    x: Count = 2  # classes of a device
    samples_per_device: Count = 600  # training samples

    def split(self, y_train: Ids, y_test: Ids, devices: int, classes: int, key: Key) -> Split:
        """Return the partition. Raises ConfigError if there are too few classes or samples."""
        return draw_classes(y_train, [self.x] * devices, self.samples_per_device, classes, key)


@dataclass(frozen=True, kw_only=True)
class IidPlusClasses(Partition):
    """The first devices are alike, each of the others holds samples of x random classes."""

    iid_devices: CountOrZero = 5  # so many first devices are alike
    x: Count | tuple[Count, ...] = 1  # one for all other devices, or one for each
    samples_per_device: Count = 600  # training samples

    def split(self, y_train: Ids, y_test: Ids, devices: int, classes: int, key: Key) -> Split:
        """Return the partition. Raises ConfigError if the numbers of devices, classes or samples do not fit."""
        others = devices - self.iid_devices
        if others < 0:
            raise ConfigError(f"partition.iid_devices: {self.iid_devices} of them, the fleet has {devices} devices")
        numbers = (self.x,) * others if isinstance(self.x, int) else self.x
        if len(numbers) != others:
            raise ConfigError(f"partition.x: {len(numbers)} numbers given, {others} devices are not i.i.d.")
        return draw_classes(y_train, numbers, self.samples_per_device, classes, key, self.iid_devices)


@dataclass(frozen=True, kw_only=True)
class Cases(Partition):
    """Ten devices with different numbers of classes.

    Case 1: 1 to 10, each number once, in random order. Case 2: five devices with 1 to 5, five with 6 to 10, at random.
    """

    case: Literal[1, 2] = 1  # which of the two
    samples_per_device: Count = 600  # training samples

    def split(self, y_train: Ids, y_test: Ids, devices: int, classes: int, key: Key) -> Split:
        """Return the partition. Raises ConfigError unless there are 10 devices and at least 10 classes."""
        if devices != 10:
            raise ConfigError(f"partition.case: needs 10 devices, the fleet has {devices}")
        numbers = self.numbers(key.at(2))
        return draw_classes(y_train, numbers, self.samples_per_device, classes, key, name="partition.case")

    def numbers(self, key: Key) -> list[int]:
        """Return the number of classes of each of the ten devices."""
        generator = key.numpy()
        if self.case == 1:
            return [int(number) for number in generator.permutation(10) + 1]
        low, high = generator.integers(1, 6, 5), generator.integers(6, 11, 5)
        return [int(number) for number in np.concatenate([low, high])]


PLUGINS = {"x_class": XClass, "iid_plus_classes": IidPlusClasses, "cases": Cases}
