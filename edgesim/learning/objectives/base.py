"""Base class of objectives: the loss that devices minimise, the kind of labels, and the metrics of a model.

An objective is a description: torch is loaded when a loss is computed.
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

    Outputs are the network's results for a batch, shape (batch, outputs) or (batch, outputs, positions). Labels belong
    to its samples, see `LabelKind`. A loss is per sample, so that a batch, a device or a test set has a mean loss.
    """

    labels: ClassVar[LabelKind]
    metrics: ClassVar[Mapping[str, Better]]  # metrics that a scenario may name, beside the loss, and their direction
    usual: ClassVar[tuple[str, ...]] = ()  # metrics written with every evaluation, beside loss and accuracy
    goal: ClassVar[str] = ACCURACY  # the metric that chooses the best model of a run

    @abstractmethod
    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the loss of each sample, shape (batch,)."""

    def loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the mean loss of a batch, which devices minimise, a scalar."""
        return self.losses(outputs, y).mean()

    def summed(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the sum of the losses of some samples, each times its `counted` share, a scalar."""
        return self.losses(outputs, y).sum()

    def counted(self, y: Tensor) -> Tensor | None:
        """Return the share of each sample that counts in a mean, in [0, 1], float32 (batch,). None: all count 1."""
        return None

    def amount(self, y: Tensor) -> float:
        """Return the number by which a sum over samples with these labels is divided for a mean."""
        counted = self.counted(y)
        return len(y) if counted is None else float(counted.double().sum())

    def slopes(self, outputs: Tensor, y: Tensor) -> Tensor | None:
        """Return the gradient of each sample's loss by its outputs, of their shape. None: autograd must compute it."""
        return None

    @abstractmethod
    def hits(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the correct share of each sample, shape (batch,), boolean or float32. NaN: there is no accuracy."""

    def counts(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return numbers of each sample, float32, shape (batch, k). Their sums decide the metrics."""
        return outputs.new_zeros(len(y), 0)

    def scores(self, loss: float, accuracy: float, sums: Sequence[float], samples: int) -> Mapping[str, float]:
        """Return all metrics of the objective from mean loss, accuracy and the sums of `counts` over `samples` samples.

        Accuracy and loss themselves may be left out.
        """
        return {}

    @abstractmethod
    def some_labels(self, outputs: Tensor) -> Tensor:
        """Return labels that fit these outputs, for a step without numbers, on their device."""

    def shapes(self, outputs: int, input_shape: Sequence[int]) -> tuple[int, ...]:
        """Return the required shape of a network's output for one sample, if the data need `outputs` outputs."""
        return (outputs,)


def f1_scores(sums: Sequence[float], every_class: bool) -> dict[str, float]:
    """Return f1_macro and f1_micro from k true positives, then k false positives, then k false negatives.

    F1 of a class is 2 TP / (2 TP + FP + FN), and 0 if this is 0 / 0. Such a class counts only with `every_class`.
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
