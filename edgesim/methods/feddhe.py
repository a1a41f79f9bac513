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

from edgesim.contracts import Arr, Bundle, Message, Needs, Order, Plan, ServerSet, Setting, Task, View
from edgesim.errors import ConfigError
from edgesim.methods.feddh import FedDH, start
from edgesim.numbers import PositiveNumber
from edgesim.rng import Key

_LEAST_SQUARE, _LARGEST_EXPONENT = 1e-6, 50.0  # a class without any gradient must not take all

Form = Literal["inverse", "inverse_raw", "literal"]


@dataclass(frozen=True, kw_only=True)
class FedDHE(FedDH):
    """FedDH with estimated labels: the better a device's first model fits a class, the more it seems to have of it.

    The server has `server_samples` training samples for itself, equally many of each class. g_i is the square of the
    gradient of a device's first model on class i, `scope`: with respect to the weights and bias of output i, or "all"
    parameters. The estimate is the softmax over classes of `beta` / g_i, g_i divided by the mean of all in the
    `form` "inverse" and as it is in "inverse_raw"; of `beta` g_i in "literal". A device that never sent a model, or
    one whose gradients are not finite, counts as having equally many of each class. The divergences follow as new
    devices come; they are noted as `estimated_js`.
    """

    form: Form = "inverse"
    beta: PositiveNumber = 1.0
    scope: Literal["output", "all"] = "output"
    js_note: ClassVar[str] = "estimated_js"
    needs: ClassVar[Needs] = Needs(feedback=True)  # timing alone does not know how long the server works

    @property
    def server_set(self) -> ServerSet:
        """Samples that devices' models are looked at with."""
        return self._balanced_set()

    def init(self, setting: Setting, key: Key) -> Any:
        """Return a server that has seen nobody, with v = 1 and b = 0 for every device."""
        setting.cost.check(widths=0)
        return {"shares": {}, **start(setting)}

    def plan(self, state: Any, view: View, key: Key) -> Plan:
        """Ask the selected devices to train the whole model."""
        task = Task(stretches=(view.setting.training.stretch(view.round),))
        return Plan(tuple(Order(device, task) for device in view.choose(key).tolist()))

    def _told(self, state: Any, got: Sequence[Message], setting: Setting, tools: Any) -> Any:
        """Return the state with estimates for devices that are new."""
        new = [message for message in got if message.device not in state["shares"]]
        squares = {message.device: self._squares(message.body, setting, tools) for message in new}
        found = {device: estimate(g, self.form, self.beta) for device, g in squares.items() if np.isfinite(g).all()}
        return {**state, "shares": {**state["shares"], **found}}

    def _js(self, state: Any, got: Sequence[Message], setting: Setting) -> Arr:
        known, classes = state["shares"], setting.card.classes
        even = np.full(classes, 1 / classes)
        surplus = sum((setting.samples[device] * (shares - even) for device, shares in known.items()), 0 * even)
        mean = even + surplus / max(1, setting.samples.sum())
        return self._divergence(np.stack([known.get(message.device, even) for message in got]), mean)

    def _squares(self, model: Bundle, setting: Setting, tools: Any) -> Arr:
        """Return g, shape (classes,): the squared gradient of a model on the server's samples of each class."""
        output = setting.card.layer_names[-1]
        labels, squares = tools.labels, np.zeros(setting.card.classes)
        for i in range(len(squares)):
            places = (labels == i).nonzero().flatten()
            if self.scope == "all":
                parts = list(tools.gradient(model, places).values())
            else:
                parts = [_row(g, i, output, setting) for g in tools.gradient(model, places, {output}).values()]
            squares[i] = sum(float(part.square().sum()) for part in parts)
        return squares


def _row(gradient: Tensor, i: int, layer: str, setting: Setting) -> Tensor:
    """Return the part of the output layer's gradient that belongs to output i."""
    if len(gradient) != setting.card.classes:
        raise ConfigError(
            f"method.scope: 'output' needs a last layer with an output for each of {setting.card.classes} classes, "
            f"{layer} of {setting.card.model} has {len(gradient)}; allowed is 'all'"
        )
    return gradient[i]


def estimate(squares: Arr, form: Form = "inverse", beta: float = 1.0) -> Arr:
    """Return the estimated share of each class from squared gradients on it, both of shape (classes,).

    Source: formula 8 is "literal"; `FedDHE` says what the others are.
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


PARTS = {"feddhe": FedDHE}
