"""FedAT: one model a tier of like speed, and a global model in which slow tiers count as much as fast ones are quick.

Source: Chai et al., "FedAT: A High-Performance and Communication-Efficient Federated Learning System with Asynchronous
Tiers" (SC 2021).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from edgesim.core.limits import NonNegativeFactor
from edgesim.core.method import Aggregate, LocalRule, Method, Needs, ServerContext
from edgesim.core.rng import Key
from edgesim.core.task import Task
from edgesim.core.update import ModelState, Update
from edgesim.core.view import Setting, View
from edgesim.learning.train.rules import proximal_sgd
from edgesim.methods.fedprox import proximal_passes


@dataclass(frozen=True, kw_only=True)
class FedAT(Method):
    """Asynchronous: the server keeps one model a tier, and gives the fastest tier the weight of the slowest.

    A round of tier m makes its model, the mean of its devices' models by data size. The global model is the mean of the
    M tier models with weights T_(M+1-m) / T: T_m is the number of updates of tier m, and T their sum. Devices start
    from the global model and train with the proximal term of `fedprox`. Tiers without an update yet are left out, and m
    counts the others (ours). With them, the fastest tier would have the weight 0 until the slowest has an update. The
    mean of tiers costs 2 FLOPs a parameter and tier. The paper's compression is not part of the method, set `encoding`.
    With one tier it is FedProx.

    Family: asynchronous. Formula: `w <- sum_m T_(M+1-m) / T w_m, w_m the mean of tier m`. Paper: arXiv 2010.05958.
    """

    mu: NonNegativeFactor = 0.01  # as in `fedprox`
    """The value of Chai et al. was not confirmed. 0.01 is the default of `fedprox`. At 0 devices take plain steps."""
    needs: ClassVar[Needs] = Needs(protocols=frozenset({"tiers"}))

    def init(self, setting: Setting, key: Key) -> Any:
        """Return a state without models of tiers."""
        return {**super().init(setting, key), "models": {}, "updates": {}}

    def task(self, view: View) -> Task:
        """Return the training of the whole model, with the work of the proximal term."""
        return replace(super().task(view), passes=proximal_passes(self.mu))

    def local(self, task: Task) -> LocalRule:
        """Return SGD on the cross-entropy, with the proximal term unless `mu` is 0."""
        return proximal_sgd(self.mu)

    def combine(
        self, state: Any, global_model: ModelState, updates: Sequence[Update], server: ServerContext, key: Key
    ) -> Aggregate:
        """Replace the model of the tier that the updates come from, and weigh all tiers anew."""
        assert server.setting.tier is not None  # by the protocol
        tier = int(server.setting.tier[updates[0].device])
        of_tier = server.mean(global_model, updates, self.update_weights(updates, server.setting))
        models = {**state["models"], str(tier): of_tier}
        counts = {**state["updates"], str(tier): state["updates"].get(str(tier), 0) + 1}
        known = sorted(models, key=int)
        of_tiers = [updates[0]._replace(body=models[m]) for m in known]
        mean = server.mean(global_model, of_tiers, [float(counts[m]) for m in reversed(known)])
        return Aggregate({**state, "models": models, "updates": counts}, mean, metrics={"tier": float(tier)})

    def merge_flops(self, updates: int, setting: Setting) -> float:
        """Return the FLOPs of the mean of all tiers' models, 0 if there is only one."""
        tiers = 1 if setting.tier is None else int(setting.tier.max()) + 1
        return 2.0 * tiers * setting.cost_profile.params if tiers > 1 else 0.0


PLUGINS = {"fedat": FedAT}
