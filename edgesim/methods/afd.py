"""AFD: devices train thinner networks, drawn by how much the units that they kept before lowered the training loss.

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

_EVERYBODY = -1  # stands for the devices that share one score map
_LOSS_BYTES = 4  # float32


@dataclass(frozen=True, kw_only=True)
class AFD(MeanByEntry):
    """Adaptive federated dropout: a share `rate` of the units of every hidden layer stays on the server.

    A device that comes for the first time gets random units. If its training loss was lower than the time before it
    keeps its units, and their scores grow by the relative gain; if not, new ones are drawn without replacement, with
    chances proportional to score + `eps`. `variant`: every device has scores of its own ("multi"), or all share scores,
    the thinner network of a round and its mean loss, by data size ("single"). `score`: the gain is added to a score or
    takes its place ("assign"). `channels`: those that one layer makes ("inner"), or also those that several make, as
    their outputs are added ("all"); the model's inputs and outputs stay. `absent`: a parameter is averaged over who had
    it ("average_over_holders"), or who had not counts with the old one ("include_absent"). The training loss is the
    mean over the samples of all steps, each taken before its step. The metrics hold every device's `train_loss` and how
    many `repeats` will keep their units.

    The training loss of a round is the mean over the samples of all local steps, each before its step. Silent: for
    `"single"` the mean over devices goes by data size.
    """

    rate: Annotated[float, Ge(0), Lt(1)] = 0.25
    """The FedDHAD paper: a quarter of the units is left out, K - floor(K / 4) stay."""
    variant: Literal["multi", "single"] = "multi"
    """Bouacida et al. have one score map a device, and one for all, `"single"`; the FedDHAD paper does not say which.
    """
    score: Literal["add", "assign"] = "add"
    """The gain is added to the scores of the kept channels; third-party code lets it take their place: `"assign"`."""
    eps: PositiveFactor = 1e-3
    """Silent: without it a unit of score 0 would never be tried again."""
    channels: Which = "inner"
    """Convolutions' channels and hidden neurons. Silent about channels that a residual network adds to each other,
    which have to agree: they stay; `"all"` thins them too, each as one unit.
    """
    absent: Absent = "average_over_holders"
    """The FedDHAD paper averages each parameter over who had it. `"include_absent"` lets the others count with the old
    one.
    """
    needs: ClassVar[Needs] = Needs(feedback=True)

    def init(self, setting: Setting, key: Key) -> Any:
        """Return a server that has heard of nobody. Raises ConfigError if the model has no unit to leave out."""
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
        """Return plain SGD on the cross-entropy that tells its mean loss."""
        return LocalRule((LocalPhase(loss=_noted),), on_start=_start, on_finish=_finish)

    def combine(
        self, state: Any, global_model: ModelState, updates: Sequence[Update], server: ServerContext, key: Key
    ) -> Aggregate:
        """Average each parameter over the devices that had it, by data size, and learn from their losses."""
        weights = self.update_weights(updates, server.setting)
        known = dict(state["known"])
        for owner, channels, loss in self._heard([(m, w) for m, w in zip(updates, weights, strict=True) if m.steps]):
            known[owner] = self._learned(known.get(owner), channels, loss, server.setting)
        owners = {self._owner(m.device) for m in updates} & known.keys()
        repeats = sum(known[owner]["repeats"] for owner in owners)
        losses = {m.device: m.statistics["loss"] for m in updates if m.steps}
        model = server.mean(global_model, updates, weights, self.absent)
        return Aggregate({"known": known}, model, metrics={"train_loss": losses, "repeats": float(repeats)})

    def _owner(self, device: int) -> int:
        return device if self.variant == "multi" else _EVERYBODY

    def _sizes(self, setting: Setting) -> dict[str, int]:
        """Return the size of every group of units that is thinned."""
        return {group.name: group.size for group in groups_of(setting.cost_profile, self.channels)}

    def _kept(self, state: Any, owner: int, setting: Setting, key: Key) -> Units:
        """Return the units that the next network of a device, or of all, keeps."""
        old = state["known"].get(owner)
        if old is not None and old["repeats"]:
            channels: Units = old["channels"]
            return channels
        draws = key.at(PlanStream.CHANNELS, owner - _EVERYBODY).numpy()
        chances = {name: np.full(size, 1 / size) for name, size in self._sizes(setting).items()}
        if old is not None:
            chances = {name: chances_of(score, self.eps) for name, score in old["scores"].items()}
        return tuple((name, _drawn(chance, self.rate, draws)) for name, chance in chances.items())

    def _heard(self, updates: Sequence[tuple[Update, float]]) -> list[tuple[int, Units, float]]:
        """Return whose scores change, the units that they had and the training loss, of messages and their weights.

        If all share one network and one of an earlier round came late, the newest counts. Who took no step has no loss.
        """
        if self.variant == "multi":
            return [(m.device, m.task.submodel.channels, m.statistics["loss"]) for m, _ in updates]
        if not updates:
            return []
        channels = updates[-1][0].task.submodel.channels
        same = [(m.statistics["loss"], w) for m, w in updates if m.task.submodel.channels == channels]
        losses, shares = zip(*same, strict=True)
        return [(_EVERYBODY, channels, float(np.average(losses, weights=shares)))]

    def _learned(self, old: Mapping[str, Any] | None, channels: Units, loss: float, setting: Setting) -> dict[str, Any]:
        """Return what is known after a training loss: scores, that loss, the units, and whether they stay."""
        if old is None:
            scores = {name: np.zeros(size) for name, size in self._sizes(setting).items()}
            return {"scores": scores, "loss": loss, "channels": channels, "repeats": False}
        better = loss < old["loss"]
        scores = old["scores"]
        if better:
            gain = (old["loss"] - loss) / old["loss"]
            scores = {name: self._scored(scores[name], kept, gain) for name, kept in channels}
        return {"scores": scores, "loss": loss, "channels": channels, "repeats": better}

    def _scored(self, scores: Arr, kept: Sequence[int], gain: float) -> Arr:
        scores, places = scores.copy(), list(kept)
        scores[places] = gain + (scores[places] if self.score == "add" else 0.0)
        return scores


def kept_count(rate: float, size: int) -> int:
    """Return how many of `size` units stay without a share `rate` of them, rounded up; at least one."""
    return max(1, size - math.floor(rate * size + 1e-9))  # 0.29 x 100 is a little less than 29


def chances_of(scores: Arr, eps: float) -> Arr:
    """Return chances proportional to score + eps, shape of `scores`."""
    chances: Arr = (scores + eps) / (scores + eps).sum()
    return chances


def _drawn(chances: Arr, rate: float, draws: np.random.Generator) -> tuple[int, ...]:
    """Return random units, ascending."""
    kept = draws.choice(len(chances), kept_count(rate, len(chances)), replace=False, p=chances)
    return tuple(np.sort(kept).tolist())


@dataclass(slots=True)
class _Losses:
    """Scratch of a job: the loss of each step so far, summed over its batch, and the samples."""

    losses: list[float] = field(default_factory=list)
    samples: int = 0


def _start(context: Context) -> LocalState:
    return LocalState(context.copy(context.global_model), _Losses())


def _noted(local: LocalState, batch: Batch, context: Context) -> Tensor:
    """Return the cross-entropy and write down its value, as a sum over the batch."""
    loss = objective_loss(local.weights, batch, context)
    local.scratch.losses.append(float(loss.detach()) * len(batch.y))
    local.scratch.samples += len(batch.y)
    return loss


def _finish(local: LocalState, context: Context) -> Finished:
    """Return the model to send and the mean loss."""
    seen = local.scratch
    return Finished(local.weights, statistics={"loss": math.fsum(seen.losses) / max(1, seen.samples)})


PLUGINS = {"afd": AFD}
