"""FedJS: devices train as in FedAvg; the server weighs models by data size over how far a device's labels are from all.

Source: "Efficient Federated Learning with Heterogeneous Data and Adaptive Dropout", arXiv 2507.10430: FedDH without its
learned weights.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from edgesim.contracts import Arr, Bundle, LocalRule, Merged, Message, Needs, Order, Payload, Plan, Setting, Task, View
from edgesim.errors import ConfigError
from edgesim.learning.dynamic_weights import js_divergence, shares_of, weights_of
from edgesim.learning.merge import finite, mean_of_holders
from edgesim.learning.rules import PLAIN_SGD
from edgesim.numbers import PositiveNumber, PositiveShare
from edgesim.rng import Key

_LOG_BASES = {"e": math.e, "2": 2.0}
_COUNT_BYTES = 4  # of one label


@dataclass(frozen=True, kw_only=True)
class FedJS:
    """Average the local models by data size over Jensen-Shannon divergence.

    The divergence is that between a device's labels and those of all devices together, with logarithms to `log_base`;
    a smaller one than `d_min` counts as `d_min`. `q_max`: no weight is larger, unless so few models come that they
    cannot all be below it. A device's label counts travel with its first model, 4 bytes a class. The notes hold the
    divergence `js` and the weight `q` of every device.
    """

    log_base: Literal["e", "2"] = "e"
    d_min: PositiveNumber = 0.01
    q_max: PositiveShare | None = None
    # plan() reads who has sent label counts, which timing alone does not know
    needs: ClassVar[Needs] = Needs(feedback=True, reports=frozenset({"labels"}))

    def init(self, setting: Setting, key: Key) -> Any:
        """Return every device's divergence and that nobody has sent label counts. Raises ConfigError without labels."""
        setting.cost.check(widths=0)
        if setting.labels is None:
            raise ConfigError("data: the method weighs devices by their labels, found no data set")
        shares = shares_of(setting.labels)
        mean = setting.labels.sum(axis=0) / setting.labels.sum()
        return {"js": self._divergence(shares, mean), "told": np.zeros(len(shares), dtype=bool)}

    def plan(self, state: Any, view: View, key: Key) -> Plan:
        """Ask the selected devices to train the whole model, and those that are new for their label counts."""
        work = (view.setting.training.stretch(view.round),)
        later, first = Task(stretches=work), Task(stretches=work, up=Payload(extra_bytes=_counts_bytes(view.setting)))
        return Plan(tuple(Order(d, later if state["told"][d] else first) for d in view.choose(key).tolist()))

    def local(self, task: Task) -> LocalRule:
        """Return plain SGD on the cross-entropy."""
        return PLAIN_SGD

    def merge(self, state: Any, base: Bundle, got: Sequence[Message], view: View, tools: Any, key: Key) -> Merged:
        """Return the weighted mean of the arrived models; the old model stays if nothing arrived."""
        usable, left_out = finite(got)
        if not usable:
            return Merged(state, None, notes=left_out)
        state = self._told(state, usable, view.setting, tools)
        js = self._js(state, usable, view.setting)
        q = self._weights(usable, js)
        model = mean_of_holders(base, usable, q.tolist(), card=view.setting.card)
        return Merged(state, model, notes={**noted(usable, js=js, q=q), **left_out})

    def _told(self, state: Any, got: Sequence[Message], setting: Setting, tools: Any) -> Any:
        """Return the state with what messages tell about their devices' labels."""
        told = state["told"].copy()
        told[[message.device for message in got]] = True
        return {**state, "told": told}

    def _js(self, state: Any, got: Sequence[Message], setting: Setting) -> Arr:
        js: Arr = state["js"][[message.device for message in got]]
        return js

    def _divergence(self, shares: Arr, mean: Arr) -> Arr:
        return js_divergence(shares, mean, _LOG_BASES[self.log_base])

    def _weights(self, got: Sequence[Message], degree: Arr) -> Arr:
        return weights_of(sizes_of(got), degree, self.d_min, self.q_max)


def sizes_of(got: Sequence[Message]) -> Arr:
    """Return how much the data of each message's device counts, shape (k,)."""
    return np.array([message.samples * message.weight for message in got], dtype=float)


def noted(got: Sequence[Message], **columns: Arr) -> dict[str, dict[int, float]]:
    """Return notes of numbers by device; each column has shape (k,)."""
    devices = [message.device for message in got]
    return {name: dict(zip(devices, column.tolist(), strict=True)) for name, column in columns.items()}


def _counts_bytes(setting: Setting) -> int:
    return _COUNT_BYTES * (0 if setting.labels is None else setting.labels.shape[1])


PARTS = {"fedjs": FedJS}
