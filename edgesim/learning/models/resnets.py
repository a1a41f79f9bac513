"""ResNet18 for 32x32 images: a 3x3 stem without pooling and four stages of two blocks.

Source: He et al., 2016, with the changes for small images of the FedDHAD and DA-DPFL papers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from torch import Tensor, nn
from torch.nn.functional import relu

from edgesim.learning.models.base import Norm, ProjectedPart, sequential

STAGE_CHANNELS = (64, 128, 256, 512)


class Block(nn.Module):
    """Two 3x3 convolutions beside a shortcut, which is a 1x1 convolution where the shape changes."""

    def __init__(self, channels_in: int, channels: int, stride: int, norm: Norm, bias: bool) -> None:
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
    """Layers conv1, norm1, blocks.0 to blocks.7, fc."""

    def __init__(self, channels_in: int, classes: int, norm: Norm, bias: bool) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, STAGE_CHANNELS[0], 3, padding=1, bias=bias)
        self.norm1 = norm(STAGE_CHANNELS[0])
        before = (STAGE_CHANNELS[0], *STAGE_CHANNELS[:-1])
        blocks: list[nn.Module] = []
        for stage, (enter, channels) in enumerate(zip(before, STAGE_CHANNELS, strict=True)):
            blocks.append(Block(enter, channels, 1 if stage == 0 else 2, norm, bias))
            blocks.append(Block(channels, channels, 1, norm, bias))
        self.blocks = nn.Sequential(*blocks)
        self.fc: nn.Module = nn.Linear(STAGE_CHANNELS[-1], classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits (batch, classes)."""
        maps = self.blocks(relu(self.norm1(self.conv1(images))))
        return self.fc(maps.mean(dim=(2, 3)))


@dataclass(frozen=True, kw_only=True)
class Resnet18Bn(ProjectedPart):
    """11,276,232 parameters for 200 classes: batch normalisation, and a bias in every convolution.

    Source: FedDHAD paper; only with the biases does its stated parameter count come out.
    """

    native_input_shape = (3, 32, 32)
    native_classes = 200

    def build(self, input_shape: Sequence[int], classes: int) -> nn.Module:
        """Return the network; see ModelPlugin.build."""
        module = ResNet18(input_shape[0], classes, nn.BatchNorm2d, bias=True)
        module.fc = self.headed(module.fc)
        return module


@dataclass(frozen=True, kw_only=True)
class Resnet18Gn(ProjectedPart):
    """11,173,962 parameters on CIFAR-10: group normalisation, convolutions without bias. Source: DA-DPFL paper."""

    native_input_shape = (3, 32, 32)

    def build(self, input_shape: Sequence[int], classes: int) -> nn.Module:
        """Return the network; see ModelPlugin.build."""
        module = ResNet18(input_shape[0], classes, partial(nn.GroupNorm, 32), bias=False)
        module.fc = self.headed(module.fc)
        return module


PLUGINS: dict[str, type[ProjectedPart]] = {"resnet18_bn": Resnet18Bn, "resnet18_gn": Resnet18Gn}
