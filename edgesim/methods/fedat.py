"""FedAT: one model a tier of like speed, and a global model in which slow tiers count as much as fast ones are quick.

Source: Chai et al., "FedAT: A High-Performance and Communication-Efficient Federated Learning System with Asynchronous
Tiers" (SC 2021).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from edgesim.core.limits import NonNegativeFactor
from edgesim.core.method import Aggregate, Needs, ServerContext
from edgesim.core.rng import Key
from edgesim.core.update import ModelState, Update
from edgesim.core.view import Setting
from edgesim.methods.fedprox import FedProx


@dataclass(frozen=True, kw_only=True)
class FedAT(FedProx):
    """Asynchronous: the server keeps one model a tier, and gives the fastest tier the weight of the slowest.

    A round of tier m makes its model, the mean of its devices' models by data size. The global model is the mean of the
    M tier models with weights T_(M+1-m) / T: T_m is the number of updates of tier m, and T their sum. Devices start
    from the global model and train with the proximal term of `fedprox`. A tier without an update yet has the first
    model (ours). So with two tiers the global model stays the first one until the slow tier has its first update. The
    mean of tiers costs 2 FLOPs a parameter and tier. The paper's compression is not part of the method, set `encoding`.
    With one tier it is FedProx.

    Family: asynchronous. Formula: `w <- sum_m T_(M+1-m) / T w_m, w_m the mean of tier m`. Paper: arXiv 2010.05958.
    """

    mu: NonNegativeFactor = 0.01  # that of `fedprox`
    """The value of Chai et al. was not confirmed. 0.01 is the default of `fedprox`. At 0 devices take plain steps."""
    needs: ClassVar[Needs] = Needs(protocols=frozenset({"tiers"}))

    def init(self, setting: Setting, key: Key) -> Any:
        """Return a state without models of tiers."""
        return {**super().init(setting, key), "models": [], "updates": []}

    def combine(
        self, state: Any, global_model: ModelState, updates: Sequence[Update], server: ServerContext, key: Key
    ) -> Aggregate:
        """Replace the model of the tier that the updates come from, and weigh all tiers anew."""
        assert server.setting.tier is not None  # by the protocol
        tier, tiers = int(server.setting.tier[updates[0].device]), tiers_of(server.setting)
        models = list(state["models"] or [global_model] * tiers)
        counts = list(state["updates"] or [0] * tiers)
        models[tier] = super().combine({}, global_model, updates, server, key).model
        counts[tier] += 1
        of_tiers = [updates[0]._replace(body=model) for model in models]
        mean = server.mean(global_model, of_tiers, [float(count) for count in reversed(counts)])
        return Aggregate({**state, "models": models, "updates": counts}, mean, metrics={"tier": float(tier)})

    def merge_flops(self, updates: int, setting: Setting) -> float:
        """Return the FLOPs of the mean of the tiers' models, 0 if there is only one."""
        tiers = tiers_of(setting)
        return 2.0 * tiers * setting.cost_profile.params if tiers > 1 else 0.0


def tiers_of(setting: Setting) -> int:
    """Return the number of tiers of a setting."""
    return 1 if setting.tier is None else int(setting.tier.max()) + 1


PLUGINS = {"fedat": FedAT}
