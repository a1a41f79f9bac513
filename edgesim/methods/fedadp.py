"""FedAdp: devices train as in FedAvg; the server weighs an update by its angle to the mean of all updates.

Source: H. Wu and P. Wang, "Fast-Convergent Federated Learning with Adaptive Weighting" (2021); H. Wu, PhD thesis, York
University (2023), chapter 3.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

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
    """For unequal data: the server weighs an update more, the closer its direction is to the mean of all updates.

    The weight is the data size times exp(f(angle)), with f falling from `alpha` to 0. The angle is between a device's
    move and the mean of all moves by data size, over all parameters as one vector. It is smoothed by the mean of the
    device's angles so far. In the papers every device takes part in every round. Settings decide where the papers do
    not specify more:
    `smooth_over`: the newest angle enters the mean with the share 1 / n, n the device's "updates" so far or, as
    printed, the "rounds" of the run; the two differ only if devices miss rounds.
    `weigh_by`: the angles including the round's own updates ("current"), or the angles before them ("previous"; a
    device without any is weighed by its first).
    `lone_update`: the only update of a round becomes the model; its angle of 0 "counts" in the device's mean or is
    "ignored".
    `zero_angle_rad`: the angle of a device that did not move, and of all devices if the mean of the moves is zero.
    Running statistics are averaged with the same weights. The move of an update that counts in a later round is its
    difference from the current global model. The server's work on angles takes no time. The metrics hold every
    device's angles in radians, its weight and its `divergence`, the distance of its gradient g = -move / lr to the mean
    of all, and the mean of these distances.

    Family: weights of devices. Formula: `w <- sum_k p_k w_k, p_k ~ n_k exp(f(angle_k))`. Paper: arXiv 2012.00661.
    """

    alpha: Annotated[int, Ge(1), Le(100)] = 5  # the best of the thesis, Figure 3.5; up to 100 no exponential overflows
    """The best of Figure 3.5 of the thesis, which names it ς; any positive integer. Above 100 its function of the
    angle would overflow.
    """
    smooth_over: Literal["updates", "rounds"] = "updates"
    """Printed with the round number t, as all devices take part in every round. If some do not, only a mean over a
    device's own updates is the intended mean of its angles. `"rounds"` takes the formula literally.
    """
    weigh_by: Literal["current", "previous"] = "current"
    """The indices of the algorithm's updates and angles are one apart. This is read as a slip: a round's updates are
    weighed by angles that include their own. `"previous"` takes the index literally.
    """
    lone_update: Literal["counts", "ignored"] = "counts"
    """The paper does not specify this. The only update of a round has angle 0 to the mean, itself. This says nothing
    about the device, so the angle can be kept out of the device's mean: `"ignored"`.
    """
    zero_angle_rad: Annotated[float, Ge(0), Le(math.pi)] = math.pi / 2  # a right angle is neutral
    """The paper does not specify this. A vector of length zero has no angle. A right angle is neutral."""

    def init(self, setting: Setting, key: Key) -> Any:
        """Return a server without updates so far: smoothed angles in radians and numbers of updates, by device."""
        return {**super().init(setting, key), "angle_rad": {}, "updates": {}}

    def combine(
        self, state: Any, global_model: ModelState, updates: Sequence[Update], server: ServerContext, key: Key
    ) -> Aggregate:
        """Return the adaptively weighted mean of the arrived models.

        Absent devices keep their angles. Source: thesis, algorithm of chapter 3; its mean of models is the mean of
        moves, as the weights sum to 1.
        """
        sizes = np.array(self.update_weights(updates, server.setting))
        cosine, distance = cosines_and_distances(global_model, updates, sizes / sizes.sum())
        alone = len(updates) == 1
        if alone:
            angle_rad = np.zeros(1)
        else:
            angle_rad = np.where(np.isnan(cosine), self.zero_angle_rad, np.arccos(np.clip(cosine, -1.0, 1.0)))
        weights, columns = np.ones(1), {"weight": np.ones(1)}
        if not alone or self.lone_update == "counts":
            state, smoothed_rad, weighed_rad = self._smoothed(state, updates, angle_rad, server.round)
            weights = sizes * np.exp(contribution(weighed_rad, self.alpha))
            weights = weights / weights.sum()
            columns = {"angle_rad": angle_rad, "smoothed_angle_rad": smoothed_rad, "weight": weights}
        lr = server.setting.training.lr_at(server.round)
        columns["divergence"] = distance / lr if lr else np.zeros(len(updates))  # a rate of 0 moves no device
        devices = [update.device for update in updates]
        metrics = {name: dict(zip(devices, column.tolist(), strict=True)) for name, column in columns.items()}
        mean = float(columns["divergence"].mean())
        model = server.mean(global_model, updates, weights.tolist())
        return Aggregate(state, model, metrics={**metrics, "mean_divergence": mean})

    def _smoothed(self, state: Any, updates: Sequence[Update], angle_rad: Arr, round_: int) -> tuple[Any, Arr, Arr]:
        """Return the new state, the devices' smoothed angles and the angles for their weights, each of shape (k,)."""
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


def cosines_and_distances(global_model: ModelState, updates: Sequence[Update], shares: Arr) -> tuple[Arr, Arr]:
    """Return the cosine of each move's angle to the mean with these shares, and its Euclidean distance, shape (k,).

    A move is of all parameters of a device as one vector. A cosine is NaN if the move or the mean is zero.
    """
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
    return cosine, apart.sqrt().numpy()


PLUGINS = {"fedadp": FedAdp}
