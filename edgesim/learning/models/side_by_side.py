"""Several networks as one module, whose weights are those of all of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn


class SideBySide(nn.Module):
    """Networks that share nothing, each under its name; for what is asked of a run's network as a whole."""

    def __init__(self, networks: Mapping[str, nn.Module]) -> None:
        super().__init__()
        for name, network in networks.items():
            self.add_module(name, network)

    def forward(self, x: Tensor) -> Any:
        """Return the mean of the logits of all networks."""
        return torch.stack([network(x) for network in self.children()]).mean(dim=0)
