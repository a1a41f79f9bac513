"""Cost models: how many floating-point operations a device's work takes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgesim.card import ModelCard
from edgesim.contracts import Arr, Part, Pass


@dataclass(frozen=True, kw_only=True)
class Measured:
    """FLOPs as PyTorch's own counter scores them, layer by layer; frozen layers really cost less."""

    def check(self, widths: int) -> None:
        """Accept every method: any part has a measured price."""

    def flops(self, card: ModelCard, work: Pass, part: Part, samples: Arr, steps: Arr) -> Arr:
        """Return FLOPs, shape (k,), of one pass over `samples` in `steps` SGD steps, both of shape (k,)."""
        done = samples if work.samples is None else np.full_like(samples, work.samples)
        part = work.part or part
        match work.kind:
            case "train":
                return work.times * done * card.train_flops(part.frozen)
            case "forward":
                return work.times * done * card.forward_flops()
            case "param_step":
                return work.times * steps * float(card.params)
            case "flops":
                return np.full_like(samples, work.times)


PARTS = {"measured": Measured}
