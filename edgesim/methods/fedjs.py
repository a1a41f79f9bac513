"""FedJS: devices train as in FedAvg; the server weighs models by data size over how far a device's labels are from all.

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
    """Average the local models by data size over Jensen-Shannon divergence.

    The divergence is that between a device's labels and those of all devices together, with logarithms to `log_base`;
    a smaller one than `d_min` counts as `d_min`. `q_max`: no weight is larger, unless so few models come that they
    cannot all be below it. A device's label counts travel with its first model, 4 bytes a class. The metrics hold the
    divergence `js` and the weight `q` of every device.

    The mean labels are those of all devices, not of the round's. Label counts travel with a device's first model that
    arrives: who has sent them is known only where models are merged, so these methods do not run on the `null` backend.
    """

    log_base: Literal["e", "2"] = "e"
    """The paper writes log; earlier code of its authors takes base 2. FedJS's weights are the same unless `d_min`
    decides.
    """
    d_min: PositiveFactor = 0.01
    """Silent, yet a device whose labels are those of all would have every weight. The authors' earlier code adds
    1e-4, with which a single device still takes nearly all.
    """
    q_max: PositiveShare | None = None
    """Silent; a cap for those who want one, such as 0.5."""
    # plan() reads who has sent label counts, which timing alone does not know
    needs: ClassVar[Needs] = Needs(feedback=True, metadata=frozenset({"labels"}))

    @property
    def needs_classes(self) -> str:
        """What the method does for which labels have to be classes."""
        return "weighs devices by their classes"

    def init(self, setting: Setting, key: Key) -> Any:
        """Return every device's divergence and that nobody has sent label counts. Raises ConfigError without labels."""
        super().init(setting, key)
        if setting.labels is None:
            raise ConfigError("data: the method weighs devices by their labels, found no data set")
        shares = shares_of(setting.labels)
        mean = setting.labels.sum(axis=0) / setting.labels.sum()
        return {"js": self._divergence(shares, mean), "told": np.zeros(len(shares), dtype=bool)}

    def plan(self, state: Any, view: View, key: Key) -> Plan:
        """Ask the selected devices to train the whole model, and those that are new for their label counts."""
        later = self.task(view)
        first = replace(later, up=Payload(extra_bytes=_counts_bytes(view.setting)))
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
        """Return the state with what messages tell about their devices' labels."""
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
    """Return how much the data of each message's device counts, shape (k,)."""
    return np.array([message.samples * message.weight for message in updates], dtype=float)


def noted(updates: Sequence[Update], **columns: Arr) -> dict[str, dict[int, float]]:
    """Return metrics of numbers by device; each column has shape (k,)."""
    devices = [message.device for message in updates]
    return {name: dict(zip(devices, column.tolist(), strict=True)) for name, column in columns.items()}


def _counts_bytes(setting: Setting) -> int:
    return _COUNT_BYTES * (0 if setting.labels is None else setting.labels.shape[1])


PLUGINS = {"fedjs": FedJS}
