"""FedDH: devices train as in FedAvg; the server weighs models by data size over a learned degree of non-IID data.

Source: "Efficient Federated Learning with Heterogeneous Data and Adaptive Dropout", arXiv 2507.10430, Algorithm 1 and
Table 5.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from annotated_types import Gt
from torch import Tensor

from edgesim.core.arrays import Arr
from edgesim.core.limits import Count, NonNegativeFactor, PositiveShare
from edgesim.core.method import Aggregate, ServerContext, ServerSet
from edgesim.core.rng import Key
from edgesim.core.update import ModelState, Update
from edgesim.core.view import Setting
from edgesim.methods.fedjs import FedJS, noted, sizes_of
from edgesim.methods.weighting.dynamic import Degrees, Rates, degree_slopes, gains, pseudo_gradient, stepped

# FLOPs of the server per parameter and model: a difference, its product with the gradient and the sum for the gains;
# a product and the sum for a mean.
_GAIN_FLOPS, _MEAN_FLOPS = 3.0, 2.0


@dataclass(frozen=True, kw_only=True)
class FedDH(FedJS):
    """For unequal labels: FedJS whose weights of devices are learned in training.

    The divergence of each device is stretched by v and shifted by b, two numbers that descend the loss. After each
    round the gradient of the loss at the new model says which models should count less. `v` and `b` of the round's
    devices take a step, and their new weights hold from the next round. `gradient`: "pseudo" is the mean gradient of
    the round's own training, derived from the models; "server_set" is taken on `server_samples` training samples of the
    server's own, equally many of each class. `lambda_v`, `lambda_b`: learning rates, in round t multiplied by
    `decay_v`^t and `decay_b`^t. `step_limit`: the largest relative change of a degree in a round. A degree below
    `d_min` counts as `d_min` and may only rise. The cap `q_max` is not differentiated. `reaggregate`: weigh the round's
    models once more after the step. The server's work on gradients and means is priced. The metrics hold each device's
    `js`, `v`, `b`, degree `d` and weight `q` for the round's model.

    `log_base` scales the divergence against `b`; the paper does not specify the base for its learning rates.

    Family: weights of devices. Formula: `w <- sum_k q_k w_k, q_k ~ n_k / (v_k js_k + b_k), where v_k and b_k descend
    the loss`.
    """

    gradient: Literal["pseudo", "server_set"] = "pseudo"
    """In the paper the gradient comes "from the sub network of each device", without raw data on the server. This is
    read as the mean move of the round over learning rate and steps. `"server_set"` takes the gradient on samples, which
    FedDHE assumes anyway. It would be exact to send the new model out once more and ask for gradients. But a merge ends
    its round, and the server would have to keep all models until the next round, in which some of their devices are
    gone. So this is not available.
    """
    server_samples: Count = 100
    """The paper does not specify this. Ten of each of ten classes, taken out of the training set before it is divided;
    a multiple of the number of classes. Used with `gradient = "server_set"`.
    """
    lambda_v: NonNegativeFactor = 1e-4  # from Table 5 for LeNet on CIFAR-10, as are the next three
    """Table 5, LeNet on CIFAR-10, as are the next three. Other networks and data sets have 0.0001 to 0.1. The table's
    lambda_gamma is read as this one.
    """
    decay_v: PositiveShare = 0.999
    """Table 5 has 0.9 to 0.9999. The paper calls it a decay without its period; it is taken per round."""
    lambda_b: NonNegativeFactor = 1e-4
    """Table 5 has 0.0001 to 0.1."""
    decay_b: PositiveShare = 0.99
    """Table 5 has 0.99 and 0.999."""
    step_limit: Annotated[float, Gt(0)] = 0.5
    """The paper does not specify a limit. With a rate of 0.1 one step can be longer than the degree itself, so it is
    limited to half of the degree. `inf` takes the formula literally.
    """
    reaggregate: bool = False
    """Algorithm 1 aggregates first and then updates the weights. The new weights are read as for the next round, though
    it has other devices. `true` aggregates the round's own models again.
    """
    js_note: ClassVar[str] = "js"

    @property
    def server_set(self) -> ServerSet | None:
        """Samples of the server's own, if the gradient is taken on them."""
        return self._balanced_set() if self.gradient == "server_set" else None

    def init(self, setting: Setting, key: Key) -> Any:
        """Return FedJS's state with v = 1 and b = 0 for every device."""
        return {**super().init(setting, key), **start(setting)}

    def combine(
        self, state: Any, global_model: ModelState, updates: Sequence[Update], server: ServerContext, key: Key
    ) -> Aggregate:
        """Return the weighted mean of the arrived models and the state after a step of v and b.

        Source: Algorithm 1, which aggregates before it updates.
        """
        state = self._told(state, updates, server)
        devices, cost_profile = [update.device for update in updates], server.setting.cost_profile
        used = Degrees(self._js(state, updates, server.setting), state["v"][devices], state["b"][devices])
        q = self._weights(updates, used.value)
        model = server.mean(global_model, updates, q.tolist())
        gradient: Mapping[str, Tensor]
        if self.gradient == "server_set":
            gradient = server.tools.gradient(model)
        else:
            lr = server.setting.training.lr_at(server.round)
            gradient = pseudo_gradient(global_model, updates, sizes_of(updates), lr, cost_profile)
        slopes = degree_slopes(
            used.value, self.d_min, q, gains(gradient, global_model, model, updates, q, cost_profile)
        )
        learned = stepped(used, slopes, self._rates(server.round), self.d_min, self.step_limit)
        if self.reaggregate:
            used, q = learned, self._weights(updates, learned.value)
            model = server.mean(global_model, updates, q.tolist())
        js = {self.js_note: used.js}
        metrics = noted(updates, **js, v=used.v, b=used.b, d=used.value, q=q)
        # per parameter, in addition to the first mean and the gradient on the server's own samples
        flops = _GAIN_FLOPS + _MEAN_FLOPS * ((self.gradient == "pseudo") + self.reaggregate)
        flops *= sum(cost_profile.submodel_params(update.task.submodel) for update in updates)
        v, b = state["v"].copy(), state["b"].copy()
        v[devices], b[devices] = learned.v, learned.b
        return Aggregate({**state, "v": v, "b": b}, model, flops, metrics)

    def _rates(self, round_: int) -> Rates:
        return Rates(self.lambda_v * self.decay_v**round_, self.lambda_b * self.decay_b**round_)

    def _balanced_set(self) -> ServerSet:
        return ServerSet(self.server_samples, "train", "balanced", reserved=True, option="server_samples")


def start(setting: Setting) -> dict[str, Arr]:
    """Return v = 1 and b = 0 for every device, each of shape (devices,)."""
    return {"v": np.ones(len(setting.samples)), "b": np.zeros(len(setting.samples))}


PLUGINS = {"feddh": FedDH}
