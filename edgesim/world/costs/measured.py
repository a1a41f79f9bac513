"""Cost models: how many floating-point operations a device's work takes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgesim.card import F32_BYTES, Include, ModelCard, Sparse
from edgesim.contracts import Arr, Part, Pass


@dataclass(frozen=True, kw_only=True)
class Measured:
    """FLOPs as PyTorch's own counter scores them, layer by layer; frozen and thinner parts really cost less.

    `include`: "counted", or "all" to add by formula what the counter scores as zero and the optimiser's update.
    `sparse`: whether zeros of masked layers cost like any number ("dense") or nothing ("ideal").
    """

    include: Include = "counted"
    sparse: Sparse = "dense"  # what today's hardware does

    def check(self, widths: int) -> None:
        """Accept every method: any part has a measured price."""

    def flops(self, card: ModelCard, work: Pass, part: Part, samples: Arr, steps: Arr) -> Arr:
        """Return FLOPs, shape (k,), of one pass over `samples` in `steps` SGD steps, both of shape (k,)."""
        done, batches = _done(work, samples), steps if work.samples is None else 1.0
        part = work.part or part
        match work.kind:
            case "train":
                updates = steps * self._update_flops(card, work, part)
                of_samples = done * card.train_flops(part, self.include, self.sparse)
                return work.times * (of_samples + batches * card.step_flops(part)) + updates
            case "forward":
                of_samples = done * card.forward_flops(part, self.include, self.sparse)
                return work.times * (of_samples + batches * card.step_forward_flops)
            case "param_step":
                return work.times * steps * float(card.part_params(part))
            case "flops":
                return np.full_like(samples, work.times)

    def amounts(self, card: ModelCard, work: Pass, part: Part, samples: Arr, steps: Arr) -> dict[str, Arr]:
        """Return the amounts of all terms, each of shape (k,); see edgesim.contracts.Itemised.

        Steps, layers and parameter bytes are those of the SGD steps of training on the stretches' own samples; of other
        work only the FLOPs count.
        """
        part = work.part or part
        flops, convolution_flops = self.flops(card, work, part, samples, steps), np.zeros_like(samples)
        if work.kind in ("train", "forward"):
            per_sample = card.convolution_flops(part, self.sparse, forward_only=work.kind == "forward")
            convolution_flops = work.times * _done(work, samples) * per_sample
        taken = work.times * steps * (work.kind == "train" and work.samples is None)
        convolutions = sum(layer.reuses_weights for layer in card.layers)
        return {
            "steps": taken,
            "flops": flops,
            "convolutions": taken * convolutions,
            "convolution_flops": convolution_flops,
            "linears": taken * (len(card.layers) - convolutions),
            "linear_flops": flops - convolution_flops,
            "parameter_bytes": taken * F32_BYTES * card.part_params(part),
        }

    def _update_flops(self, card: ModelCard, work: Pass, part: Part) -> float:
        """Return the optimiser's FLOPs of a step; a pass over other samples than the stretches' updates nothing."""
        if self.include == "counted" or work.samples is not None:
            return 0.0
        return work.update_flops * card.part_params(part, trained_only=True)


def _done(work: Pass, samples: Arr) -> Arr:
    """Return the samples of a pass, shape (k,)."""
    return samples if work.samples is None else np.full_like(samples, work.samples)


PARTS = {"measured": Measured}
