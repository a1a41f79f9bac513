"""A chain of convolutions with a classifier behind each block, of which a device may have the first blocks alone.

Source: the design of Kim et al., "DepthFL" (ICLR 2023), whose blocks are those of ResNet18; this chain is ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from annotated_types import MinLen

from edgesim.core.errors import ConfigError
from edgesim.core.limits import Count
from edgesim.learning.models.base import Conv, ModelPlugin, flat_features

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True, kw_only=True)
class Exits(ModelPlugin):
    """Blocks of a 3x3 convolution, max-pooling by 2 and ReLU; `exit1`, `exit2`, ... are linear layers behind them.

    `channels`: of each block. `depth`: how many blocks there are, the first ones; unset: all. Networks of other depths
    share names, shapes and first weights of what they have in common. `answer` in a test: the mean of the logits of
    all exits ("mean"), or the deepest exit's ("deepest"). In training it is always the mean, so that prices have all.
    """

    channels: Annotated[tuple[Count, ...], MinLen(1)] = (16, 32, 32)
    depth: Count | None = None
    answer: Literal["mean", "deepest"] = "mean"
    native_input_shape = (1, 8, 8)

    def build(self, input_shape: Sequence[int], classes: int) -> nn.Module:
        """Return the network; see ModelPlugin.build."""
        depth = len(self.channels) if self.depth is None else self.depth
        if depth > len(self.channels):
            raise ConfigError(f"model.depth: must be at most the {len(self.channels)} of model.channels, found {depth}")
        convs = [Conv(channels, 3, padding=1) for channels in self.channels[:depth]]
        features = [flat_features(type(self).__name__, input_shape, convs[:n]) for n in range(1, depth + 1)]
        from edgesim.learning.models.exit_modules import ChainWithExits

        return ChainWithExits(input_shape[0], convs, features, classes, self.answer)


PLUGINS = {"exits": Exits}
