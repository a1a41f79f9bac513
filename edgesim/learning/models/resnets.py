"""ResNet18 for 32x32 images: a 3x3 stem without pooling and four stages of two blocks.

Source: He et al., 2016, with the changes for small images of the FedDHAD and DA-DPFL papers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated

from annotated_types import MultipleOf

from edgesim.core.limits import Count
from edgesim.learning.models.base import ProjectedPart

if TYPE_CHECKING:
    from torch import nn

_WIDTH = 64  # of He et al.
_GROUPS = 32  # that such a network has in each norm


@dataclass(frozen=True, kw_only=True)
class Resnet18Bn(ProjectedPart):
    """11,276,232 parameters for 200 classes: batch normalisation, and a bias in every convolution.

    Source: FedDHAD paper; only with the biases does its stated parameter count come out.
    """

    native_input_shape = (3, 32, 32)
    native_classes = 200
    width: Count = _WIDTH  # channels of the first stage, twice as many in each that follows

    def build(self, input_shape: Sequence[int], classes: int) -> nn.Module:
        """Return the network; see ModelPlugin.build."""
        from torch import nn

        from edgesim.learning.models.resnet_modules import ResNet18

        module = ResNet18(input_shape[0], classes, self.width, nn.BatchNorm2d, bias=True)
        module.fc = self.headed(module.fc)
        return module


@dataclass(frozen=True, kw_only=True)
class Resnet18Gn(ProjectedPart):
    """11,173,962 parameters on CIFAR-10: group normalisation, convolutions without bias. Source: DA-DPFL paper.

    Norms have 32 groups, of a narrower or wider network so many that each has as many channels.
    """

    native_input_shape = (3, 32, 32)
    width: Annotated[Count, MultipleOf(_WIDTH // _GROUPS)] = _WIDTH  # as of `resnet18_bn`

    def build(self, input_shape: Sequence[int], classes: int) -> nn.Module:
        """Return the network; see ModelPlugin.build."""
        from torch import nn

        from edgesim.learning.models.resnet_modules import ResNet18

        groups = _GROUPS * self.width // _WIDTH
        module = ResNet18(input_shape[0], classes, self.width, partial(nn.GroupNorm, groups), bias=False)
        module.fc = self.headed(module.fc)
        return module


PLUGINS: dict[str, type[ProjectedPart]] = {"resnet18_bn": Resnet18Bn, "resnet18_gn": Resnet18Gn}
