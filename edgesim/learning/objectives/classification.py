"""Classification by cross-entropy: one of several classes for each sample. This is the default objective."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgesim.core.metrics import METRICS
from edgesim.learning.objectives.base import Objective, f1_scores, outcomes

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Classification(Objective):
    """Cross-entropy of logits (batch, classes) with one class per sample. The largest logit is the prediction.

    Classes that neither occur nor are predicted do not count in f1_macro. f1_micro is the accuracy.
    """

    labels = "classes"
    metrics = {name: METRICS[name] for name in ("accuracy", "f1_macro", "f1_micro")}

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the cross-entropy of each sample in nats, shape (batch,)."""
        import torch.nn.functional as F

        return F.cross_entropy(outputs, y, reduction="none")

    def loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the mean cross-entropy, by torch's own reduction."""
        import torch.nn.functional as F

        return F.cross_entropy(outputs, y)

    def summed(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the summed cross-entropy, by torch's own reduction."""
        import torch.nn.functional as F

        return F.cross_entropy(outputs, y, reduction="sum")

    def slopes(self, outputs: Tensor, y: Tensor) -> Tensor | None:
        """Return softmax minus one-hot. For small batches it takes at most half the time of a backward pass."""
        if type(self).losses is not Classification.losses:  # a subclass has another loss
            return None
        found = outputs.detach().softmax(1)
        return found.scatter_add_(1, y[:, None], found.new_full((len(y), 1), -1.0))

    def hits(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return true for each sample whose class has the largest logit, booleans (batch,)."""
        return outputs.argmax(1) == y

    def counts(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the outcomes that F1 is computed from, see `outcomes`."""
        import torch.nn.functional as F

        classes = outputs.shape[1]
        return outcomes(F.one_hot(outputs.argmax(1), classes).bool(), F.one_hot(y, classes).bool())

    def scores(self, loss: float, accuracy: float, sums: Sequence[float], samples: int) -> Mapping[str, float]:
        """Return f1_macro and f1_micro."""
        return f1_scores(sums, every_class=False)

    def some_labels(self, outputs: Tensor) -> Tensor:
        """Return classes, int64 (batch,)."""
        import torch

        return torch.empty(len(outputs), dtype=torch.int64, device=outputs.device)


CLASSIFICATION = Classification()
PLUGINS = {"classification": Classification}
