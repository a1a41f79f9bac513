"""FedDHE: FedDH where labels stay on the devices; the server estimates their distribution from gradients.

Source: "Efficient Federated Learning with Heterogeneous Data and Adaptive Dropout", arXiv 2507.10430, formula 8; the
technique is that of Yang et al., "Federated Learning with Class Imbalance Reduction" (2021).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from torch import Tensor

from edgesim.core.arrays import Arr
from edgesim.core.errors import ConfigError
from edgesim.core.limits import PositiveFactor
from edgesim.core.method import Method, Needs, ServerContext, ServerSet
from edgesim.core.rng import Key
from edgesim.core.task import Plan
from edgesim.core.update import ModelState, Update
from edgesim.core.view import Setting, View
from edgesim.methods.feddh import FedDH, start

_LEAST_SQUARE, _LARGEST_EXPONENT = 1e-6, 50.0  # so that a class without any gradient does not take all

Form = Literal["inverse", "inverse_raw", "literal"]


@dataclass(frozen=True, kw_only=True)
class FedDHE(FedDH):
    """FedDH for private labels: the server estimates the labels of a device from the fit of its first model.

    The better the model fits a class, the more samples of the class the device seems to have. The server has
    `server_samples` training samples of its own, equally many of each class. g_i is the square of the gradient of a
    device's first model on class i, with respect to its `scope`: the weights and bias of output i, or "all" parameters.
    The estimate is the softmax over classes of `beta` / g_i, with g_i divided by the mean of all in the `form`
    "inverse" and unchanged in "inverse_raw", or of `beta` g_i in "literal". A device that never sent a model, or whose
    gradients are not finite, counts as having equally many of each class. The divergences follow as new devices come;
    their metric is `estimated_js`.

    In the paper labels are estimated once at the beginning, when only a few devices have sent models. Here a device is
    estimated from the first model that it sends, and until then counts as having equally many of each class.

    `server_samples` are always needed, as the estimates use them; the paper does not specify their number.

    Family: weights of devices. Formula: `w <- sum_k q_k w_k, q_k as in FedDH with labels estimated from softmax_i(beta
    / g_i)`.
    """

    form: Form = "inverse"
    """As printed (`"literal"`), formula 8 gives a class more weight, the larger its gradient. The cited technique goes
    the other way, because a device's model fits its own classes well. Real models agree with it, see the test.
    Gradients are divided by their mean, because they shrink in training; `"inverse_raw"` leaves the division out.
    """
    beta: PositiveFactor = 1.0
    """Named in the text, absent from the formula, without a value."""
    scope: Literal["output", "all"] = "output"
    """The paper does not specify the parameters. The parameters of a class's own output need no backward pass through
    the network; `"all"` takes all.
    """
    js_note: ClassVar[str] = "estimated_js"
    needs: ClassVar[Needs] = Needs(feedback=True)  # timing alone does not know how long the server works

    @property
    def server_set(self) -> ServerSet:
        """Samples for the gradients of devices' models."""
        return self._balanced_set()

    def init(self, setting: Setting, key: Key) -> Any:
        """Return a server without estimates, with v = 1 and b = 0 for every device."""
        return {**Method.init(self, setting, key), "shares": {}, **start(setting)}

    def plan(self, state: Any, view: View, key: Key) -> Plan:
        """Ask the selected devices to train the whole model. No device sends labels."""
        return Plan.of_one_task(view.choose(key).tolist(), self.task(view))

    def _told(self, state: Any, updates: Sequence[Update], server: ServerContext) -> Any:
        """Return the state with estimates for new devices."""
        new = [message for message in updates if message.device not in state["shares"]]
        squares = {message.device: self._squares(message.body, server) for message in new}
        found = {device: estimate(g, self.form, self.beta) for device, g in squares.items() if np.isfinite(g).all()}
        return {**state, "shares": {**state["shares"], **found}}

    def _js(self, state: Any, updates: Sequence[Update], setting: Setting) -> Arr:
        known, classes = state["shares"], setting.cost_profile.classes
        even = np.full(classes, 1 / classes)
        surplus = sum((setting.samples[device] * (shares - even) for device, shares in known.items()), 0 * even)
        mean = even + surplus / max(1, setting.samples.sum())
        return self._divergence(np.stack([known.get(message.device, even) for message in updates]), mean)

    def _squares(self, model: ModelState, server: ServerContext) -> Arr:
        """Return g, shape (classes,): the squared gradient of a model on the server's samples of each class."""
        setting, tools = server.setting, server.tools
        output = setting.cost_profile.layer_names[-1]
        labels, squares = tools.labels, np.zeros(setting.cost_profile.classes)
        for i in range(len(squares)):
            places = (labels == i).nonzero().flatten()
            if self.scope == "all":
                gradients = list(tools.gradient(model, places).values())
            else:
                gradients = [_row(g, i, output, setting) for g in tools.gradient(model, places, {output}).values()]
            squares[i] = sum(float(gradient.square().sum()) for gradient in gradients)
        return squares


def _row(gradient: Tensor, i: int, layer: str, setting: Setting) -> Tensor:
    """Return the part of the output layer's gradient for output i. Raises ConfigError if classes have no outputs."""
    if len(gradient) != setting.cost_profile.classes:
        raise ConfigError(
            f"method.scope: 'output' needs a last layer with an output for each of "
            f"{setting.cost_profile.classes} classes, "
            f"{layer} of {setting.cost_profile.model} has {len(gradient)}; allowed is 'all'"
        )
    return gradient[i]


def estimate(squares: Arr, form: Form = "inverse", beta: float = 1.0) -> Arr:
    """Return the estimated share of each class from squared gradients on it, both of shape (classes,).

    Source: formula 8 is "literal"; `FedDHE` describes the other forms.
    """
    if form == "literal":
        exponents = beta * squares
    else:
        mean = squares.mean() if form == "inverse" else 1.0
        relative = squares / mean if mean > 0 else np.ones_like(squares)
        exponents = np.minimum(beta / np.maximum(relative, _LEAST_SQUARE), _LARGEST_EXPONENT)
    importance = np.exp(exponents - exponents.max())
    shares: Arr = importance / importance.sum()
    return shares


PLUGINS = {"feddhe": FedDHE}
