"""FedAdp: devices train as in FedAvg; the server weighs an update by how well it points along the mean of all.

Source: H. Wu and P. Wang, "Fast-Convergent Federated Learning with Adaptive Weighting" (2021); H. Wu, PhD thesis, York
University (2023), chapter 3.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import torch
from annotated_types import Ge, Le

from edgesim.core.arrays import Arr
from edgesim.core.method import Aggregate, Method, ServerContext
from edgesim.core.rng import Key
from edgesim.core.update import ModelState, Update
from edgesim.core.view import Setting


@dataclass(frozen=True, kw_only=True)
class FedAdp(Method):
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
    now lies from the global model. The server's work on angles takes no time. The metrics hold every device's angles in
    radians, its weight and its `divergence`, the distance of its gradient g = -move / lr to the mean of all; and the
    mean of these distances.
    """

    alpha: Annotated[int, Ge(1), Le(100)] = 5  # the best of the thesis, Figure 3.5; up to 100 no exponential overflows
    """The best of Figure 3.5 of the thesis, which names it ς; any positive integer. Above 100 its function of the
    angle would overflow.
    """
    smooth_over: Literal["updates", "rounds"] = "updates"
    """Printed with the round number t, as all devices take part in every round. If some do not, a device's angles
    have the mean that is meant only over its own updates; `"rounds"` is the formula to the letter.
    """
    weigh_by: Literal["current", "previous"] = "current"
    """The indices of the algorithm's updates and angles are one apart. Read as a slip: a round's updates are weighed
    by angles that include their own; `"previous"` takes the index seriously.
    """
    lone_update: Literal["counts", "ignored"] = "counts"
    """Silent: an update that comes alone has angle 0 to the mean, itself. It says nothing about the device, so it may
    be kept out of the device's mean: `"ignored"`.
    """
    zero_angle_rad: Annotated[float, Ge(0), Le(math.pi)] = math.pi / 2  # it says neither yes nor no
    """Silent: a vector of length zero has no angle. A right angle neither praises nor blames."""

    def init(self, setting: Setting, key: Key) -> Any:
        """Return a server that has seen nobody: smoothed angles in radians and numbers of updates, by device."""
        return {**super().init(setting, key), "angle_rad": {}, "updates": {}}

    def combine(
        self, state: Any, global_model: ModelState, updates: Sequence[Update], server: ServerContext, key: Key
    ) -> Aggregate:
        """Return the adaptively weighted mean of the arrived models.

        Absent devices keep what is known of them. Source: thesis, algorithm of chapter 3; its mean of models is that of
        moves, as the weights sum to 1.
        """
        sizes = np.array(self.update_weights(updates, server.setting))
        spread = _spread(global_model, updates, sizes / sizes.sum())
        state, weights, columns = self._weighed(state, updates, sizes, self._angles_rad(spread), server.round)
        lr = server.setting.training.lr_at(server.round)
        columns["divergence"] = spread.distance / lr if lr else np.zeros(len(updates))  # decayed to 0: nobody moves
        devices = [update.device for update in updates]
        metrics = {name: dict(zip(devices, column.tolist(), strict=True)) for name, column in columns.items()}
        mean = float(columns["divergence"].mean())
        model = server.mean(global_model, updates, weights.tolist())
        return Aggregate(state, model, metrics={**metrics, "mean_divergence": mean})

    def _angles_rad(self, spread: _Spread) -> Arr:
        if len(spread.cosine) == 1:
            return np.zeros(1)
        angles_rad = np.arccos(np.clip(spread.cosine, -1.0, 1.0))
        return np.where(np.isnan(spread.cosine), self.zero_angle_rad, angles_rad)

    def _weighed(
        self, state: Any, updates: Sequence[Update], sizes: Arr, angle_rad: Arr, round_: int
    ) -> tuple[Any, Arr, dict[str, Arr]]:
        """Return the new state, the weights of the models, which sum to 1, and columns of metrics, of shape (k,)."""
        if len(updates) == 1 and self.lone_update == "ignored":
            return state, np.ones(1), {"weight": np.ones(1)}
        state, smoothed_rad, weighed_rad = self._smoothed(state, updates, angle_rad, round_)
        weights = sizes * np.exp(contribution(weighed_rad, self.alpha))
        weights = weights / weights.sum()
        return state, weights, {"angle_rad": angle_rad, "smoothed_angle_rad": smoothed_rad, "weight": weights}

    def _smoothed(self, state: Any, updates: Sequence[Update], angle_rad: Arr, round_: int) -> tuple[Any, Arr, Arr]:
        """Return the new state, the devices' smoothed angles and those that weights are taken from, shape (k,)."""
        known, counts = dict(state["angle_rad"]), dict(state["updates"])
        smoothed_rad, weighed_rad = [], []
        for message, new_rad in zip(updates, angle_rad.tolist(), strict=True):
            device = message.device
            counts[device] = counts.get(device, 0) + 1
            share = 1 / (counts[device] if self.smooth_over == "updates" else round_ + 1)
            before_rad = known.get(device, new_rad)
            known[device] = (1 - share) * before_rad + share * new_rad
            smoothed_rad.append(known[device])
            weighed_rad.append(known[device] if self.weigh_by == "current" else before_rad)
        return {"angle_rad": known, "updates": counts}, np.array(smoothed_rad), np.array(weighed_rad)


def contribution(angle_rad: Arr, alpha: float) -> Arr:
    """Return f = alpha (1 - exp(-exp(-alpha (angle - 1)))), a falling Gompertz function, of angles in radians."""
    value: Arr = -alpha * np.expm1(-np.exp(-alpha * (angle_rad - 1.0)))
    return value


class _Spread(NamedTuple):
    """How moves lie about their mean, each of shape (k,)."""

    cosine: Arr  # of the angle to the mean; NaN if one of the two is zero
    distance: Arr  # Euclidean, to the mean


def _spread(global_model: ModelState, updates: Sequence[Update], shares: Arr) -> _Spread:
    """Return how the moves of all parameters, as one vector a device, lie about their mean with these shares."""
    inner, square, apart, mean_square = (torch.zeros(len(updates), dtype=torch.float64) for _ in range(4))
    for name, old in global_model["params"].items():
        moves = torch.stack([m.body["params"][name] for m in updates]).double().sub_(old).reshape(len(updates), -1)
        mean = torch.from_numpy(shares) @ moves
        inner += moves @ mean
        square += moves.square().sum(1)
        apart += (moves - mean).square().sum(1)
        mean_square += mean.square().sum()
    lengths = (square.sqrt() * mean_square.sqrt()).numpy()
    cosine = np.divide(inner.numpy(), lengths, out=np.full(len(updates), np.nan), where=lengths > 0)
    return _Spread(cosine, apart.sqrt().numpy())


PLUGINS = {"fedadp": FedAdp}
