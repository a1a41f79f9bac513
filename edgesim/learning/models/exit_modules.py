"""The network of `edgesim.learning.models.exits`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from edgesim.learning.models.base import Conv, conv_layers, sequential


class ChainWithExits(nn.Module):
    """Layers block1, exit1, block2, exit2, ..., drawn in this order: shallower networks start from the same weights.

    `features`: number of outputs of each block.
    """

    def __init__(
        self, channels_in: int, convs: Sequence[Conv], features: Sequence[int], classes: int, answer: str
    ) -> None:
        super().__init__()
        self.answer, self.depth = answer, len(convs)
        for number, (conv, entering) in enumerate(zip(convs, features, strict=True), start=1):
            self.add_module(f"block{number}", sequential(*conv_layers(channels_in, [conv])))
            self.add_module(f"exit{number}", nn.Linear(entering, classes))
            channels_in = conv.channels

    def forward(self, images: Tensor) -> Tensor:
        """Return logits (batch, classes)."""
        maps, logits = images, list[Tensor]()
        for number in range(1, self.depth + 1):
            maps = self.get_submodule(f"block{number}")(maps)
            logits.append(self.get_submodule(f"exit{number}")(maps.flatten(1)))
        return logits[-1] if self.answer == "deepest" and not self.training else torch.stack(logits).mean(dim=0)
