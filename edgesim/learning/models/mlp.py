"""Linear layers of any widths, for tables and other vectors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgesim.core.limits import Count
from edgesim.learning.models.base import ModelPlugin, linear_layers, sequential

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True, kw_only=True)
class Mlp(ModelPlugin):
    """Linear layers with ReLU between them, on any input flattened: fc1, fc2, ... No paper's model.

    Without hidden layers it is linear, as `mlr` is.
    """

    native_input_shape = (30,)
    native_classes = 2

    hidden: tuple[Count, ...] = (64,)  # widths of the layers but the last

    def build(self, input_shape: Sequence[int], classes: int) -> nn.Module:
        """Return the network; see ModelPlugin.build."""
        from torch import nn

        return sequential(("flatten", nn.Flatten()), *linear_layers(math.prod(input_shape), (*self.hidden, classes)))


PLUGINS = {"mlp": Mlp}
