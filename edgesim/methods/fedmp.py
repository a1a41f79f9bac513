"""FedMP: a bandit for each device learns how thin its network has to be so that all devices finish at the same time.

Source: Z. Jiang, Y. Xu, H. Xu, Z. Wang, C. Qiao and Y. Zhao, "FedMP: Federated Learning through Adaptive Model Pruning
in Heterogeneous Edge Computing" (ICDE 2022): pruning of filters by the sum of their sizes, E-UCB, R2SP. Neither the
paper nor its code was available here. Discounted bounds: Garivier and Moulines, "On Upper-Confidence Bound Policies for
Non-Stationary Bandit Problems" (2008).
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
_NORM_FLOPS = 2.0  # FLOPs of the server for each parameter: absolute value and sum
_Arm: TypeAlias = Mapping[str, Any]  # a device's "pulls", [ratio, reward, round] each, and rising "cuts" of its range


class Bandit(NamedTuple):
    """The rules of E-UCB over pruning ratios in [0, `most`)."""

    most: float
    discount: float
    resolution: float

    def bounds(self, pulls: Sequence[Sequence[float]], cuts: Sequence[float], now: int) -> list[float]:
        """Return the upper confidence bound of every part between cuts at round `now`; inf for parts never tried.

        A pull of round s counts discount^(now - s). A bound is the mean reward of a part plus
        B sqrt(2 ln n / n_part), where n is the total count and B the largest absolute reward so far.
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
        """Return a device's arm after a pull. The part that contains the ratio is cut there if it is wide enough."""
        edges = [0.0, *arm["cuts"], self.most]
        part = int(np.searchsorted(np.array(arm["cuts"]), ratio, side="right"))
        wide = edges[part + 1] - edges[part] > self.resolution and ratio > edges[part]
        cuts = sorted([*arm["cuts"], ratio]) if wide else list(arm["cuts"])
        return {"pulls": [*arm["pulls"], [ratio, reward, now]], "cuts": cuts}


@dataclass(frozen=True, kw_only=True)
class FedMP(MeanByEntry):
    """Each device trains a network pruned by a ratio that a bandit learns, thinner if it is slow (from memory).

    A device of ratio a trains ceil((1 - a) n) of the n units of every layer, the units with the largest weights. The
    size of a unit is the sum of the absolute weights that produce it, in the newest global model. Ratios come from a
    bandit for each device over [0, `most`). The server cuts the range into parts at each ratio that it tried, until
    they are as narrow as `resolution`. It draws the next ratio from the part with the largest upper confidence bound.
    Rewards are discounted by the factor `discount` every round. A reward is the fall of the device's mean loss since
    its last job, divided by the distance of its job time from the mean of the round. This distance is a share of the
    mean, and at least `least_gap`.
    `absent`: units that a device did not have count with the old values ("include_absent", the paper's residual
    recovery), or parameters are averaged over the devices that had them ("average_over_holders"). `channels`: only
    channels that one layer makes ("inner"), or also channels that several layers make because their outputs are added
    ("all"). The metric `ratio` has the ratio of each device. In the first round the server has not seen a trained model
    yet, and all devices train the whole model.

    Differs: the times are the server's expectations of a device at full speed and of its link at mean rates, not the
    measured times of jobs. Slow-downs and jitter are not learned. The exact reward and the constants of the bandit are
    chosen here. Devices count by data size. Devices send their mean loss, 4 bytes, and receive one bit for each unit.

    Family: pruning. Formula: `a device of ratio a trains the ceil((1 - a) n) units with the largest sum of absolute
    weights, of n in a layer`.
    """

    most: Annotated[float, Gt(0), Lt(1)] = 0.9
    """Chosen here. The largest share of units that may be pruned on a device."""
    discount: Annotated[float, Gt(0), Le(1)] = 0.95
    """Chosen here, in the range that Garivier and Moulines use."""
    resolution: Annotated[float, Gt(0), Le(1)] = 0.05
    """Chosen here. Parts that are wider than this are cut in two."""
    least_gap: PositiveFactor = 0.05
    """Chosen here. Without it the reward of a device exactly on time would be infinite."""
    absent: Absent = "include_absent"
    """R2SP: before the mean is taken, the pruned units of a device's model are filled in from the old global model."""
    channels: Which = "inner"
    """As for `fjord`. The paper prunes filters of all convolutions and units of linear layers."""
    needs: ClassVar[Needs] = Needs(feedback=True, clock=True)

    def init(self, setting: Setting, key: Key) -> Any:
        """Return a state without pulls and losses. Raises ConfigError for models that have to stay whole."""
        super().init(setting, key)
        check_groups(setting.cost_profile, self.channels, "fedavg would do the same")
        check_kept(groups_of(setting.cost_profile, self.channels), setting.cost_profile, "method.most", None)
        return {"order": {}, "arms": {}, "loss": {}}

    def plan(self, state: Any, view: View, key: Key) -> Plan:
        """Ask the selected devices to train networks pruned by the ratios of their bandits."""
        order = state["order"]
        bits = sum(map(len, order.values()))

        def task_of(ratio: float) -> Task:
            kept = {name: units_at(1 - ratio, len(units)) for name, units in order.items()}
            channels = tuple((name, tuple(sorted(order[name][:count]))) for name, count in kept.items())
            return Task(
                submodel=Submodel("thinner" if channels else "whole", channels=channels),
                local_sgd=(view.setting.training.local_sgd(view.round),),
                down=Payload(extra_bytes=math.ceil(bits / 8)),
                up=Payload(extra_bytes=_LOSS_BYTES),
                config={"ratio": ratio},
            )

        devices = view.choose(key).tolist()
        return Plan.by_kind(devices, [self.device_ratio(state, view.round, device, key) for device in devices], task_of)

    def local(self, task: Task) -> LocalRule:
        """Return SGD on the cross-entropy, and report its mean."""
        return LocalRule((LocalPhase(loss=_noted),), on_start=_start, on_finish=_finish)

    def combine(
        self, state: Any, global_model: ModelState, updates: Sequence[Update], server: ServerContext, key: Key
    ) -> Aggregate:
        """Return the mean of the completed models, and give the bandits their rewards."""
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
        """Return the rewards of the devices whose previous loss (in `before`) and new loss are finite."""
        seconds = {u.device: float(expected_s(u.task, setting, np.array([u.device]))[0]) for u in updates}
        mean = math.fsum(seconds.values()) / len(seconds)
        gaps = {device: max(self.least_gap, abs(each - mean) / mean) for device, each in seconds.items()}
        fell = {u.device: before.get(u.device, math.nan) - float(u.statistics["loss"]) for u in updates}
        return {device: by / gaps[device] for device, by in fell.items() if math.isfinite(by)}

    @property
    def _bandit(self) -> Bandit:
        return Bandit(self.most, self.discount, self.resolution)

    def device_ratio(self, state: Any, round_: int, device: int, key: Key) -> float:
        """Return the pruning ratio of a device in a round: 0 while the server has not seen a trained model."""
        if not state["order"]:
            return 0.0
        u = float(key.at(PlanStream.RATES, device).numpy().random())
        return self._bandit.ratio(state["arms"].get(device, _NEW), round_, u)


_NEW: _Arm = {"pulls": [], "cuts": []}


def order_of(params: Mapping[str, Tensor], cost_profile: CostProfile, which: Which) -> dict[str, list[int]]:
    """Return the units of every group that may be thinned, from the unit with the largest weights to the smallest.

    The size of a unit is the sum of the absolute weights that produce it, over all layers of its group.
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
    """Scratch of a job: the sum of the losses of all samples seen, and the number of these samples."""

    total: Tensor
    samples: int = 0


def _start(context: Context) -> LocalState:
    return LocalState(context.copy(context.global_model), _Losses(torch.zeros((), dtype=torch.float64)))


def _noted(local: LocalState, batch: Batch, context: Context) -> Tensor:
    """Return the mean cross-entropy, and add it to the scratch."""
    loss = objective_loss(local.weights, batch, context)
    local.scratch.total += loss.detach().cpu().double() * len(batch.y)
    local.scratch.samples += len(batch.y)
    return loss


def _finish(local: LocalState, context: Context) -> Finished:
    """Return the model and the mean loss of the samples seen."""
    return Finished(local.weights, statistics={"loss": float(local.scratch.total) / max(1, local.scratch.samples)})


PLUGINS = {"fedmp": FedMP}
