"""Adaptive server optimisers: each parameter's step is divided by the root of a mean of its squared moves.

Source: Reddi et al., "Adaptive Federated Optimization" (ICLR 2021), algorithm 2.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from annotated_types import Ge, Lt

from edgesim.core.limits import PositiveFactor
from edgesim.learning.server_optimizers.base import ServerOptimizer

if TYPE_CHECKING:
    from torch import Tensor

_STEP_FLOPS = 7.0  # the move, its square; the root, tau, the quotient, the learning rate, the sum


@dataclass(frozen=True, kw_only=True)
class Adaptive(ServerOptimizer):
    """Base class: x <- x + lr m / (sqrt(v) + tau) with m <- beta1 m + (1 - beta1) move, and v a mean of squared moves.

    m begins at 0 and v at tau^2. As in algorithm 2, neither has a bias correction.
    Source: Reddi et al., "Adaptive Federated Optimization" (ICLR 2021), algorithm 2.
    """

    lr: PositiveFactor = 0.1  # learning rate of the server
    """Reddi et al. tune it for each task over powers of ten. Flower's implementation has 0.1."""
    beta1: Annotated[float, Ge(0), Lt(1)] = 0.9  # decay of the first moment
    """Reddi et al. (section 5) have 0.9."""
    tau: PositiveFactor = 1e-3  # adaptivity: a smaller value gives a more adaptive step
    """Reddi et al. (section 5) find that 10^-3 is good throughout."""
    second_flops: ClassVar[float]  # FLOPs of the second moment, without the square

    @property
    def flops_per_parameter(self) -> float:
        """FLOPs per parameter: 3 for the first moment if there is one, those of the second one, and 7 for the step."""
        return _STEP_FLOPS + 3.0 * (self.beta1 > 0) + self.second_flops

    @abstractmethod
    def second(self, before: Tensor, square: Tensor) -> Tensor:
        """Return the second moment after a move, from its old value and the square of the move."""

    def step(self, kept: Mapping[str, Tensor], move: Tensor) -> tuple[Mapping[str, Tensor], Tensor]:
        """Return the new moments and the step."""
        square = move * move
        v = self.second(kept["second"] if kept else square.new_full(square.shape, self.tau**2), square)
        m = (1.0 - self.beta1) * move
        if kept and self.beta1:
            m = self.beta1 * kept["first"] + m
        moments = {"first": m, "second": v} if self.beta1 else {"second": v}
        return moments, self.lr * m / (v.sqrt() + self.tau)


@dataclass(frozen=True, kw_only=True)
class Adagrad(Adaptive):
    """v is the sum of all squared moves.

    Source: Reddi et al., "Adaptive Federated Optimization" (ICLR 2021), algorithm 2, line of FedAdagrad.
    """

    beta1: Annotated[float, Ge(0), Lt(1)] = 0.0  # decay of the first moment
    """Algorithm 2 has it for all three. Flower's FedAdagrad has 0, because Adagrad has no first moment."""
    second_flops: ClassVar[float] = 1.0

    def second(self, before: Tensor, square: Tensor) -> Tensor:
        """Return v + move^2."""
        return before + square


@dataclass(frozen=True, kw_only=True)
class Adam(Adaptive):
    """v moves towards each squared move by a share 1 - beta2 of the distance.

    Source: Reddi et al., "Adaptive Federated Optimization" (ICLR 2021), algorithm 2, line of FedAdam.
    """

    beta2: Annotated[float, Ge(0), Lt(1)] = 0.99  # decay of the second moment
    """Reddi et al. (section 5) have 0.99."""
    second_flops: ClassVar[float] = 3.0

    def second(self, before: Tensor, square: Tensor) -> Tensor:
        """Return beta2 v + (1 - beta2) move^2."""
        return self.beta2 * before + (1.0 - self.beta2) * square


@dataclass(frozen=True, kw_only=True)
class Yogi(Adaptive):
    """v moves towards each squared move by a share 1 - beta2 of the square, whatever the distance.

    Source: Reddi et al., "Adaptive Federated Optimization" (ICLR 2021), algorithm 2, line of FedYogi.
    """

    beta2: Annotated[float, Ge(0), Lt(1)] = 0.99  # 1 minus the share of a squared move by which v moves
    """Reddi et al. (section 5) have 0.99."""
    second_flops: ClassVar[float] = 4.0

    def second(self, before: Tensor, square: Tensor) -> Tensor:
        """Return v - (1 - beta2) move^2 sign(v - move^2)."""
        return before - (1.0 - self.beta2) * square * (before - square).sign()


PLUGINS = {"adagrad": Adagrad, "adam": Adam, "yogi": Yogi}
