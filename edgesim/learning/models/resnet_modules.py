"""The networks of `edgesim.learning.models.resnets`."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn.functional import relu

from edgesim.learning.models.base import sequential

_STAGES = 4  # each of twice the channels of the one before


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut, which is a 1x1 convolution where the shape changes."""

    def __init__(
        self, channels_in: int, channels: int, stride: int, norm: Callable[[int], nn.Module], bias: bool
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, padding=1, bias=bias)
        self.norm1 = norm(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=bias)
        self.norm2 = norm(channels)
        self.shortcut = nn.Sequential()
        if stride != 1 or channels_in != channels:
            conv = nn.Conv2d(channels_in, channels, 1, stride, bias=bias)
            self.shortcut = sequential(("conv", conv), ("norm", norm(channels)))

    def forward(self, images: Tensor) -> Tensor:
        """Return maps (batch, channels, height / stride, width / stride)."""
        inner = relu(self.norm1(self.conv1(images)))
        return relu(self.norm2(self.conv2(inner)) + self.shortcut(images))


class ResNet18(nn.Module):
    """Layers conv1, norm1, blocks.0 to blocks.7, fc. `width`: channels of the first stage."""

    def __init__(
        self, channels_in: int, classes: int, width: int, norm: Callable[[int], nn.Module], bias: bool
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, width, 3, padding=1, bias=bias)
        self.norm1 = norm(width)
        stages = [width * 2**stage for stage in range(_STAGES)]
        blocks: list[nn.Module] = []
        for stage, (enter, channels) in enumerate(zip((width, *stages), stages, strict=False)):
            blocks.append(ResidualBlock(enter, channels, 1 if stage == 0 else 2, norm, bias))
            blocks.append(ResidualBlock(channels, channels, 1, norm, bias))
        self.blocks = nn.Sequential(*blocks)
        self.fc: nn.Module = nn.Linear(stages[-1], classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits (batch, classes)."""
        maps = self.blocks(relu(self.norm1(self.conv1(images))))
        return self.fc(maps.mean(dim=(2, 3)))
