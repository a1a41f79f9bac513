"""FedAdp: devices train as in FedAvg; the server weighs an update by how well it points along the mean of all.

Source: H. Wu and P. Wang, "Fast-Convergent Federated Learning with Adaptive Weighting" (2021); H. Wu, PhD thesis, York
University (2023), chapter 3.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from annotated_types import Ge, Le

from edgesim.contracts import Arr, Bundle, LocalRule, Merged, Message, Needs, Order, Plan, Setting, Task, View
from edgesim.learning.merge import finite, mean_of_holders
from edgesim.learning.rules import PLAIN_SGD
from edgesim.rng import Key


@dataclass(frozen=True, kw_only=True)
class FedAdp:
    """Average the local models by data size times exp(f(angle)), f falling from `alpha` to 0.

    The angle is that between a device's move and the mean of all moves by data size, over all parameters as one vector,
    smoothed by the mean of the device's angles so far. The papers let every device take part in every round; where
    they are silent a setting decides:
    `smooth_over`: the newest angle enters the mean with the share 1 / n, n the device's "updates" so far or, as
    printed, the "rounds" of the run; the two differ only if devices miss rounds.
    `weigh_by`: the angles that the round's own updates have moved ("current"), or those from before ("previous"; a
    device without any is weighed by its first).
    `lone_update`: an update that comes alone is taken as it is; its angle of 0 "counts" in the device's mean or not.
    `zero_angle_rad`: of a device that did not move, and of all if the mean of the moves is zero.
    Running statistics are averaged with the same weights. An update that counts in a later round moved as far as it
    now lies from the global model. The server's work on angles takes no time. The notes hold every device's angles in
    radians, its weight and its `divergence`, the distance of its gradient g = -move / lr to the mean of all; and the
    mean of these distances.
    """

    alpha: Annotated[int, Ge(1), Le(100)] = 5  # the best of the thesis, Figure 3.5; up to 100 no exponential overflows
    smooth_over: Literal["updates", "rounds"] = "updates"
    weigh_by: Literal["current", "previous"] = "current"
    lone_update: Literal["counts", "ignored"] = "counts"
    zero_angle_rad: Annotated[float, Ge(0), Le(math.pi)] = math.pi / 2  # it says neither yes nor no
    needs: ClassVar[Needs] = Needs()

    def init(self, setting: Setting, key: Key) -> Any:
        """Return a server that has seen nobody: smoothed angles in radians and numbers of updates, by device."""
        setting.cost.check(widths=0)
        return {"angle_rad": {}, "updates": {}}

    def plan(self, state: Any, view: View, key: Key) -> Plan:
        """Ask the selected devices to train the whole model."""
        task = Task(stretches=(view.setting.training.stretch(view.round),))
        return Plan(tuple(Order(device, task) for device in view.choose(key).tolist()))

    def local(self, task: Task) -> LocalRule:
        """Return plain SGD on the cross-entropy."""
        return PLAIN_SGD

    def merge(self, state: Any, base: Bundle, got: Sequence[Message], view: View, tools: Any, key: Key) -> Merged:
        """Return the adaptively weighted mean of the arrived models; the old model stays if nothing arrived.

        Absent devices keep what is known of them. Source: thesis, algorithm of chapter 3; its mean of models is that of
        moves, as the weights sum to 1.
        """
        usable, left_out = finite(got)
        if not usable:
            return Merged(state, None, notes=left_out)
        sizes = np.array([message.samples * message.weight for message in usable])
        spread = _spread(base, usable, sizes / sizes.sum())
        state, weights, columns = self._weighed(state, usable, sizes, self._angles_rad(spread), view.round)
        lr = view.setting.training.lr_at(view.round)
        columns["divergence"] = spread.distance / lr if lr else np.zeros(len(usable))  # decayed to 0: nobody moves
        devices = [message.device for message in usable]
        notes = {name: dict(zip(devices, column.tolist(), strict=True)) for name, column in columns.items()}
        mean = float(columns["divergence"].mean())
        model = mean_of_holders(base, usable, weights.tolist())
        return Merged(state, model, notes={**notes, "mean_divergence": mean, **left_out})

    def _angles_rad(self, spread: _Spread) -> Arr:
        if len(spread.cosine) == 1:
            return np.zeros(1)
        angles_rad = np.arccos(np.clip(spread.cosine, -1.0, 1.0))
        return np.where(np.isnan(spread.cosine), self.zero_angle_rad, angles_rad)

    def _weighed(
        self, state: Any, got: Sequence[Message], sizes: Arr, angle_rad: Arr, round_: int
    ) -> tuple[Any, Arr, dict[str, Arr]]:
        """Return the new state, the weights of the models, which sum to 1, and columns of notes, of shape (k,)."""
        if len(got) == 1 and self.lone_update == "ignored":
            return state, np.ones(1), {"weight": np.ones(1)}
        state, smoothed_rad, weighed_rad = self._smoothed(state, got, angle_rad, round_)
        weights = sizes * np.exp(contribution(weighed_rad, self.alpha))
        weights = weights / weights.sum()
        return state, weights, {"angle_rad": angle_rad, "smoothed_angle_rad": smoothed_rad, "weight": weights}

    def _smoothed(self, state: Any, got: Sequence[Message], angle_rad: Arr, round_: int) -> tuple[Any, Arr, Arr]:
        """Return the new state, the devices' smoothed angles and those that weights are taken from, shape (k,)."""
        known, updates = dict(state["angle_rad"]), dict(state["updates"])
        smoothed_rad, weighed_rad = [], []
        for message, new_rad in zip(got, angle_rad.tolist(), strict=True):
            device = message.device
            updates[device] = updates.get(device, 0) + 1
            share = 1 / (updates[device] if self.smooth_over == "updates" else round_ + 1)
            before_rad = known.get(device, new_rad)
            known[device] = (1 - share) * before_rad + share * new_rad
            smoothed_rad.append(known[device])
            weighed_rad.append(known[device] if self.weigh_by == "current" else before_rad)
        return {"angle_rad": known, "updates": updates}, np.array(smoothed_rad), np.array(weighed_rad)


def contribution(angle_rad: Arr, alpha: float) -> Arr:
    """Return f = alpha (1 - exp(-exp(-alpha (angle - 1)))), a falling Gompertz function, of angles in radians."""
    value: Arr = -alpha * np.expm1(-np.exp(-alpha * (angle_rad - 1.0)))
    return value


class _Spread(NamedTuple):
    """How moves lie about their mean, each of shape (k,)."""

    cosine: Arr  # of the angle to the mean; NaN if one of the two is zero
    distance: Arr  # Euclidean, to the mean


def _spread(base: Bundle, got: Sequence[Message], shares: Arr) -> _Spread:
    """Return how the moves of all parameters, as one vector a device, lie about their mean with these shares."""
    inner, square, apart, mean_square = (torch.zeros(len(got), dtype=torch.float64) for _ in range(4))
    for name, old in base["params"].items():
        moves = torch.stack([m.body["params"][name] for m in got]).double().sub_(old).reshape(len(got), -1)
        mean = torch.from_numpy(shares) @ moves
        inner += moves @ mean
        square += moves.square().sum(1)
        apart += (moves - mean).square().sum(1)
        mean_square += mean.square().sum()
    lengths = (square.sqrt() * mean_square.sqrt()).numpy()
    cosine = np.divide(inner.numpy(), lengths, out=np.full(len(got), np.nan), where=lengths > 0)
    return _Spread(cosine, apart.sqrt().numpy())


PARTS = {"fedadp": FedAdp}
