"""Networks of 8x8 images whose hidden units cannot be left out."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Recurrent(nn.Module):
    """An LSTM over the rows of an image, whose last state is told to a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(8, 8, batch_first=True), nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits, shape (batch, 10)."""
        return self.head(self.lstm(x.flatten(1, 2))[0][:, -1])


class UsedTwice(nn.Module):
    """One linear layer that the signal passes twice."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.head = nn.Linear(64, 64), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits, shape (batch, 10)."""
        once = torch.relu(self.hidden(x.flatten(1)))
        return self.head(torch.relu(self.hidden(once)))


class Tied(nn.Module):
    """Two linear layers with one matrix, which the second uses the other way round."""

    def __init__(self) -> None:
        super().__init__()
        self.code, self.head = nn.Linear(64, 8), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits, shape (batch, 10)."""
        return self.head(torch.relu(self.code(x.flatten(1))) @ self.code.weight)
