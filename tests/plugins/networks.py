"""Networks of our own with normalisation, small enough for the 8x8 digits."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn


class TinyNorm(nn.Sequential):
    """Convolution, batch normalisation and a linear layer: 478 parameters, 8 running statistics for 4 channels."""

    def __init__(self, channels: int = 4) -> None:
        layers: dict[str, nn.Module] = {
            "conv": nn.Conv2d(1, channels, 3),
            "norm": nn.BatchNorm2d(channels),
            "relu": nn.ReLU(),
            "pool": nn.MaxPool2d(2),
            "flatten": nn.Flatten(),
            "dropout": nn.Dropout(0.2),
            "fc": nn.Linear(9 * channels, 10),
        }
        super().__init__(OrderedDict(layers))


class NormedUnits(nn.Sequential):
    """Batch normalisation of single numbers, which a batch of one sample cannot train."""

    def __init__(self) -> None:
        layers: dict[str, nn.Module] = {
            "flatten": nn.Flatten(),
            "fc1": nn.Linear(64, 8),
            "norm": nn.BatchNorm1d(8),
            "relu": nn.ReLU(),
            "fc2": nn.Linear(8, 10),
        }
        super().__init__(OrderedDict(layers))


class Grouped(nn.Sequential):
    """Eight channels that group normalisation splits into two groups."""

    def __init__(self) -> None:
        layers: dict[str, nn.Module] = {
            "conv": nn.Conv2d(1, 8, 3),
            "norm": nn.GroupNorm(2, 8),
            "relu": nn.ReLU(),
            "pool": nn.MaxPool2d(2),
            "flatten": nn.Flatten(),
            "fc": nn.Linear(72, 10),
        }
        super().__init__(OrderedDict(layers))
