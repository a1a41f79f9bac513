"""Samples of its own that a method's server has. NumPy only."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from edgesim.core.arrays import Ids
from edgesim.core.errors import ConfigError
from edgesim.core.method import ServerSet
from edgesim.core.rng import Key
from edgesim.learning.data.split import by_class


class ServerRows(NamedTuple):
    """Samples of the server: rows of one split of the data set, ascending int64."""

    wanted: ServerSet
    rows: Ids


def draw_server_rows(wanted: ServerSet, labels: Ids, classes: int, key: Key) -> Ids:
    """Return the rows of the server's samples, ascending int64. `labels`: of all samples of the split.

    Raises ConfigError if there are too few samples, or if fewer than the reserved number would be left.
    """
    asked_by = "method" if wanted.option is None else f"method.{wanted.option}"
    samples = min(wanted.samples, len(labels)) if wanted.at_most else wanted.samples
    most = len(labels) - wanted.reserved
    if wanted.reserved and wanted.at_most:
        samples = min(samples, len(labels) // 2)  # the other half is reserved for another use
    if not 0 < samples <= most:
        raise ConfigError(f"{asked_by}: the server asks for {samples} {wanted.split} samples, allowed are 1 to {most}")
    if wanted.draw == "first":
        return np.arange(samples)
    generator = key.numpy()
    if wanted.draw == "random":
        return np.sort(generator.choice(len(labels), samples, replace=False))
    each, over = divmod(samples, classes)
    rows = by_class(labels, classes)
    if over or each > min(len(found) for found in rows):
        raise ConfigError(
            f"{asked_by}: the server asks for {samples} {wanted.split} samples, equally many of each of {classes} "
            f"classes; allowed are multiples of {classes} up to {classes * min(len(found) for found in rows)}"
        )
    return np.sort(np.concatenate([generator.choice(found, each, replace=False) for found in rows]))
