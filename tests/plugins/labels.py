"""Data whose labels are numbers, flags or tokens, and a network for tokens."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from edgesim.core.metrics import LabelKind
from edgesim.core.rng import Key
from edgesim.learning.data.dataset import DataPart, Dataset

FEATURES, OUTPUTS, LENGTH = 4, 3, 5


@dataclass(frozen=True, kw_only=True)
class Made(DataPart):
    """Samples of four normal features whose three numbers, flags or next tokens follow from a random matrix."""

    kind: LabelKind = "numbers"
    samples: int = 120

    def load(self) -> Dataset:
        """Return as many samples for training as for the test."""
        generator = Key(4).numpy()
        x = generator.standard_normal((2, self.samples, FEATURES), dtype=np.float32)
        y = (x @ generator.standard_normal((FEATURES, OUTPUTS))).astype(np.float32)
        shape: tuple[int, ...] = (FEATURES,)
        if self.kind == "flags":
            y = (y > 0.5).astype(np.float32)
        if self.kind == "tokens":
            tokens = generator.integers(0, OUTPUTS, (2, self.samples, LENGTH + 1))
            x, y, shape = tokens[..., :-1].astype(np.float32), tokens[..., 1:], (LENGTH,)
        if self.kind == "classes":
            y = y.argmax(2)
        return Dataset("made", x[0], y[0], x[1], y[1], OUTPUTS, shape, kind=self.kind)


class Linear(nn.Module):
    """One linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(FEATURES, OUTPUTS)

    def forward(self, x: Tensor) -> Tensor:
        """Return outputs (batch, 3)."""
        outputs: Tensor = self.layer(x)
        return outputs


class Bigrams(nn.Module):
    """The logits of the token that follows each token, from a table."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(OUTPUTS, OUTPUTS)
        nn.init.zeros_(self.table.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (batch, tokens, positions)."""
        logits: Tensor = self.table(x.to(torch.int64))
        return logits.transpose(1, 2)
