"""FedAvgM: the server moves on along earlier moves. Source: Hsu, Qi and Brown (2019), server momentum."""

from dataclasses import dataclass

from edgesim.core.limits import Share
from edgesim.methods.fedavg import FedAvg


@dataclass(frozen=True, kw_only=True)
class FedAvgM(FedAvg):
    """FedAvg whose server steps along v <- momentum v + (x - mean of the models), x <- x - v."""

    momentum: Share = 0.9

    def init(self, setting, key):
        return {**super().init(setting, key), "velocity": {}}

    def combine(self, state, model, updates, server, key):
        step = super().combine(state, model, updates, server, key)
        x, mean, old = model["params"], step.model["params"], state["velocity"]
        v = {n: x[n] - mean[n] + (self.momentum * old[n] if old else 0) for n in x}
        return step._replace(state={"velocity": v}, model={**step.model, "params": {n: x[n] - v[n] for n in x}})
