"""AFD: devices train thinner networks of the units that lowered the training loss before.

Source: N. Bouacida, J. Hou, H. Zang and X. Liu, "Adaptive Federated Dropout: Improving Communication Efficiency and
Generalization for Federated Learning" (2021); as the baseline of "Efficient Federated Learning with Heterogeneous Data
and Adaptive Dropout" (FedDHAD, arXiv 2507.10430), which leaves out a quarter of the units.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from annotated_types import Ge, Lt
from torch import Tensor

from edgesim.core.arrays import Arr
from edgesim.core.limits import PositiveFactor
from edgesim.core.method import Absent, Aggregate, Finished, LocalPhase, LocalRule, LocalState, Needs, ServerContext
from edgesim.core.rng import Key, PlanStream
from edgesim.core.task import Order, Payload, Plan, Submodel, Task
from edgesim.core.update import ModelState, Update
from edgesim.core.view import Setting, View
from edgesim.learning.submodel.selection import Units, Which, check_groups, check_kept, groups_of
from edgesim.learning.train.context import Batch, Context
from edgesim.learning.train.rules import objective_loss
from edgesim.methods.weighting.by_entry import MeanByEntry

_EVERYBODY = -1  # stands for all devices where they share one score map
_LOSS_BYTES = 4  # float32


@dataclass(frozen=True, kw_only=True)
class AFD(MeanByEntry):
    """To save bandwidth and computation, devices train thinner networks, chosen by what lowered the loss before.

    Adaptive federated dropout: a share `rate` of the units of every hidden layer stays on the server. In its first turn
    a device gets random units. If its training loss was lower than the time before, it keeps its units, and their
    scores grow by the relative gain. If the loss was not lower, new units are drawn without replacement, with
    probabilities proportional to score + `eps`. `variant`: every device has its own scores ("multi"), or all devices
    share the scores, the thinner network of a round and its mean loss, by data size ("single"). `score`: the gain is
    added to a score or replaces it ("assign"). `channels`: those that one layer makes ("inner"), or also those that
    several layers make and add to each other ("all"). The model's inputs and outputs stay. `absent`: a parameter is
    averaged over the devices that had it ("average_over_holders"), or devices without it count with the old one
    ("include_absent"). The training loss of a round is the mean over the samples of all local steps, each taken before
    its step. The metrics hold every device's `train_loss` and `repeats`, the number of devices that will keep their
    units.

    The paper does not specify the mean over devices for `"single"`. Here it goes by data size.

    Family: smaller networks. Formula: `score_u <- score_u + (loss before - loss now) / loss before for the units u that
    a device trained`. Paper: arXiv 2011.04050.
    """

    rate: Annotated[float, Ge(0), Lt(1)] = 0.25
    """In the FedDHAD paper a quarter of the units is left out: K - floor(K / 4) stay."""
    variant: Literal["multi", "single"] = "multi"
    """Bouacida et al. have one score map for each device, or one for all, `"single"`. The FedDHAD paper does not
    specify which it takes.
    """
    score: Literal["add", "assign"] = "add"
    """The gain is added to the scores of the kept channels. In third-party code it replaces them: `"assign"`."""
    eps: PositiveFactor = 1e-3
    """The paper does not specify this. Without it a unit of score 0 would never be tried again."""
    channels: Which = "inner"
    """Channels of convolutions and hidden neurons. The paper does not specify channels that a residual network adds to
    each other, which have to agree. They stay; `"all"` thins them too, each as one unit.
    """
    absent: Absent = "average_over_holders"
    """The FedDHAD paper averages each parameter over the devices that had it. With `"include_absent"` the other devices
    count with the old one.
    """
    needs: ClassVar[Needs] = Needs(feedback=True)

    def init(self, setting: Setting, key: Key) -> Any:
        """Return a server without losses so far. Raises ConfigError if the model has no unit to leave out."""
        if self.rate > 0:
            check_groups(setting.cost_profile, self.channels, f"method.rate must be 0 for it, found {self.rate:g}")
        groups = groups_of(setting.cost_profile, self.channels)
        check_kept(groups, setting.cost_profile, f"method.rate: at {self.rate:g}", partial(kept_count, self.rate))
        setting.cost.check(widths=1)
        return {"known": {}}

    def plan(self, state: Any, view: View, key: Key) -> Plan:
        """Ask the selected devices to train thinner networks."""
        setting, tasks = view.setting, dict[Submodel, Task]()
        total = sum(self._sizes(setting).values())
        local_sgd = (setting.training.local_sgd(view.round),)
        down, up = Payload(extra_bytes=math.ceil(total / 8)), Payload(extra_bytes=_LOSS_BYTES)
        devices, orders = view.choose(key).tolist(), []
        channels = {owner: self._kept(state, owner, setting, key) for owner in {self._owner(d) for d in devices}}
        for device in devices:
            submodel = Submodel(f"drop{self.rate:g}", width=1, channels=channels[self._owner(device)])
            task = tasks.setdefault(submodel, Task(submodel=submodel, local_sgd=local_sgd, down=down, up=up))
            orders.append(Order(device, task))
        return Plan(tuple(orders))

    def local(self, task: Task) -> LocalRule:
        """Return plain SGD on the cross-entropy that reports its mean loss."""

        def start(context: Context) -> LocalState:
            return LocalState(context.copy(context.global_model), _Losses())

        def noted_loss(local: LocalState, batch: Batch, context: Context) -> Tensor:
            loss = objective_loss(local.weights, batch, context)
            local.scratch.losses.append(float(loss.detach()) * len(batch.y))
            local.scratch.samples += len(batch.y)
            return loss

        def finish(local: LocalState, context: Context) -> Finished:
            seen = local.scratch
            return Finished(local.weights, statistics={"loss": math.fsum(seen.losses) / max(1, seen.samples)})

        return LocalRule((LocalPhase(loss=noted_loss),), on_start=start, on_finish=finish)

    def combine(
        self, state: Any, global_model: ModelState, updates: Sequence[Update], server: ServerContext, key: Key
    ) -> Aggregate:
        """Average each parameter over the devices that had it, by data size, and learn from their losses.

        A device that took no step has no loss. If all devices share one network and one of an earlier round came late,
        the newest counts.
        """
        weights = self.update_weights(updates, server.setting)
        known = dict(state["known"])
        trained = [(m, w) for m, w in zip(updates, weights, strict=True) if m.steps]
        heard: list[tuple[int, Units, float]] = []  # owner of scores, units, loss
        if self.variant == "multi":
            heard = [(m.device, m.task.submodel.channels, m.statistics["loss"]) for m, _ in trained]
        elif trained:
            channels = trained[-1][0].task.submodel.channels
            same = [(m.statistics["loss"], w) for m, w in trained if m.task.submodel.channels == channels]
            of_devices, shares = zip(*same, strict=True)
            heard = [(_EVERYBODY, channels, float(np.average(of_devices, weights=shares)))]
        for owner, channels, loss in heard:
            known[owner] = self._learned(known.get(owner), channels, loss, server.setting)
        owners = {self._owner(m.device) for m in updates} & known.keys()
        repeats = sum(known[owner]["repeats"] for owner in owners)
        losses = {m.device: m.statistics["loss"] for m in updates if m.steps}
        model = server.mean(global_model, updates, weights, self.absent)
        return Aggregate({"known": known}, model, metrics={"train_loss": losses, "repeats": float(repeats)})

    def _owner(self, device: int) -> int:
        return device if self.variant == "multi" else _EVERYBODY

    def _sizes(self, setting: Setting) -> dict[str, int]:
        """Return the size of every group of units that the method thins."""
        return {group.name: group.size for group in groups_of(setting.cost_profile, self.channels)}

    def _kept(self, state: Any, owner: int, setting: Setting, key: Key) -> Units:
        """Return the units of the next network of a device, or of all devices."""
        old = state["known"].get(owner)
        if old is not None and old["repeats"]:
            channels: Units = old["channels"]
            return channels
        draws = key.at(PlanStream.CHANNELS, owner - _EVERYBODY).numpy()
        chances = {name: np.full(size, 1 / size) for name, size in self._sizes(setting).items()}
        if old is not None:
            chances = {name: chances_of(score, self.eps) for name, score in old["scores"].items()}
        found = []
        for name, chance in chances.items():
            kept = draws.choice(len(chance), kept_count(self.rate, len(chance)), replace=False, p=chance)
            found.append((name, tuple(np.sort(kept).tolist())))
        return tuple(found)

    def _learned(self, old: Mapping[str, Any] | None, channels: Units, loss: float, setting: Setting) -> dict[str, Any]:
        """Return the knowledge after a training loss: scores, the loss, the units, and whether they stay."""
        if old is None:
            scores = {name: np.zeros(size) for name, size in self._sizes(setting).items()}
            return {"scores": scores, "loss": loss, "channels": channels, "repeats": False}
        better = loss < old["loss"]
        scores = old["scores"]
        if better:
            gain = (old["loss"] - loss) / old["loss"]
            scores = {name: scores[name].copy() for name, _ in channels}
            for name, kept in channels:
                places = list(kept)
                scores[name][places] = gain + (scores[name][places] if self.score == "add" else 0.0)
        return {"scores": scores, "loss": loss, "channels": channels, "repeats": better}


def kept_count(rate: float, size: int) -> int:
    """Return the number of `size` units that stay without a share `rate` of them, rounded up; at least one."""
    return max(1, size - math.floor(rate * size + 1e-9))  # 0.29 x 100 is a little less than 29


def chances_of(scores: Arr, eps: float) -> Arr:
    """Return chances proportional to score + eps, shape of `scores`."""
    chances: Arr = (scores + eps) / (scores + eps).sum()
    return chances


@dataclass(slots=True)
class _Losses:
    """Scratch of a job: the loss of each step so far, summed over its batch, and the samples."""

    losses: list[float] = field(default_factory=list)
    samples: int = 0


PLUGINS = {"afd": AFD}
