"""Networks of our own with normalisation, small enough for the 8x8 digits."""

from __future__ import annotations

import math
from collections import OrderedDict

import torch
from torch import Tensor, nn


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


class Adapted(nn.Module):
    """A frozen linear layer with a low-rank adapter, in names and numbers as peft makes it."""

    def __init__(self, inputs: int, outputs: int, rank: int, alpha: float) -> None:
        super().__init__()
        self.base_layer = nn.Linear(inputs, outputs).requires_grad_(False)
        self.lora_A = nn.ModuleDict({"default": nn.Linear(inputs, rank, bias=False)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(rank, outputs, bias=False)})
        self.scaling = {"default": alpha / rank}
        nn.init.kaiming_uniform_(self.lora_A["default"].weight, a=math.sqrt(5))
        nn.init.zeros_(self.lora_B["default"].weight)

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs of the frozen layer plus scaling B A x."""
        added: Tensor = self.lora_B["default"](self.lora_A["default"](x)) * self.scaling["default"]
        outputs: Tensor = self.base_layer(x)
        return outputs + added


class AdaptedDigits(nn.Sequential):
    """Two frozen layers of 64 units with adapters, and a trained classifier: 2,698 trained parameters at rank 8."""

    def __init__(self, rank: int = 8, alpha: float = 16.0) -> None:
        layers: dict[str, nn.Module] = {
            "flatten": nn.Flatten(),
            "fc1": Adapted(64, 64, rank, alpha),
            "relu1": nn.ReLU(),
            "fc2": Adapted(64, 64, rank, alpha),
            "relu2": nn.ReLU(),
            "head": nn.Linear(64, 10),
        }
        super().__init__(OrderedDict(layers))


class AdaptedNorm(nn.Sequential):
    """A frozen layer with an adapter, batch normalisation and dropout, and a trained classifier."""

    def __init__(self, rank: int = 4) -> None:
        layers: dict[str, nn.Module] = {
            "flatten": nn.Flatten(),
            "fc1": Adapted(64, 16, rank, 2.0 * rank),
            "norm": nn.BatchNorm1d(16),
            "relu": nn.ReLU(),
            "dropout": nn.Dropout(0.2),
            "head": nn.Linear(16, 10),
        }
        super().__init__(OrderedDict(layers))


class Leaking(nn.Module):
    """A network whose logits read what lora_A gives, so that the rank cannot be cut."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.head = Adapted(64, 16, 4, 8.0), nn.Linear(20, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits, (batch, 10)."""
        x = x.flatten(1)
        logits: Tensor = self.head(torch.cat([self.fc1(x), self.fc1.lora_A["default"](x).roll(1, 1)], 1))
        return logits
