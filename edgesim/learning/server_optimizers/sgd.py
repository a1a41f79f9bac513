"""Gradient descent of the server, with momentum if wanted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from annotated_types import Ge, Lt

from edgesim.core.limits import PositiveFactor
from edgesim.learning.server_optimizers.base import ServerOptimizer

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Sgd(ServerOptimizer):
    """x <- x + lr v with v <- momentum v + move. With lr = 1 and no momentum it is the model of the method itself.

    With `nesterov` the step is lr (move + momentum v), as in torch.optim.SGD. Without momentum it changes nothing.
    Source: Hsu, Qi and Brown, "Measuring the Effects of Non-Identical Data Distribution for Federated Visual
    Classification" (2019), section 4.2.
    """

    lr: PositiveFactor = 1.0  # learning rate of the server
    """Hsu et al. have no learning rate of the server, which is 1."""
    momentum: Annotated[float, Ge(0), Lt(1)] = 0.9  # of the server. 0: none
    """Hsu et al. (section 4.2) report 0.9."""
    nesterov: bool = False  # Nesterov momentum: the step looks one momentum ahead
    """Hsu et al. do not use it."""

    @property
    def is_identity(self) -> bool:
        """True if the server uses the method's model unchanged."""
        return self.lr == 1.0 and not self.momentum

    @property
    def flops_per_parameter(self) -> float:
        """FLOPs per parameter: the move 1, momentum 2, looking ahead 2, the step 2."""
        return 3.0 + 2.0 * (self.momentum > 0) * (1 + self.nesterov)

    def step(self, kept: Mapping[str, Tensor], move: Tensor) -> tuple[Mapping[str, Tensor], Tensor]:
        """Return the new velocity, if there is momentum, and the step along it."""
        if not self.momentum:
            return {}, self.lr * move
        velocity = self.momentum * kept["velocity"] + move if kept else move
        along = move + self.momentum * velocity if self.nesterov else velocity
        return {"velocity": velocity}, self.lr * along


PLUGINS = {"sgd": Sgd}
