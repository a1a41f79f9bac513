"""Local work of a device: plain SGD over its data, and how it changes from round to round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from annotated_types import Ge, Gt, Lt

from edgesim.core.numbers import Count, NonNegativeNumber, PositiveNumber, PositiveShare


@dataclass(frozen=True, slots=True)
class LocalSGD:
    """Plain SGD over the device's data; exactly one of `epochs` and `steps` is positive."""

    batch: int
    lr: float
    epochs: int = 0
    steps: int = 0
    momentum: float = 0.0
    weight_decay: float = 0.0
    clip_norm: float = float("inf")

    def amount(self, n_samples: np.ndarray, drop_single: bool) -> tuple[np.ndarray, np.ndarray]:
        """Return samples processed and SGD steps taken, int64 arrays of shape (k,), for k local data sizes.

        `drop_single`: a last batch of one sample is left out, as batch normalisation cannot train on it.
        """
        n = np.asarray(n_samples, dtype=np.int64)
        single = drop_single & (n % self.batch == 1)
        per_epoch = n - single
        steps = -(-per_epoch // self.batch)
        if self.epochs:
            return per_epoch * self.epochs, steps * self.epochs
        full, rest = np.divmod(self.steps, np.maximum(steps, 1))
        taken = full * per_epoch + np.minimum(rest * self.batch, per_epoch)
        return np.where(steps > 0, taken, 0), np.where(steps > 0, self.steps, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """Local optimiser settings of a scenario: plain SGD with a per-round learning-rate decay."""

    local_epochs: Count = 1  # passes over its own data that a device takes in a job
    batch: Count = 32  # samples of an SGD step
    lr: PositiveNumber = 0.01  # learning rate of the first round
    lr_decay: PositiveShare = 1.0  # factor per round
    lr_floor: NonNegativeNumber = 0.0  # below which the decay does not lower it
    momentum: Annotated[float, Ge(0), Lt(1)] = 0.0  # of SGD; it starts anew with every job
    weight_decay: NonNegativeNumber = 0.0  # added to the gradient, times the weights
    clip_norm: Annotated[float, Gt(0)] = float("inf")  # longest gradient of a step; longer ones are scaled down

    def lr_at(self, round_: int) -> float:
        """Return the learning rate of a round counted from 0: max(lr * decay^round, floor)."""
        return max(self.lr * self.lr_decay**round_, self.lr_floor)

    def local_sgd(self, round_: int) -> LocalSGD:
        """Return the local work of a round counted from 0."""
        return LocalSGD(
            batch=self.batch,
            lr=self.lr_at(round_),
            epochs=self.local_epochs,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            clip_norm=self.clip_norm,
        )
