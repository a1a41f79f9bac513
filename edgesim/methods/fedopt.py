"""FedOpt: FedAvg whose server uses the mean move of the devices as a gradient and steps by an optimiser.

Source: Reddi et al., "Adaptive Federated Optimization" (ICLR 2021), algorithms 1 and 2; FedAvgM: Hsu, Qi and Brown,
"Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification" (2019).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from edgesim.core.method import Aggregate, Method, ServerContext
from edgesim.core.rng import Key
from edgesim.core.update import ModelState, Update
from edgesim.core.view import Setting
from edgesim.learning.server_optimizers.adaptive import Adagrad, Adam, Yogi
from edgesim.learning.server_optimizers.base import ServerOptimizer, step_flops, stepped
from edgesim.learning.server_optimizers.sgd import Sgd
from edgesim.methods.fedavg import FedAvg


@dataclass(frozen=True, kw_only=True)
class Stepping(Method, ServerOptimizer):
    """Base class of methods with a server optimiser of their own. Its hyper-parameters are keys of the method.

    `server_optimizer` of the scenario does the same for other methods.
    """

    def init(self, setting: Setting, key: Key) -> Any:
        """Return a state without moments."""
        return {**super().init(setting, key), "moments": {}}

    def combine(
        self, state: Any, global_model: ModelState, updates: Sequence[Update], server: ServerContext, key: Key
    ) -> Aggregate:
        """Return the model after an optimiser step towards the mean."""
        mean = super().combine(state, global_model, updates, server, key)
        assert mean.model is not None  # of at least one update
        moments, model = stepped(self, state["moments"], global_model, mean.model)
        return Aggregate({**state, "moments": moments}, model)

    def merge_flops(self, updates: int, setting: Setting) -> float:
        """Return the FLOPs of the optimiser's step."""
        return step_flops(self, setting)


@dataclass(frozen=True, kw_only=True)
class FedOpt(Stepping, FedAvg):
    """Base class of FedAvg with a server optimiser."""


@dataclass(frozen=True, kw_only=True)
class FedAvgM(FedOpt, Sgd):
    """FedAvg whose server steps with momentum.

    Family: server optimiser. Formula: `v <- momentum v + D; w <- w + lr v, where D is the mean move of FedAvg`. Paper:
    arXiv 1909.06335.
    """


@dataclass(frozen=True, kw_only=True)
class FedAdagrad(FedOpt, Adagrad):
    """FedAvg whose server steps by Adagrad.

    Family: server optimiser. Formula: `v <- v + D^2; w <- w + lr D / (sqrt(v) + tau), where D is the mean move of
    FedAvg`. Paper: arXiv 2003.00295.
    """


@dataclass(frozen=True, kw_only=True)
class FedAdam(FedOpt, Adam):
    """FedAvg whose server steps by Adam.

    Family: server optimiser. Formula: `m <- b1 m + (1 - b1) D; v <- b2 v + (1 - b2) D^2; w <- w + lr m / (sqrt(v) +
    tau)`. Paper: arXiv 2003.00295.
    """


@dataclass(frozen=True, kw_only=True)
class FedYogi(FedOpt, Yogi):
    """FedAvg whose server steps by Yogi.

    Family: server optimiser. Formula: `m <- b1 m + (1 - b1) D; v <- v - (1 - b2) D^2 sign(v - D^2); w <- w + lr m /
    (sqrt(v) + tau)`. Paper: arXiv 2003.00295.
    """


PLUGINS: dict[str, type[Method]] = {
    "fedavgm": FedAvgM,
    "fedadagrad": FedAdagrad,
    "fedadam": FedAdam,
    "fedyogi": FedYogi,
}
