"""Dirichlet partitions: over devices for each class, or over classes for each device."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgesim.core.arrays import Arr, Ids
from edgesim.core.errors import ConfigError
from edgesim.core.limits import Count, PositiveFactor
from edgesim.core.rng import Key
from edgesim.learning.data.split import Split, by_class, equal_share, local_tests, require

_ATTEMPTS = 1000


@dataclass(frozen=True, kw_only=True)
class DirichletLabel:
    """For each class, device shares drawn from Dirichlet(beta); device sizes differ, every sample is used once.

    `balance`: a device that holds its equal part already gets no more of the classes to come.
    Drawn again until the smallest device has `min_samples`.

    Source: FedDHAD paper (arXiv:2507.10430), after Q. Li et al., Federated Learning on Non-IID Data Silos, ICDE 2022.
    """

    beta: PositiveFactor = 0.5  # concentration: the smaller, the more unequal
    balance: bool = True
    min_samples: Count = 10  # FedDHAD's batch size

    def split(self, y_train: Ids, y_test: Ids, devices: int, classes: int, key: Key) -> Split:
        """Return the partition. Raises ConfigError if there are too few samples, or no draw reaches `min_samples`."""
        require(devices * self.min_samples, len(y_train), "partition.min_samples", f"for {devices} devices")
        rows, generator = by_class(y_train, classes), key.at(0).numpy()
        for _ in range(_ATTEMPTS):
            counts = self._counts([len(part) for part in rows], devices, generator)
            if counts.sum(axis=0).min() >= self.min_samples:
                return Split(_hand_out(rows, counts, generator))
        raise ConfigError(
            f"partition.min_samples: needs {self.min_samples} samples on each of {devices} devices, which none of "
            f"{_ATTEMPTS} draws with beta = {self.beta} from {len(y_train)} training samples has"
        )

    def _counts(self, sizes: list[int], devices: int, generator: np.random.Generator) -> Ids:
        counts = np.zeros((len(sizes), devices), dtype=np.int64)
        equal_part = sum(sizes) / devices
        for label, size in enumerate(sizes):
            full = self.balance & (counts.sum(axis=0) >= equal_part)
            open_ = np.flatnonzero(~full)
            if size:
                # to zero the full devices' shares and scale up the rest is a Dirichlet draw over the rest
                shares = generator.dirichlet(np.full(len(open_), self.beta))
                counts[label, open_] = cut(shares, size)
        return counts


def cut(shares: Arr, size: int) -> Ids:
    """Return how many of `size` samples each share gets: differences of floor(cumulated share * size)."""
    points = np.floor(np.cumsum(shares)[:-1] * size).astype(np.int64)
    return np.diff(points, prepend=0, append=size)


@dataclass(frozen=True, kw_only=True)
class DirichletDevice:
    """For each device, class shares drawn from Dirichlet(alpha); all devices have equal sizes and local test sets.

    Random devices take turns to draw a class from their shares and an unused sample of it, until all are full; a
    class that has run out is drawn again.

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
    """Return how many samples of each class each device gets, shape (devices, classes), each row summing to `size`.

    `shares` (devices, classes), `supply` (classes,) samples of each class, at least devices * size together.
    """
    devices, classes = shares.shape
    # Which device is drawn next does not depend on the classes, and a class drawn again until one has supply left is
    # a draw from the shares of those. So between two classes running out all draws can be made at once.
    turns = _turns(devices, size, generator)
    counts, left = np.zeros((devices, classes), dtype=np.int64), supply.astype(np.int64)
    while len(turns):
        drawn = _draw_classes(shares * (left > 0), left > 0, turns, generator)
        used = _before_running_out(drawn, left)
        np.add.at(counts, (turns[:used], drawn[:used]), 1)
        left = left - np.bincount(drawn[:used], minlength=classes)
        turns = turns[used:]
    return counts


def _turns(devices: int, size: int, generator: np.random.Generator) -> Ids:
    """Return the order in which devices take their samples: each draw uniform over those that are not full.

    That is the order of the first `size` completions of each device if all have completions at the same rate, with
    independent exponential gaps: every completion is then equally likely to be of any device.
    """
    completion = np.cumsum(generator.standard_exponential((devices, size)), axis=1)
    return np.argsort(completion, axis=None) // size


def _draw_classes(shares: Arr, supplied: Ids, turns: Ids, generator: np.random.Generator) -> Ids:
    """Return a class for each turn; a device whose shares are all of classes without supply draws among the others."""
    shares = np.where(shares.sum(axis=1, keepdims=True) > 0, shares, supplied)
    bounds = np.cumsum(shares, axis=1)
    bounds /= bounds[:, -1:]  # the last is then 1, above any draw, however small the shares
    return (bounds[turns] <= generator.random((len(turns), 1))).sum(axis=1)


def _before_running_out(drawn: Ids, left: Ids) -> int:
    """Return how many draws can be served, up to and with the one that first empties a class."""
    wanted = np.bincount(drawn, minlength=len(left))
    ends = [np.flatnonzero(drawn == label)[left[label] - 1] for label in np.flatnonzero((wanted >= left) & (left > 0))]
    return int(min(ends, default=len(drawn) - 1)) + 1


def _hand_out(rows: list[Ids], counts: Ids, generator: np.random.Generator) -> tuple[Ids, ...]:
    """Return random samples for each device, disjoint, shuffled; `counts` has shape (classes, devices)."""
    pieces = [
        np.split(generator.permutation(part), np.cumsum(count))[:-1] for part, count in zip(rows, counts, strict=True)
    ]
    return tuple(generator.permutation(np.concatenate(mine)) for mine in zip(*pieces, strict=True))


PLUGINS = {"dirichlet_label": DirichletLabel, "dirichlet_device": DirichletDevice}
