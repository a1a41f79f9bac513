"""AFD: devices train thinner networks, drawn by how much the units that they kept before lowered the training loss.

Source: N. Bouacida, J. Hou, H. Zang and X. Liu, "Adaptive Federated Dropout: Improving Communication Efficiency and
Generalization for Federated Learning" (2021); as the baseline of "Efficient Federated Learning with Heterogeneous Data
and Adaptive Dropout" (FedDHAD, arXiv 2507.10430), which leaves out a quarter of the units.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from annotated_types import Ge, Lt
from torch import Tensor

from edgesim.contracts import (
    Arr,
    Bundle,
    LocalPhase,
    LocalRule,
    Merged,
    Message,
    Needs,
    Order,
    Part,
    Payload,
    Plan,
    Setting,
    Task,
    View,
)
from edgesim.learning.context import Batch, Context
from edgesim.learning.merge import Absent, finite, mean_of_holders
from edgesim.learning.rules import cross_entropy
from edgesim.learning.submodels import Units, Which, check_groups, check_kept, groups_of
from edgesim.numbers import PositiveNumber
from edgesim.rng import Key

_UNITS = 1  # sub-stream of a plan's key; selection draws from the key itself and from those of one index
_EVERYBODY = -1  # stands for the devices that share one score map
_LOSS_BYTES = 4  # float32


@dataclass(frozen=True, kw_only=True)
class AFD:
    """Adaptive federated dropout: a share `rate` of the units of every hidden layer stays on the server.

    A device that comes for the first time gets random units. If its training loss was lower than the time before it
    keeps its units, and their scores grow by the relative gain; if not, new ones are drawn without replacement, with
    chances proportional to score + `eps`. `variant`: every device has scores of its own ("multi"), or all share scores,
    the thinner network of a round and its mean loss, by data size ("single"). `score`: the gain is added to a score or
    takes its place ("assign"). `units`: those that one layer makes ("inner"), or also those that several make, as their
    outputs are added ("all"); the model's inputs and outputs stay. `absent`: a parameter is averaged over who had it
    ("skip"), or who had not counts with the old one ("keep_old"). The training loss is the mean over the samples of all
    steps, each taken before its step. The notes hold every device's `train_loss` and how many `repeats` will keep their
    units.
    """

    rate: Annotated[float, Ge(0), Lt(1)] = 0.25
    variant: Literal["multi", "single"] = "multi"
    score: Literal["add", "assign"] = "add"
    eps: PositiveNumber = 1e-3
    units: Which = "inner"
    absent: Absent = "skip"
    needs: ClassVar[Needs] = Needs(feedback=True)

    def init(self, setting: Setting, key: Key) -> Any:
        """Return a server that has heard of nobody. Raises ConfigError if the model has no unit to leave out."""
        if self.rate > 0:
            check_groups(setting.card, self.units, f"method.rate must be 0 for it, found {self.rate:g}")
        groups = groups_of(setting.card, self.units)
        check_kept(groups, setting.card, f"method.rate: at {self.rate:g}", partial(kept_count, self.rate))
        setting.cost.check(widths=1)
        return {"known": {}}

    def plan(self, state: Any, view: View, key: Key) -> Plan:
        """Ask the selected devices to train thinner networks."""
        setting, tasks = view.setting, dict[Part, Task]()
        total = sum(self._sizes(setting).values())
        stretches = (setting.training.stretch(view.round),)
        down, up = Payload(extra_bytes=math.ceil(total / 8)), Payload(extra_bytes=_LOSS_BYTES)
        devices, orders = view.choose(key).tolist(), []
        units = {owner: self._kept(state, owner, setting, key) for owner in {self._owner(d) for d in devices}}
        for device in devices:
            part = Part(f"drop{self.rate:g}", width=1, units=units[self._owner(device)])
            task = tasks.setdefault(part, Task(part=part, stretches=stretches, down=down, up=up))
            orders.append(Order(device, task))
        return Plan(tuple(orders))

    def local(self, task: Task) -> LocalRule:
        """Return plain SGD on the cross-entropy that tells its mean loss."""
        return LocalRule((LocalPhase(loss=_noted),), start=_start, finish=_finish)

    def merge(self, state: Any, base: Bundle, got: Sequence[Message], view: View, tools: Any, key: Key) -> Merged:
        """Average each parameter over the devices that had it, by data size, and learn from their losses."""
        usable, notes = finite(got)
        if not usable:
            return Merged(state, None, notes=notes)
        weights = [m.samples * m.weight for m in usable]
        known = dict(state["known"])
        for owner, units, loss in self._heard([(m, w) for m, w in zip(usable, weights, strict=True) if m.steps]):
            known[owner] = self._learned(known.get(owner), units, loss, view.setting)
        owners = {self._owner(m.device) for m in usable} & known.keys()
        repeats = sum(known[owner]["repeats"] for owner in owners)
        losses = {m.device: m.signals["loss"] for m in usable if m.steps}
        model = mean_of_holders(base, usable, weights, absent=self.absent, card=view.setting.card)
        return Merged({"known": known}, model, notes={"train_loss": losses, "repeats": float(repeats), **notes})

    def _owner(self, device: int) -> int:
        return device if self.variant == "multi" else _EVERYBODY

    def _sizes(self, setting: Setting) -> dict[str, int]:
        """Return the size of every group of units that is thinned."""
        return {group.name: group.size for group in groups_of(setting.card, self.units)}

    def _kept(self, state: Any, owner: int, setting: Setting, key: Key) -> Units:
        """Return the units that the next network of a device, or of all, keeps."""
        old = state["known"].get(owner)
        if old is not None and old["repeats"]:
            units: Units = old["units"]
            return units
        draws = key.at(_UNITS, owner - _EVERYBODY).numpy()
        chances = {name: np.full(size, 1 / size) for name, size in self._sizes(setting).items()}
        if old is not None:
            chances = {name: chances_of(score, self.eps) for name, score in old["scores"].items()}
        return tuple((name, _drawn(chance, self.rate, draws)) for name, chance in chances.items())

    def _heard(self, got: Sequence[tuple[Message, float]]) -> list[tuple[int, Units, float]]:
        """Return whose scores change, the units that they had and the training loss, of messages and their weights.

        If all share one network and one of an earlier round came late, the newest counts. Who took no step has no loss.
        """
        if self.variant == "multi":
            return [(m.device, m.task.part.units, m.signals["loss"]) for m, _ in got]
        if not got:
            return []
        units = got[-1][0].task.part.units
        same = [(m.signals["loss"], w) for m, w in got if m.task.part.units == units]
        losses, shares = zip(*same, strict=True)
        return [(_EVERYBODY, units, float(np.average(losses, weights=shares)))]

    def _learned(self, old: Mapping[str, Any] | None, units: Units, loss: float, setting: Setting) -> dict[str, Any]:
        """Return what is known after a training loss: scores, that loss, the units, and whether they stay."""
        if old is None:
            scores = {name: np.zeros(size) for name, size in self._sizes(setting).items()}
            return {"scores": scores, "loss": loss, "units": units, "repeats": False}
        better = loss < old["loss"]
        scores = old["scores"]
        if better:
            gain = (old["loss"] - loss) / old["loss"]
            scores = {name: self._scored(scores[name], kept, gain) for name, kept in units}
        return {"scores": scores, "loss": loss, "units": units, "repeats": better}

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


def _start(base: Bundle, own: Bundle | None, context: Context) -> Bundle:
    return {**context.copy(base), "seen": {"losses": [], "samples": []}}


def _noted(w: Bundle, batch: Batch, context: Context) -> Tensor:
    """Return the cross-entropy and write down its value, as a sum over the batch."""
    loss = cross_entropy(w, batch, context)
    w["seen"]["losses"].append(float(loss.detach()) * len(batch.y))
    w["seen"]["samples"].append(len(batch.y))
    return loss


def _finish(w: Bundle, context: Context) -> tuple[Bundle, None, Mapping[str, Any]]:
    seen = w["seen"]
    return w, None, {"loss": math.fsum(seen["losses"]) / max(1, sum(seen["samples"]))}


PARTS = {"afd": AFD}
