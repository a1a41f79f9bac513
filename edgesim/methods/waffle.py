"""WAFFLE: SCAFFOLD for one device, whose server gives more weight to updates near the update of this device.

Source: Beaussart, Grimberg, Hartley and Jaggi, "WAFFLE: Weighted Averaging for Personalized Federated Learning"
(arXiv 2110.06978). The formulas were read in a published summary, as the paper itself was not available here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgesim.core.arrays import Arr
from edgesim.core.errors import ConfigError
from edgesim.core.limits import Count, CountOrZero, PositiveFactor
from edgesim.core.method import Aggregate, ServerContext
from edgesim.core.model_state import moves, square
from edgesim.core.rng import Key, PlanStream
from edgesim.core.task import Plan
from edgesim.core.update import ModelState, Update
from edgesim.core.view import Setting, View
from edgesim.methods.fedjs import noted
from edgesim.methods.scaffold import Scaffold

_DISTANCE_FLOPS = 3.0  # FLOPs a parameter and device: a difference, its square, a sum
_MOST_EXPONENT = 700.0  # W stays above 0


@dataclass(frozen=True, kw_only=True)
class Waffle(Scaffold):
    """SCAFFOLD for the data of one device, `target`, with more weight for similar devices (from a summary).

    The target takes part in every round in which it is reachable. d_k is the squared distance of the model of device k
    from the target's model, d_m the smallest distance and d_M the largest. The target counts as a device at
    d_t = d_m (1 - (1 - W) (d_M - d_m) / d_M), and each weight is max(W - (d_k - d_t) / (d_M - d_t), 0), where
    W = 1 / (1 + exp(`slope` (2 r / `rounds` - 1))) falls in round r from nearly 1 to nearly 0: at first the nearer
    devices count, in the end the target alone. The weights of a round have sum 1. They are averaged by device over the
    last `average` of its rounds, and multiply the weights of SCAFFOLD. In a round that the target misses devices keep
    their previous weights, or equal ones if no device has any. The global model is the target's personal model, and
    `evaluation.personal` tests it so. It is no personal model of other devices. The metric `alpha` is the weight of
    each device. Other keys: see SCAFFOLD.

    If the selection leaves out the target, the target replaces a random one of the chosen devices. In the paper all
    devices take part. By the formula as it was read, the most distant devices never count, whatever W. If all are
    equally distant, all count like the target. Distances cost the server 3 FLOPs for each parameter and other device,
    also in a round that the target misses.

    Family: personal models. Formula: `weight_k = max(W - (d_k - d_t) / (d_M - d_t), 0), times the weights of SCAFFOLD`.
    """

    target: CountOrZero = 0  # id of the device that the model is trained for
    """The paper runs once for each device. A study does the same with this key as an axis."""
    slope: PositiveFactor = 3.2
    """The paper's value in all experiments. With it only the target counts after 70 to 90 % of the rounds."""
    rounds: Count = 100
    """The number of rounds over which W falls. After them it stays. Set it to the number of rounds of the run."""
    average: Count = 3
    """The paper's."""

    def init(self, setting: Setting, key: Key) -> Any:
        """Return a state without weights. Raises ConfigError if there is no such target."""
        super().init(setting, key)
        if self.target not in setting.ids:
            raise ConfigError(
                f"method.target: must be one of the {setting.devices} devices of this training, "
                f"{setting.ids[0]} to {setting.ids[-1]}; found {self.target}"
            )
        return {"weights": {}}

    def plan(self, state: Any, view: View, key: Key) -> Plan:
        """Ask the selected devices. The target replaces one of them if it is reachable and not selected."""
        ids = view.choose(key)
        if len(ids) and self.target not in ids and self.target in view.idle:
            others = np.delete(ids, key.at(PlanStream.DEVICES).numpy().integers(len(ids)))
            ids = np.sort(np.append(others, self.target))
        return self.plan_for(view, ids)

    def combine(
        self, state: Any, global_model: ModelState, updates: Sequence[Update], server: ServerContext, key: Key
    ) -> Aggregate:
        """Move the model and c by weighted means, and remember the weights of the round."""
        devices = [update.device for update in updates]
        history = dict(state["weights"])
        if self.target in devices:
            place = devices.index(self.target)
            alphas = alphas_of(distances_from(updates, place), place, self.openness(server.round))
            history |= {
                device: [*history.get(device, []), alpha][-self.average :]
                for device, alpha in zip(devices, alphas.tolist(), strict=True)
            }
        means = np.array([float(np.mean(history.get(device, [0.0]))) for device in devices])
        alpha = means / means.sum() if means.sum() > 0 else np.full(len(devices), 1 / len(devices))
        weights = [a * w for a, w in zip(alpha.tolist(), self.update_weights(updates, server.setting), strict=True)]
        model = self.moved(global_model, updates, weights, server)
        return Aggregate({**state, "weights": history}, model, metrics=noted(updates, alpha=alpha))

    def merge_flops(self, updates: int, setting: Setting) -> float:
        """Return the FLOPs of the distances of all other devices from the target."""
        return _DISTANCE_FLOPS * (updates - 1) * setting.cost_profile.params

    def openness(self, round_: int) -> float:
        """Return W in a round counted from 0: nearly 1 at first, 1/2 in the middle, nearly 0 at the end."""
        x = self.slope * (2.0 * min(round_, self.rounds) / self.rounds - 1.0)
        return 1.0 / (1.0 + math.exp(min(x, _MOST_EXPONENT)))


def distances_from(updates: Sequence[Update], place: int) -> Arr:
    """Return the squared distances of the parameters of all updates from the update at `place`, shape (k,)."""
    target = updates[place].body["params"]

    return np.array([square(moves(update.body["params"], target)) for update in updates])


def alphas_of(distances: Arr, target: int, openness: float) -> Arr:
    """Return the weights of devices, with sum 1, from their squared distances to the device at place `target`.

    Both have shape (k,).
    """
    others = np.delete(distances, target)
    if not len(others):
        return np.ones(1)
    least, largest = float(others.min()), float(others.max())
    spread = (largest - least) / largest if largest else 0.0
    own = least * (1.0 - (1.0 - openness) * spread)
    placed = np.array(distances, dtype=np.float64)
    placed[target] = own
    relative = (placed - own) / (largest - own) if largest > own else np.zeros(len(placed))
    alphas: Arr = np.maximum(openness - relative, 0.0)
    return alphas / alphas.sum()


PLUGINS = {"waffle": Waffle}
