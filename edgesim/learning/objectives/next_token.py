"""Prediction of the next token at every position of a text, by cross-entropy. Perplexity compares models."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgesim.core.metrics import IGNORED, METRICS
from edgesim.learning.objectives.base import Objective

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class NextToken(Objective):
    """Mean cross-entropy over positions, of logits (batch, tokens, positions) with the token after each position.

    Positions whose label is `IGNORED`, as those of padding and of prompts are, count in no loss, mean or accuracy: a
    sample counts by its share of the other positions. perplexity: exp of the mean cross-entropy in nats, over the
    positions of the test set that count. accuracy: the share of them at which the token has the largest logit.

    Source: McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data" (AISTATS 2017),
    the Shakespeare task, for a loss at every position.
    """

    labels = "tokens"
    metrics = {name: METRICS[name] for name in ("perplexity", "accuracy")}
    usual = ("perplexity",)
    goal = "perplexity"

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return each sample's mean cross-entropy over its positions in nats, shape (batch,)."""
        import torch.nn.functional as F

        return F.cross_entropy(outputs, y, reduction="none", ignore_index=IGNORED).mean(1) / _nonzero(self.counted(y))

    def loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the mean cross-entropy over all positions of all samples."""
        import torch.nn.functional as F

        return F.cross_entropy(outputs, y, ignore_index=IGNORED)

    def summed(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the sum of the samples' losses, each times its `counted` share."""
        import torch.nn.functional as F

        return F.cross_entropy(outputs, y, reduction="none", ignore_index=IGNORED).mean(1).sum()

    def counted(self, y: Tensor) -> Tensor:
        """Return the share of each sample's positions that are not ignored, 1 without padding, float32 (batch,)."""
        return (y != IGNORED).float().mean(1)

    def hits(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the share of each sample's positions whose token has the largest logit, float32 (batch,)."""
        return (outputs.argmax(1) == y).float().mean(1) / _nonzero(self.counted(y))

    def scores(self, loss: float, accuracy: float, sums: Sequence[float], samples: int) -> Mapping[str, float]:
        """Return the perplexity, or infinity if it exceeds the range of a float."""
        return {"perplexity": math.exp(loss) if loss < math.log(1e300) else loss * math.inf}

    def some_labels(self, outputs: Tensor) -> Tensor:
        """Return tokens, int64 (batch, positions)."""
        import torch

        return torch.empty(len(outputs), *outputs.shape[2:], dtype=torch.int64, device=outputs.device)

    def shapes(self, outputs: int, input_shape: Sequence[int]) -> tuple[int, ...]:
        """Return (tokens, positions), with one position for each token of a sample."""
        return (outputs, *input_shape[:1])


def _nonzero(counted: Tensor) -> Tensor:
    """Return shares with 1 in the place of 0: a sample in which nothing counts has the loss 0."""
    return counted + (counted == 0)


PLUGINS = {"next_token": NextToken}
