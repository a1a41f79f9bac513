"""A data set that is made up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from annotated_types import Ge
from torch import Tensor

from edgesim.core.rng import Key
from edgesim.learning.data.dataset import DataPart, Dataset


@dataclass(frozen=True, kw_only=True)
class Blobs(DataPart):
    """Two clouds of points in the plane, too far apart to be mistaken for each other."""

    samples: Annotated[int, Ge(2)] = 80
    seed: int = 0

    def load(self) -> Dataset:
        """Return a training and a test set of so many samples each."""
        (x_train, y_train), (x_test, y_test) = (self._cloud(split) for split in (0, 1))
        return Dataset("blobs", x_train, y_train, x_test, y_test, classes=2, input_shape=(2,))

    def _cloud(self, split: int) -> tuple[Tensor, Tensor]:
        labels = np.arange(self.samples) % 2
        noise = Key(self.seed).at(split).numpy().normal(size=(self.samples, 2))
        points = noise + 8.0 * labels[:, None] - 4.0
        return torch.from_numpy(points.astype(np.float32)), torch.from_numpy(labels)
