"""FedJS: FedAvg in which devices with unusual label distributions get smaller weights in the mean.

Source: "Efficient Federated Learning with Heterogeneous Data and Adaptive Dropout", arXiv 2507.10430: FedDH without its
learned weights.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np

from edgesim.core.arrays import Arr
from edgesim.core.errors import ConfigError
from edgesim.core.limits import PositiveFactor, PositiveShare
from edgesim.core.method import Aggregate, Method, Needs, ServerContext
from edgesim.core.rng import Key
from edgesim.core.task import Payload, Plan
from edgesim.core.update import ModelState, Update
from edgesim.core.view import Setting, View
from edgesim.methods.weighting.dynamic import js_divergence, shares_of, weights_of

_LOG_BASES = {"e": math.e, "2": 2.0}
_COUNT_BYTES = 4  # of one label


@dataclass(frozen=True, kw_only=True)
class FedJS(Method):
    """Average the local models by data size over Jensen-Shannon divergence of labels.

    The divergence is between the label distribution of a device and the distribution of all devices together, with
    logarithms to `log_base`. A divergence below `d_min` counts as `d_min`. `q_max`: the largest weight, unless too few
    models arrive for all weights to be below it. A device's label counts travel with its first model, 4 bytes a class.
    The metrics hold the divergence `js` and the weight `q` of every device.

    The mean labels are those of all devices, not only of the devices in the round. Label counts travel with a device's
    first model that arrives. The server learns only in the merge which devices have sent them, so these methods do not
    run on the `null` backend.

    Family: weights of devices. Formula: `w <- sum_k q_k w_k, q_k ~ n_k / max(js_k, d_min)`.
    """

    log_base: Literal["e", "2"] = "e"
    """The paper writes log. Earlier code of its authors takes base 2. The weights of FedJS are the same unless `d_min`
    applies.
    """
    d_min: PositiveFactor = 0.01
    """The paper does not specify this, but without a floor a device with the label distribution of the fleet would get
    all the weight. The authors' earlier code adds 1e-4, with which a single device still gets nearly all.
    """
    q_max: PositiveShare | None = None
    """The paper does not specify this. An optional cap, such as 0.5."""
    # plan() reads which devices have sent label counts, which timing alone does not know
    needs: ClassVar[Needs] = Needs(feedback=True, metadata=frozenset({"labels"}))

    @property
    def needs_classes(self) -> str:
        """The reason why labels have to be classes."""
        return "weighs devices by their classes"

    def init(self, setting: Setting, key: Key) -> Any:
        """Return the divergence of every device, with no label counts sent yet. Raises ConfigError without labels."""
        super().init(setting, key)
        if setting.labels is None:
            raise ConfigError("data: the method weighs devices by their labels, found no data set")
        shares = shares_of(setting.labels)
        mean = setting.labels.sum(axis=0) / setting.labels.sum()
        return {"js": self._divergence(shares, mean), "told": np.zeros(len(shares), dtype=bool)}

    def plan(self, state: Any, view: View, key: Key) -> Plan:
        """Ask the selected devices to train the whole model, and new devices to send their label counts too."""
        later, labels = self.task(view), view.setting.labels
        first = replace(later, up=Payload(extra_bytes=_COUNT_BYTES * (0 if labels is None else labels.shape[1])))
        devices = view.choose(key).tolist()
        return Plan.by_kind(devices, state["told"][devices].tolist(), lambda told: later if told else first)

    def combine(
        self, state: Any, global_model: ModelState, updates: Sequence[Update], server: ServerContext, key: Key
    ) -> Aggregate:
        """Return the mean of the arrived models by data size over divergence."""
        state = self._told(state, updates, server)
        js = self._js(state, updates, server.setting)
        q = self._weights(updates, js)
        return Aggregate(state, server.mean(global_model, updates, q.tolist()), metrics=noted(updates, js=js, q=q))

    def _told(self, state: Any, updates: Sequence[Update], server: ServerContext) -> Any:
        """Return the state in which the devices of these messages have sent their label counts."""
        told = state["told"].copy()
        told[[message.device for message in updates]] = True
        return {**state, "told": told}

    def _js(self, state: Any, updates: Sequence[Update], setting: Setting) -> Arr:
        js: Arr = state["js"][[message.device for message in updates]]
        return js

    def _divergence(self, shares: Arr, mean: Arr) -> Arr:
        return js_divergence(shares, mean, _LOG_BASES[self.log_base])

    def _weights(self, updates: Sequence[Update], degree: Arr) -> Arr:
        return weights_of(sizes_of(updates), degree, self.d_min, self.q_max)


def sizes_of(updates: Sequence[Update]) -> Arr:
    """Return the data size of each message's device times the weight of the message, shape (k,)."""
    return np.array([message.samples * message.weight for message in updates], dtype=float)


def noted(updates: Sequence[Update], **columns: Arr) -> dict[str, dict[int, float]]:
    """Return metrics by device from columns of shape (k,)."""
    devices = [message.device for message in updates]
    return {name: dict(zip(devices, column.tolist(), strict=True)) for name, column in columns.items()}


PLUGINS = {"fedjs": FedJS}
