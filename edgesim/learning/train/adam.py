"""Steps of Adam and AdamW as in torch.optim, on tensors that are passed anew in every step."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.optim.adam import adam

from edgesim.core.local_sgd import LocalSGD


class AdamMoments:
    """Mean of gradients and mean of their squares, both of one shape, and the number of steps, a scalar.

    In a stack, the jobs that still take steps are the first rows. `first` returns their moments.
    """

    def __init__(self, like: Tensor) -> None:
        self.mean, self.square = torch.zeros_like(like), torch.zeros_like(like)
        self.steps = torch.zeros(())

    @classmethod
    def of(cls, mean: Tensor, square: Tensor, steps: Tensor) -> AdamMoments:
        """Return moments that share the memory of these tensors."""
        found = object.__new__(cls)
        found.mean, found.square, found.steps = mean, square, steps
        return found

    def first(self, rows: int) -> AdamMoments:
        """Return the moments of the first rows. They share memory and step count with these moments."""
        return self.of(self.mean[:rows], self.square[:rows], self.steps)


def adam_step(trained: Sequence[Tensor], grads: Sequence[Tensor], moments: Sequence[AdamMoments], of: LocalSGD) -> None:
    """Take one step in place on weights and moments."""
    adam(
        list(trained), list(grads), [each.mean for each in moments], [each.square for each in moments], [],
        [each.steps for each in moments], decoupled_weight_decay=of.optimizer == "adamw", amsgrad=False,
        beta1=of.beta1, beta2=of.beta2, lr=of.lr, weight_decay=of.weight_decay, eps=of.eps, maximize=False,
    )  # fmt: skip
