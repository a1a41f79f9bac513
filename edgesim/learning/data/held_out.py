"""A random test split for data without a split of its own."""

from __future__ import annotations

import numpy as np

from edgesim.core.arrays import Ids
from edgesim.core.errors import ConfigError
from edgesim.core.rng import Key
from edgesim.learning.data.split import by_class


def codes_of(labels: np.ndarray) -> Ids:
    """Return the place of each label among the different labels in ascending order, int64, shape (n,).

    Labels that are not checked yet may be negative or large, so that `held_out` cannot count them.
    """
    return np.unique(labels, return_inverse=True)[1].astype(np.int64)


def held_out(labels: Ids, share: float, key: Key) -> tuple[Ids, Ids]:
    """Return rows of the training and of the test split, each in random order, so that a limit keeps all classes.

    The training split has a share 1 - `share` of every class, rounded, whatever the key. `labels`: int64, shape (n,).
    Raises ConfigError if a split would be empty.
    """
    generator = key.numpy()
    rows = [generator.permutation(part) for part in by_class(labels, int(labels.max()) + 1)]
    ends = [round((1 - share) * len(part)) for part in rows]
    train = generator.permutation(np.concatenate([part[:end] for part, end in zip(rows, ends, strict=True)]))
    test = generator.permutation(np.concatenate([part[end:] for part, end in zip(rows, ends, strict=True)]))
    if not len(train) or not len(test):
        raise ConfigError(
            f"data.test_share: must leave samples in both splits, {share:g} of {len(labels)} are {len(test)}"
        )
    return train, test
