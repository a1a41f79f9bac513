"""The seam of objectives: the loss that devices descend, what a label is, and which metrics a model is told by.

An objective is a description: torch is loaded when it is asked for a loss.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from edgesim.core.metrics import ACCURACY, Better, LabelKind

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Objective(ABC):
    """Base class of objectives: frozen dataclasses of settings and pure functions.

    Outputs are what the network gives for a batch, shape (batch, outputs) or (batch, outputs, positions); labels are
    those of its samples, see `LabelKind`. A loss is per sample, so that a batch, a device or a test set has its mean.
    """

    labels: ClassVar[LabelKind]
    metrics: ClassVar[Mapping[str, Better]]  # that a scenario may name, beside the loss, and which way is better
    usual: ClassVar[tuple[str, ...]] = ()  # those written with every evaluation, beside loss and accuracy
    goal: ClassVar[str] = ACCURACY  # the metric by which the best model of a run is chosen

    @abstractmethod
    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the loss of each sample, shape (batch,)."""

    def loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the mean loss of a batch, which devices descend, a scalar."""
        return self.losses(outputs, y).mean()

    def summed(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the sum of the losses of some samples, a scalar."""
        return self.losses(outputs, y).sum()

    def slopes(self, outputs: Tensor, y: Tensor) -> Tensor | None:
        """Return the gradient of each sample's loss by its outputs, shape as these; None: autograd has to find it."""
        return None

    @abstractmethod
    def hits(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return to which share each sample is right, shape (batch,), of booleans or float32; NaN: it cannot be."""

    def counts(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the numbers of each sample, float32, shape (batch, k), from whose sums metrics follow."""
        return outputs.new_zeros(len(y), 0)

    def scores(self, loss: float, accuracy: float, sums: Sequence[float], samples: int) -> Mapping[str, float]:
        """Return all metrics of the objective from mean loss, accuracy and the sums of `counts` over so many samples.

        Accuracy and loss themselves may be left out.
        """
        return {}

    @abstractmethod
    def some_labels(self, outputs: Tensor) -> Tensor:
        """Return labels that fit these outputs, for a step without numbers, on their device."""

    def shapes(self, outputs: int, input_shape: Sequence[int]) -> tuple[int, ...]:
        """Return the shape that a network must give for one sample, where the data ask for so many outputs."""
        return (outputs,)


def f1_scores(sums: Sequence[float], every_class: bool) -> dict[str, float]:
    """Return f1_macro and f1_micro from true positives, false positives and false negatives: k of each in a row.

    F1 of a class is 2 TP / (2 TP + FP + FN), and 0 where that is 0 / 0: such a class counts if `every_class`.
    """
    classes = len(sums) // 3
    rows = list(zip(sums[:classes], sums[classes : 2 * classes], sums[2 * classes :], strict=True))
    own = [2 * tp / (2 * tp + fp + fn) if tp + fp + fn else 0.0 for tp, fp, fn in rows if every_class or tp + fp + fn]
    true, wrong = sum(tp for tp, _, _ in rows), sum(fp + fn for _, fp, fn in rows)
    return {
        "f1_macro": sum(own) / len(own) if own else 0.0,
        "f1_micro": 2 * true / (2 * true + wrong) if true + wrong else 0.0,
    }


def outcomes(predicted: Tensor, actual: Tensor) -> Tensor:
    """Return true positives, false positives and false negatives side by side, (batch, 3 k), of booleans (batch, k)."""
    import torch

    return torch.cat([predicted & actual, predicted & ~actual, ~predicted & actual], 1).float()
