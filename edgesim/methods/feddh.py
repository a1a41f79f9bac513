"""FedDH: devices train as in FedAvg; the server weighs models by data size over a learned degree of non-IID data.

Source: "Efficient Federated Learning with Heterogeneous Data and Adaptive Dropout", arXiv 2507.10430, Algorithm 1 and
Table 5.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from annotated_types import Ge, Gt
from torch import Tensor

from edgesim.contracts import Arr, Bundle, Merged, Message, ServerSet, Setting, View
from edgesim.learning.dynamic_weights import Degrees, Rates, degree_slopes, gains, pseudo_gradient, stepped
from edgesim.learning.merge import finite, mean_of_holders
from edgesim.methods.fedjs import FedJS, noted, sizes_of
from edgesim.numbers import NonNegativeNumber, PositiveShare
from edgesim.rng import Key

# Floating-point operations of the server a parameter and model: a difference, its product with the gradient, the sum;
# the same two of a mean.
_GAIN_FLOPS, _MEAN_FLOPS = 3.0, 2.0


@dataclass(frozen=True, kw_only=True)
class FedDH(FedJS):
    """FedJS whose divergences are stretched by v and shifted by b, two numbers a device that descend the loss.

    After each round the gradient of the loss at the new model says which models should count less; `v` and `b` of the
    round's devices take a step, and their new weights hold from the next round. `gradient`: "pseudo" is the mean
    gradient of the round's own training, as the models show it; "server_set" is taken on `server_samples` training
    samples, equally many of each class, that the server has for itself. `lambda_v`, `lambda_b`: learning rates, in
    round t multiplied by `decay_v`^t and `decay_b`^t. `step_limit`: the largest relative change of a degree in a round;
    a degree below `d_min` counts as `d_min` and may only rise. The cap `q_max` is not differentiated. `reaggregate`:
    weigh the round's models once more after the step. The server's work on gradients and means is priced. The notes
    hold each device's `js`, `v`, `b`, degree `d` and weight `q` as the round's model has them.
    """

    gradient: Literal["pseudo", "server_set"] = "pseudo"
    server_samples: Annotated[int, Ge(1)] = 100
    lambda_v: NonNegativeNumber = 1e-4  # the four are Table 5's for LeNet on CIFAR-10
    decay_v: PositiveShare = 0.999
    lambda_b: NonNegativeNumber = 1e-4
    decay_b: PositiveShare = 0.99
    step_limit: Annotated[float, Gt(0)] = 0.5
    reaggregate: bool = False
    js_note: ClassVar[str] = "js"

    @property
    def server_set(self) -> ServerSet | None:
        """Samples of the server's own, where the gradient is taken on some."""
        return self._balanced_set() if self.gradient == "server_set" else None

    def init(self, setting: Setting, key: Key) -> Any:
        """Return FedJS's state with v = 1 and b = 0 for every device."""
        return {**super().init(setting, key), **start(setting)}

    def merge(self, state: Any, base: Bundle, got: Sequence[Message], view: View, tools: Any, key: Key) -> Merged:
        """Return the weighted mean of the arrived models and the state after a step of v and b.

        The old model and state stay if nothing arrived. Source: Algorithm 1, which aggregates before it updates.
        """
        usable, left_out = finite(got)
        if not usable:
            return Merged(state, None, notes=left_out)
        state = self._told(state, usable, view.setting, tools)
        devices, card = [message.device for message in usable], view.setting.card
        used = Degrees(self._js(state, usable, view.setting), state["v"][devices], state["b"][devices])
        q = self._weights(usable, used.value)
        model = mean_of_holders(base, usable, q.tolist(), card=card)
        gradient = self._gradient(base, model, usable, view, tools)
        slopes = degree_slopes(used.value, self.d_min, q, gains(gradient, base, model, usable, q, card))
        learned = stepped(used, slopes, self._rates(view.round), self.d_min, self.step_limit)
        if self.reaggregate:
            used, q = learned, self._weights(usable, learned.value)
            model = mean_of_holders(base, usable, q.tolist(), card=card)
        js = {self.js_note: used.js}
        notes = noted(usable, **js, v=used.v, b=used.b, d=used.value, q=q)
        flops = self._flops_a_parameter() * sum(card.part_params(message.task.part) for message in usable)
        return Merged(_with(state, devices, learned), model, flops, {**notes, **left_out})

    def _gradient(
        self, base: Bundle, model: Bundle, got: Sequence[Message], view: View, tools: Any
    ) -> Mapping[str, Tensor]:
        if self.gradient == "server_set":
            found: Mapping[str, Tensor] = tools.gradient(model)
            return found
        lr = view.setting.training.lr_at(view.round)
        return pseudo_gradient(base, got, sizes_of(got), lr, view.setting.card)

    def _rates(self, round_: int) -> Rates:
        return Rates(self.lambda_v * self.decay_v**round_, self.lambda_b * self.decay_b**round_)

    def _flops_a_parameter(self) -> float:
        """Return the server's work beside the first mean and the gradient on its own samples."""
        return _GAIN_FLOPS + _MEAN_FLOPS * ((self.gradient == "pseudo") + self.reaggregate)

    def _balanced_set(self) -> ServerSet:
        return ServerSet(self.server_samples, "train", "balanced", reserved=True, option="server_samples")


def start(setting: Setting) -> dict[str, Arr]:
    """Return v = 1 and b = 0 for every device, each of shape (devices,)."""
    return {"v": np.ones(len(setting.samples)), "b": np.zeros(len(setting.samples))}


def _with(state: Any, devices: Sequence[int], learned: Degrees) -> Any:
    """Return the state in which these devices have what was learned."""
    v, b = state["v"].copy(), state["b"].copy()
    v[devices], b[devices] = learned.v, learned.b
    return {**state, "v": v, "b": b}


PARTS = {"feddh": FedDH}
