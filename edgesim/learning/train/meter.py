"""Measurement of the losses of a device during training. The trained weights stay the same bit for bit."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from edgesim.core.backend import Report
from edgesim.learning.objectives.base import Objective


class Meter:
    """Sums of the samples' losses, from the logits that training computes anyway."""

    def __init__(self, objective: Objective) -> None:
        self._objective = objective
        self._amount: float | Tensor = 0.0  # samples, each times its share that counts
        self._sums: Tensor | None = None  # of losses, of their squares, and of hits: float64, shape (3,)
        self._x: Tensor | None = None
        self._logits: Tensor | None = None

    def expect(self, x: Tensor) -> None:
        """Wait for the logits of these samples."""
        self._x, self._logits = x, None

    def see(self, x: Tensor, logits: Tensor) -> None:
        """Take logits of the weights being trained, if they are the first ones of the expected samples."""
        if x is self._x and self._logits is None:
            self._logits = logits.detach()

    @property
    def has_seen(self) -> bool:
        """True once the expected logits have come."""
        return self._logits is not None

    def note(self, y: Tensor) -> None:
        """Add the losses of the logits that have come, given the labels of their samples."""
        logits, self._x, self._logits = self._logits, None, None
        if logits is not None:
            self.add(logits, self._objective.losses(logits, y), y)

    def add(self, logits: Tensor, losses: Tensor, y: Tensor) -> None:
        """Add the losses and hits of samples: logits, losses (batch,) and labels."""
        losses, hits, counted = losses.detach().double(), self._objective.hits(logits, y), self._objective.counted(y)
        each = [losses, losses.square(), hits]
        if counted is not None:
            each = [values * counted for values in each]
        sums = torch.stack([values.sum() for values in each])
        self._sums = sums if self._sums is None else self._sums + sums
        self._amount += len(y) if counted is None else counted.double().sum()

    def report(self, trained: Mapping[str, Tensor], received: Mapping[str, Tensor]) -> Report | None:
        """Return the report of a device that trained the received parameters, or None if it saw no sample.

        Parameters that only one of the two sets has are left out of the norm.
        """
        if self._sums is None:
            return None
        loss, square_loss, hits = (self._sums / self._amount).tolist()
        moves = [
            (w.detach() - received[name].to(w)).double().square().sum()
            for name, w in trained.items()
            if name in received and received[name].shape == w.shape
        ]
        norm = math.sqrt(float(torch.stack(moves).sum())) if moves else 0.0
        return Report(loss, square_loss, hits, norm)
