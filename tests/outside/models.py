"""A plain network, and a network as a part."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge
from torch import Tensor, nn

from edgesim.learning.models.base import ModelPlugin


class Mlp(nn.Module):
    """Two linear layers; knows nothing of edgesim."""

    def __init__(self, features: int, classes: int, hidden: int = 8) -> None:
        super().__init__()
        self.hidden = nn.Linear(features, hidden)
        self.out = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits."""
        logits: Tensor = self.out(self.hidden(x).relu())
        return logits


@dataclass(frozen=True, kw_only=True)
class Normed(ModelPlugin):
    """A convolution with batch normalisation, then a linear layer."""

    channels: Annotated[int, Ge(1)] = 4

    def build(self, input_shape: Sequence[int], classes: int) -> nn.Module:
        """Return the network."""
        layers = {
            "conv": nn.Conv2d(input_shape[0], self.channels, 3, stride=2),
            "norm": nn.BatchNorm2d(self.channels),
            "pool": nn.AdaptiveAvgPool2d(2),
            "flat": nn.Flatten(),
            "out": nn.Linear(4 * self.channels, classes),
        }
        return nn.Sequential(OrderedDict(layers))
