"""Networks that read tokens as integers and do not convert them."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class NextTokens(nn.Module):
    """An embedding and a linear layer: logits of the token after each position, (batch, tokens, positions)."""

    def __init__(self, tokens: int, width: int = 8) -> None:
        super().__init__()
        self.embedding = nn.Embedding(tokens, width)
        self.output = nn.Linear(width, tokens)

    def forward(self, x: Tensor) -> Tensor:
        """Raise TypeError unless the tokens are integers."""
        if x.dtype != torch.int64:
            raise TypeError(f"tokens are {x.dtype}")
        logits: Tensor = self.output(self.embedding(x)).transpose(1, 2)
        return logits


class BagOfTokens(nn.Module):
    """The mean embedding of all tokens, and a linear layer: logits of classes, (batch, classes)."""

    def __init__(self, tokens: int, classes: int, width: int = 8) -> None:
        super().__init__()
        self.embedding = nn.Embedding(tokens, width)
        self.output = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        logits: Tensor = self.output(self.embedding(x).mean(1))
        return logits
