"""Any number of labels for each sample, by binary cross-entropy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from annotated_types import Gt, Lt

from edgesim.core.metrics import METRICS
from edgesim.learning.objectives.base import Objective, f1_scores, outcomes

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class MultiLabel(Objective):
    """Mean binary cross-entropy over labels, of logits (batch, labels) with 0 or 1 for each label.

    A label is predicted if its probability is above `threshold`. accuracy: the share of samples whose labels are all
    correct. f1_macro: the mean of F1 over labels, with 0 for a label that neither occurs nor is predicted. f1_micro: F1
    of the outcomes of all labels together.
    """

    labels = "flags"
    metrics = {name: METRICS[name] for name in ("f1_macro", "f1_micro", "accuracy")}
    usual = ("f1_macro", "f1_micro")
    goal = "f1_macro"

    threshold: Annotated[float, Gt(0), Lt(1)] = 0.5  # probability above which a label is predicted

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return each sample's mean binary cross-entropy over its labels in nats, shape (batch,)."""
        import torch.nn.functional as F

        return F.binary_cross_entropy_with_logits(outputs, y, reduction="none").mean(1)

    def hits(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return true for each sample whose labels are all correct, booleans (batch,)."""
        return (self._predicted(outputs) == y.bool()).all(1)

    def counts(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the outcomes that F1 is computed from, see `outcomes`."""
        return outcomes(self._predicted(outputs), y.bool())

    def scores(self, loss: float, accuracy: float, sums: Sequence[float], samples: int) -> Mapping[str, float]:
        """Return f1_macro and f1_micro."""
        return f1_scores(sums, every_class=True)

    def some_labels(self, outputs: Tensor) -> Tensor:
        """Return numbers of the outputs' shape."""
        import torch

        return torch.empty_like(outputs)

    def _predicted(self, outputs: Tensor) -> Tensor:
        return outputs > math.log(self.threshold / (1 - self.threshold))


PLUGINS = {"multi_label": MultiLabel}
