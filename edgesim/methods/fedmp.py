"""FedMP: a bandit for each device learns how much thinner its network has to be for all to end at the same time.

Source: Z. Jiang, Y. Xu, H. Xu, Z. Wang, C. Qiao and Y. Zhao, "FedMP: Federated Learning through Adaptive Model Pruning
in Heterogeneous Edge Computing" (ICDE 2022): pruning of filters by the sum of their sizes, E-UCB, R2SP. Neither text
nor code was at hand. Discounted bounds: Garivier and Moulines, "On Upper-Confidence Bound Policies for Non-Stationary
Bandit Problems" (2008).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple, TypeAlias

import numpy as np
import torch
from annotated_types import Gt, Le, Lt
from torch import Tensor

from edgesim.core.limits import PositiveFactor
from edgesim.core.method import Absent, Aggregate, Finished, LocalPhase, LocalRule, LocalState, Needs, ServerContext
from edgesim.core.price_list import CostProfile
from edgesim.core.rng import Key, PlanStream
from edgesim.core.task import Payload, Plan, Submodel, Task
from edgesim.core.update import ModelState, Update
from edgesim.core.view import Setting, View
from edgesim.core.workload import expected_s
from edgesim.learning.submodel.selection import Which, check_groups, check_kept, groups_of, units_at
from edgesim.learning.train.context import Batch, Context
from edgesim.learning.train.rules import objective_loss
from edgesim.methods.weighting.by_entry import MeanByEntry

_LOSS_BYTES = 4  # a device's mean loss, one float32
_NORM_FLOPS = 2.0  # of the server, a parameter: its size and the sum
_Arm: TypeAlias = Mapping[str, Any]  # of a device: "pulls", [ratio, reward, round] each, and rising "cuts" of its range


class Bandit(NamedTuple):
    """The rules of E-UCB over pruning ratios in [0, `most`)."""

    most: float
    discount: float
    resolution: float

    def bounds(self, pulls: Sequence[Sequence[float]], cuts: Sequence[float], now: int) -> list[float]:
        """Return the upper confidence bound of every part between cuts at round `now`; inf for parts never tried.

        A pull of round s counts discount^(now - s). A bound is the mean reward of a part plus
        B sqrt(2 ln n / n_part), with n the counts in all and B the largest reward so far in size.
        """
        parts = np.searchsorted(np.array(cuts), [ratio for ratio, *_ in pulls], side="right")
        counts, sums = np.zeros(len(cuts) + 1), np.zeros(len(cuts) + 1)
        for part, (_, reward, round_) in zip(parts, pulls, strict=True):
            counts[part] += self.discount ** (now - round_)
            sums[part] += self.discount ** (now - round_) * reward
        largest = max((abs(reward) for _, reward, _ in pulls), default=0.0)
        spread = 2 * math.log(max(1.0, counts.sum()))
        return [
            math.inf if not count else total / count + largest * math.sqrt(spread / count)
            for count, total in zip(counts.tolist(), sums.tolist(), strict=True)
        ]

    def ratio(self, arm: _Arm, now: int, u: float) -> float:
        """Return a ratio from the part with the largest bound, the first of equal ones; `u`: uniform in [0, 1)."""
        edges = [0.0, *arm["cuts"], self.most]
        part = int(np.argmax(self.bounds(arm["pulls"], arm["cuts"], now)))
        return edges[part] + u * (edges[part + 1] - edges[part])

    def pulled(self, arm: _Arm, ratio: float, reward: float, now: int) -> _Arm:
        """Return what a device's arm is after a pull: the part that it was in is cut there if it is wide enough."""
        edges = [0.0, *arm["cuts"], self.most]
        part = int(np.searchsorted(np.array(arm["cuts"]), ratio, side="right"))
        wide = edges[part + 1] - edges[part] > self.resolution and ratio > edges[part]
        cuts = sorted([*arm["cuts"], ratio]) if wide else list(arm["cuts"])
        return {"pulls": [*arm["pulls"], [ratio, reward, now]], "cuts": cuts}


@dataclass(frozen=True, kw_only=True)
class FedMP(MeanByEntry):
    """A device of ratio a trains ceil((1 - a) n) of the n units of every layer, those of the largest weights.

    What counts is the sum of the sizes of the weights that make a unit, in the newest global model. Ratios come from
    a bandit for each device over [0, `most`): the server cuts the range into parts where it tried a ratio, until they
    are as narrow as `resolution`, and draws the next one from the part of the largest upper confidence bound. Rewards
    count `discount` less every round. A reward is how much the device's mean loss fell since its last job, over how
    far its job was from the mean time of the round, as a share of that mean and at least `least_gap`.
    `absent`: units that a device had not count with the old ones ("include_absent", the paper's residual recovery), or
    parameters are averaged over who had them ("average_over_holders"). `channels`: those that one layer makes
    ("inner"), or also those that several make, as their outputs are added ("all"). The metric `ratio` has the ratio of
    each device. In the first round, of whose model the server knows nothing yet, all devices train the whole one.

    Differs: the times are those that the server expects of a device at full speed and of its link at mean rates, not
    those that a job took: slow-downs and jitter are not learned. The exact reward and the constants of the bandit are
    our reading. Devices count by data size. Devices send their mean loss, 4 bytes, and get a bit for each unit.
    """

    most: Annotated[float, Gt(0), Lt(1)] = 0.9
    """Ours. The largest share of units that a device may do without."""
    discount: Annotated[float, Gt(0), Le(1)] = 0.95
    """Ours, within what Garivier and Moulines use."""
    resolution: Annotated[float, Gt(0), Le(1)] = 0.05
    """Ours. The narrowest part that is still cut in two."""
    least_gap: PositiveFactor = 0.05
    """Ours. Without it the reward of a device exactly in time would be infinite."""
    absent: Absent = "include_absent"
    """R2SP: a device's model is completed by what was pruned from the old one before the mean is taken."""
    channels: Which = "inner"
    """As for `fjord`; the paper prunes filters of all convolutions and units of linear layers."""
    needs: ClassVar[Needs] = Needs(feedback=True, clock=True)

    def init(self, setting: Setting, key: Key) -> Any:
        """Return a server that knows neither units nor devices. Raises ConfigError for models that stay whole."""
        super().init(setting, key)
        check_groups(setting.cost_profile, self.channels, "fedavg would do the same")
        check_kept(groups_of(setting.cost_profile, self.channels), setting.cost_profile, "method.most", None)
        return {"order": {}, "arms": {}, "loss": {}}

    def plan(self, state: Any, view: View, key: Key) -> Plan:
        """Ask the selected devices to train networks as thin as their bandits say."""
        devices = view.choose(key).tolist()
        ratios = [self._ratio(state, view.round, device, key) for device in devices]
        return Plan.by_kind(devices, ratios, lambda ratio: self._task(ratio, state["order"], view))

    def local(self, task: Task) -> LocalRule:
        """Return SGD on the cross-entropy, whose mean is reported."""
        return LocalRule((LocalPhase(loss=_noted),), on_start=_start, on_finish=_finish)

    def combine(
        self, state: Any, global_model: ModelState, updates: Sequence[Update], server: ServerContext, key: Key
    ) -> Aggregate:
        """Return the mean of the completed models, and what the bandits make of the round."""
        merged = super().combine(state, global_model, updates, server, key)
        assert merged.model is not None
        setting = server.setting
        rewards = self.rewards(updates, state["loss"], setting)
        arms = dict(state["arms"])
        for update in (update for update in updates if update.device in rewards and update.task.submodel.channels):
            arm, ratio = arms.get(update.device, _NEW), update.task.config["ratio"]
            arms[update.device] = self._bandit.pulled(arm, ratio, rewards[update.device], server.round)
        losses = {update.device: float(update.statistics["loss"]) for update in updates}
        new = {
            "order": order_of(merged.model["params"], setting.cost_profile, self.channels),
            "arms": arms,
            "loss": {**state["loss"], **{device: loss for device, loss in losses.items() if math.isfinite(loss)}},
        }
        ratios = {update.device: update.task.config["ratio"] for update in updates}
        return Aggregate(new, merged.model, _NORM_FLOPS * setting.cost_profile.params, {"ratio": ratios})

    def rewards(self, updates: Sequence[Update], before: Mapping[int, float], setting: Setting) -> dict[int, float]:
        """Return the rewards of the devices whose last loss, in `before`, and newest one are known."""
        seconds = {u.device: float(expected_s(u.task, setting, np.array([u.device]))[0]) for u in updates}
        mean = math.fsum(seconds.values()) / len(seconds)
        gaps = {device: max(self.least_gap, abs(each - mean) / mean) for device, each in seconds.items()}
        fell = {u.device: before.get(u.device, math.nan) - float(u.statistics["loss"]) for u in updates}
        return {device: by / gaps[device] for device, by in fell.items() if math.isfinite(by)}

    @property
    def _bandit(self) -> Bandit:
        return Bandit(self.most, self.discount, self.resolution)

    def _ratio(self, state: Any, round_: int, device: int, key: Key) -> float:
        if not state["order"]:
            return 0.0
        u = float(key.at(PlanStream.RATES, device).numpy().random())
        return self._bandit.ratio(state["arms"].get(device, _NEW), round_, u)

    def _task(self, ratio: float, order: Mapping[str, Sequence[int]], view: View) -> Task:
        kept = {name: units_at(1 - ratio, len(units)) for name, units in order.items()}
        channels = tuple((name, tuple(sorted(order[name][:count]))) for name, count in kept.items())
        bits = sum(map(len, order.values()))
        return Task(
            submodel=Submodel("thinner" if channels else "whole", channels=channels),
            local_sgd=(view.setting.training.local_sgd(view.round),),
            down=Payload(extra_bytes=math.ceil(bits / 8)),
            up=Payload(extra_bytes=_LOSS_BYTES),
            config={"ratio": ratio},
        )


_NEW: _Arm = {"pulls": [], "cuts": []}


def order_of(params: Mapping[str, Tensor], cost_profile: CostProfile, which: Which) -> dict[str, list[int]]:
    """Return the units of every group that may be thinned, from the one of the largest weights to the smallest.

    A unit counts with the sum of the sizes of the weights that make it, in all layers that do.
    """
    order = {}
    for group in groups_of(cost_profile, which):
        sums = torch.zeros(group.size, dtype=torch.float64)
        for layer in (layer for layer in cost_profile.layers if layer.rows == group.name and layer.weights):
            sums += params[f"{layer.name}.weight"].double().abs().flatten(1).sum(1)
        order[group.name] = sums.argsort(descending=True, stable=True).tolist()
    return order


@dataclass(slots=True)
class _Losses:
    """Scratch of a job: the sum of the losses of all samples met, and how many these are."""

    total: Tensor
    samples: int = 0


def _start(context: Context) -> LocalState:
    """Return a copy of the model received, with no losses yet."""
    return LocalState(context.copy(context.global_model), _Losses(torch.zeros((), dtype=torch.float64)))


def _noted(local: LocalState, batch: Batch, context: Context) -> Tensor:
    """Return the mean cross-entropy, and note it."""
    loss = objective_loss(local.weights, batch, context)
    local.scratch.total += loss.detach().cpu().double() * len(batch.y)
    local.scratch.samples += len(batch.y)
    return loss


def _finish(local: LocalState, context: Context) -> Finished:
    """Return the model and the mean loss of the samples met."""
    return Finished(local.weights, statistics={"loss": float(local.scratch.total) / max(1, local.scratch.samples)})


PLUGINS = {"fedmp": FedMP}
