"""One or several numbers for each sample, by squared or absolute error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from edgesim.core.metrics import METRICS
from edgesim.learning.objectives.base import Objective

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Regression(Objective):
    """Error of outputs (batch, numbers) against the numbers of a sample. There is no accuracy.

    mse and mae: the mean of squared and of absolute errors over all test samples and numbers, in the data's unit.
    """

    labels = "numbers"
    metrics = {name: METRICS[name] for name in ("mse", "mae")}
    usual = ("mse", "mae")

    error: Literal["squared", "absolute"] = "squared"  # the loss that devices minimise is its mean

    @property
    def goal(self) -> str:  # type: ignore[override]
        """The metric that is the loss."""
        return "mse" if self.error == "squared" else "mae"

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return each sample's mean error over its numbers, shape (batch,)."""
        import torch.nn.functional as F

        distance = F.mse_loss if self.error == "squared" else F.l1_loss
        return distance(outputs, y, reduction="none").mean(1)

    def hits(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return NaN for each sample, because a number is neither right nor wrong."""
        return outputs.new_full((len(y),), float("nan"))

    def counts(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return each sample's mean squared and mean absolute error, (batch, 2)."""
        import torch

        errors = outputs - y
        return torch.stack([errors.square().mean(1), errors.abs().mean(1)], 1)

    def scores(self, loss: float, accuracy: float, sums: Sequence[float], samples: int) -> Mapping[str, float]:
        """Return mse and mae."""
        return {"mse": sums[0] / samples, "mae": sums[1] / samples}

    def some_labels(self, outputs: Tensor) -> Tensor:
        """Return numbers of the outputs' shape."""
        import torch

        return torch.empty_like(outputs)


PLUGINS = {"regression": Regression}
