"""Devices that hold two different classes each, half and half.

Source: H. Wu, P. Wang, C. V. Aswartha Narayana, Straggler-resilient Federated Learning: Tackling Computation
Heterogeneity with Layer-wise Partial Model Training in Mobile Edge Network (FedPMT), 2023.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from annotated_types import Ge, Le, MultipleOf

from edgesim.core.arrays import Ids
from edgesim.core.errors import ConfigError
from edgesim.core.limits import MOST_COUNT
from edgesim.core.rng import Key
from edgesim.learning.data.split import Partition, Split, by_class, deal, require


@dataclass(frozen=True, kw_only=True)
class TwoClass(Partition):
    """Two different classes per device, in equal halves. No sample is used twice. All classes have as many devices."""

    # FedPMT: 500 of CIFAR-10, so that 100 devices use all of it; 300 of MNIST
    samples_per_device: Annotated[int, Ge(2), Le(MOST_COUNT), MultipleOf(2)] = 500  # training samples

    def split(self, y_train: Ids, y_test: Ids, devices: int, classes: int, key: Key) -> Split:
        """Return the partition. Raises ConfigError if a class has too few samples, or there is only one."""
        if classes < 2:
            raise ConfigError(f"partition.name: two_class needs 2 classes, the data set has {classes}")
        half, rows = self.samples_per_device // 2, by_class(y_train, classes)
        # 2 * devices labels in random order, each class equally often. Any that are left over are random classes.
        tokens = key.at(0).numpy()
        each, over = divmod(2 * devices, classes)
        labels = np.concatenate([np.repeat(np.arange(classes), each), tokens.choice(classes, over, replace=False)])
        pairs = pair_up(tokens.permutation(labels), key.at(1))
        halves = np.empty((2 * devices, half), dtype=np.int64)
        generator = key.at(2).numpy()
        for label in range(classes):
            mine = np.flatnonzero(pairs.ravel() == label)
            require(half * len(mine), len(rows[label]), "partition.samples_per_device", f"of class {label}")
            if len(mine):
                halves[mine] = deal(rows[label], [half] * len(mine), generator)
        return Split(tuple(halves.reshape(devices, 2 * half)))


def pair_up(tokens: Ids, key: Key) -> Ids:
    """Return the tokens as pairs (n, 2) of different labels.

    Consecutive tokens pair up. A pair of equal labels swaps its second token with the second token of a random pair
    without this label. Such a pair always exists: no label has more than n tokens, and one pair holds two of them.
    """
    pairs, generator = tokens.reshape(-1, 2).copy(), key.numpy()
    for equal in np.flatnonzero(pairs[:, 0] == pairs[:, 1]):
        label = pairs[equal, 0]
        if label == pairs[equal, 1]:  # unless an earlier swap has already separated them
            other = generator.choice(np.flatnonzero((pairs != label).all(axis=1)))
            pairs[[equal, other], 1] = pairs[[other, equal], 1]
    return pairs


PLUGINS = {"two_class": TwoClass}
