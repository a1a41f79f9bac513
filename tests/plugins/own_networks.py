"""Networks for the 8x8 digits that something is wrong with, or in which weights are shared or frozen."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Plain(nn.Module):
    """Two linear layers; `fails`: with an error of this name."""

    def __init__(self, hidden: int = 8, fails: str = "") -> None:
        super().__init__()
        if fails:
            raise {"key": KeyError("width"), "zero": ZeroDivisionError("by zero"), "long": ValueError("no " * 500)}[
                fails
            ]
        self.a, self.b = nn.Linear(64, hidden), nn.Linear(hidden, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits, shape (batch, 10)."""
        logits: Tensor = self.b(self.a(x.flatten(1)).relu())
        return logits


class Volume(nn.Module):
    """A digit as a volume of 4 x 4 x 4 under three-dimensional convolutions, whose weights have five dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Conv3d(1, 3, 2), nn.Conv3d(3, 4, 2), nn.Linear(4 * 8, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits, shape (batch, 10)."""
        maps = self.b(self.a(x.reshape(-1, 1, 4, 4, 4)).relu()).relu()
        logits: Tensor = self.c(maps.flatten(1))
        return logits


class Sequence(nn.Module):
    """A digit as a sequence of 64 numbers under convolutions along it, whose weights have three dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Conv1d(1, 3, 5), nn.Conv1d(3, 4, 5), nn.Linear(4 * 56, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits, shape (batch, 10)."""
        maps = self.b(self.a(x.flatten(1).unsqueeze(1)).relu()).relu()
        logits: Tensor = self.c(maps.flatten(1))
        return logits


class AllFrozen(Plain):
    """Nothing is left to train."""

    def __init__(self) -> None:
        super().__init__()
        self.requires_grad_(False)


class Misspelt(Plain):
    """Uses a layer that it does not have."""

    def forward(self, x: Tensor) -> Tensor:
        """Fail."""
        logits: Tensor = self.c(x)
        return logits


class TwoOutputs(Plain):
    """Gives an auxiliary output in training."""

    def forward(self, x: Tensor) -> Tensor:
        """Return logits, twice in training."""
        logits = super().forward(x)
        return (logits, logits) if self.training else logits  # type: ignore[return-value]


class Half(Plain):
    """Computes with 16 bits."""

    def __init__(self) -> None:
        super().__init__()
        self.half()

    def forward(self, x: Tensor) -> Tensor:
        """Return logits."""
        return super().forward(x.half()).float()


class PairsOnly(Plain):
    """Takes nothing but two samples."""

    def forward(self, x: Tensor) -> Tensor:
        """Return logits."""
        return super().forward(x.reshape(2, 64))


class AcrossSamples(Plain):
    """Compares all samples of a batch with each other."""

    def forward(self, x: Tensor) -> Tensor:
        """Return logits."""
        logits = super().forward(x)
        return (logits @ logits.T).softmax(1) @ logits


class Twice(nn.Module):
    """One layer under two names, another that shares its weight, and a parameter that a submodule only gives."""

    class Shift(nn.Module):
        """A parameter."""

        def __init__(self) -> None:
            super().__init__()
            self.by = nn.Parameter(torch.zeros(64))

        def forward(self) -> Tensor:
            """Return it, shape (64,)."""
            return self.by

    def __init__(self) -> None:
        super().__init__()
        self.shift = Twice.Shift()
        self.a, self.b, self.out = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 10)
        self.c = self.a
        self.b.weight = self.a.weight

    def forward(self, x: Tensor) -> Tensor:
        """Return logits, shape (batch, 10)."""
        logits: Tensor = self.out(self.b(self.c(self.a(x.flatten(1) + self.shift()).relu()).relu()).relu())
        return logits


class HeadOnly(nn.Module):
    """A convolution that its author froze, of `numbers`, and a layer that learns. A base of 40 numbers, 1450 train."""

    def __init__(self, numbers: str = "float32", file: str = "") -> None:
        super().__init__()
        self.features, self.head = nn.Conv2d(1, 4, 3), nn.Linear(4 * 36, 10)
        if file:
            self.features.load_state_dict(torch.load(file))
        self.features.to(getattr(torch, numbers)).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits, shape (batch, 10)."""
        maps = self.features(x.to(self.features.weight.dtype)).relu()
        logits: Tensor = self.head(maps.flatten(1).float())
        return logits


class Drifting(nn.Module):
    """A network that changes a weight that it froze."""

    def __init__(self) -> None:
        super().__init__()
        self.shift, self.head = nn.Parameter(torch.zeros(64), requires_grad=False), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits, shape (batch, 10)."""
        self.shift.add_(1.0)
        logits: Tensor = self.head(x.flatten(1) + self.shift)
        return logits
