"""Dirichlet partitions: over devices for each class, or over classes for each device."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgesim.core.arrays import Arr, Ids
from edgesim.core.errors import ConfigError
from edgesim.core.limits import Count, PositiveFactor
from edgesim.core.rng import Key
from edgesim.learning.data.split import Partition, Split, by_class, equal_share, local_tests, require

_ATTEMPTS = 1000


@dataclass(frozen=True, kw_only=True)
class DirichletLabel(Partition):
    """For each class, device shares drawn from Dirichlet(beta); device sizes differ, every sample is used once.

    `balance`: a device that already holds its equal part gets nothing of the remaining classes.
    The draw is repeated until the smallest device has `min_samples`.

    Source: FedDHAD paper (arXiv:2507.10430), after Q. Li et al., Federated Learning on Non-IID Data Silos, ICDE 2022.
    """

    beta: PositiveFactor = 0.5  # concentration: the smaller, the more unequal
    balance: bool = True
    min_samples: Count = 10  # FedDHAD's batch size

    def split(self, y_train: Ids, y_test: Ids, devices: int, classes: int, key: Key) -> Split:
        """Return the partition. Raises ConfigError if there are too few samples, or no draw reaches `min_samples`."""
        require(devices * self.min_samples, len(y_train), "partition.min_samples", f"for {devices} devices")
        rows, generator = by_class(y_train, classes), key.at(0).numpy()
        equal_part = len(y_train) / devices
        for _ in range(_ATTEMPTS):
            counts = np.zeros((classes, devices), dtype=np.int64)
            for label, part in enumerate(rows):
                full = self.balance & (counts.sum(axis=0) >= equal_part)
                open_ = np.flatnonzero(~full)
                if len(part):
                    # Setting the shares of full devices to 0 and rescaling is a Dirichlet draw over the others.
                    shares = generator.dirichlet(np.full(len(open_), self.beta))
                    counts[label, open_] = cut(shares, len(part))
            if counts.sum(axis=0).min() >= self.min_samples:
                return Split(_hand_out(rows, counts, generator))
        raise ConfigError(
            f"partition.min_samples: needs {self.min_samples} samples on each of {devices} devices, which none of "
            f"{_ATTEMPTS} draws with beta = {self.beta} from {len(y_train)} training samples has"
        )


def cut(shares: Arr, size: int) -> Ids:
    """Return the number of samples for each share of `size`: differences of floor(cumulated share * size)."""
    points = np.floor(np.cumsum(shares)[:-1] * size).astype(np.int64)
    return np.diff(points, prepend=0, append=size)


@dataclass(frozen=True, kw_only=True)
class DirichletDevice(Partition):
    """For each device, class shares drawn from Dirichlet(alpha). All devices have equal sizes and local test sets.

    Random devices take turns to draw a class from their shares and an unused sample of it, until all are full. If a
    class is used up, the class is drawn again.

    Source: DA-DPFL, after D. A. E. Acar et al., Federated Learning Based on Dynamic Regularization, ICLR 2021.
    """

    alpha: PositiveFactor = 0.3  # DA-DPFL: 0.3 for CIFAR, 0.5 for HAM10000

    def split(self, y_train: Ids, y_test: Ids, devices: int, classes: int, key: Key) -> Split:
        """Return the partition with local test sets. Raises ConfigError if there are fewer samples than devices."""
        size = equal_share(len(y_train), devices)
        generator, rows = key.at(0).numpy(), by_class(y_train, classes)
        shares = generator.dirichlet(np.full(classes, self.alpha), devices)
        counts = take_turns(shares, np.array([len(part) for part in rows]), size, generator)
        train = _hand_out(rows, counts.T, generator)
        return Split(train, local_tests(train, y_train, y_test, classes, key.at(1).numpy()))


def take_turns(shares: Arr, supply: Ids, size: int, generator: np.random.Generator) -> Ids:
    """Return the number of samples of each class on each device, shape (devices, classes). Each row sums to `size`.

    `shares`: shape (devices, classes). `supply`: available samples of each class, shape (classes,), at least
    devices * size in total.
    """
    devices, classes = shares.shape
    # The order of devices does not depend on the classes, and a class drawn again until one has supply left is a draw
    # from the shares of the classes with supply. So all draws until a class is used up can be made at once.
    #
    # Each turn is uniform over the devices that are not full. This is the order of the first `size` events of each
    # device if events have equal rates and independent exponential gaps, because every event is then equally likely to
    # belong to any device.
    times = np.cumsum(generator.standard_exponential((devices, size)), axis=1)
    turns = np.argsort(times, axis=None) // size
    counts, left = np.zeros((devices, classes), dtype=np.int64), supply.astype(np.int64)
    while len(turns):
        # A class for each turn. A device without a share of any class with supply draws among all of these classes.
        supplied = shares * (left > 0)
        bounds = np.cumsum(np.where(supplied.sum(axis=1, keepdims=True) > 0, supplied, left > 0), axis=1)
        bounds /= bounds[:, -1:]  # the last bound is then 1, above any draw, however small the shares
        drawn = (bounds[turns] <= generator.random((len(turns), 1))).sum(axis=1)
        # Draws are valid up to and including the draw that uses up the first class.
        wanted = np.bincount(drawn, minlength=classes)
        emptied = np.flatnonzero((wanted >= left) & (left > 0))
        ends = [np.flatnonzero(drawn == label)[left[label] - 1] for label in emptied]
        used = int(min(ends, default=len(drawn) - 1)) + 1
        np.add.at(counts, (turns[:used], drawn[:used]), 1)
        left = left - np.bincount(drawn[:used], minlength=classes)
        turns = turns[used:]
    return counts


def _hand_out(rows: list[Ids], counts: Ids, generator: np.random.Generator) -> tuple[Ids, ...]:
    """Return disjoint, shuffled random samples for each device. `counts`: shape (classes, devices)."""
    pieces = [
        np.split(generator.permutation(part), np.cumsum(count))[:-1] for part, count in zip(rows, counts, strict=True)
    ]
    return tuple(generator.permutation(np.concatenate(mine)) for mine in zip(*pieces, strict=True))


PLUGINS = {"dirichlet_label": DirichletLabel, "dirichlet_device": DirichletDevice}
