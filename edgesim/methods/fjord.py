"""FjORD: a device trains the first units of every layer, and for every batch a random share of those that it may.

Source: S. Horvath et al., "FjORD: Fair and Accurate Federated Learning under heterogeneous targets with Ordered
Dropout" (2021), with the settings of Flower's baseline, written with its authors; as the baseline of "Efficient
Federated Learning with Heterogeneous Data and Adaptive Dropout" (FedDHAD, arXiv 2507.10430).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch.nn.functional as F
from annotated_types import MinLen
from torch import Tensor

from edgesim.contracts import (
    Bundle,
    Ids,
    LocalPhase,
    LocalRule,
    Merged,
    Message,
    Needs,
    Order,
    Part,
    Pass,
    Payload,
    Plan,
    Setting,
    Stretch,
    Task,
    View,
)
from edgesim.errors import ConfigError
from edgesim.learning.context import Batch, Context
from edgesim.learning.loop import gradients
from edgesim.learning.merge import Absent, mean_by_size
from edgesim.learning.rules import cross_entropy
from edgesim.learning.submodels import Units, Which, check_groups, check_kept, groups_of, units_at
from edgesim.numbers import PositiveShare
from edgesim.rng import Key

_WIDTHS = 1  # sub-stream of a plan's key; selection draws from the key itself and from those of one index


@dataclass(frozen=True, kw_only=True)
class Ordered:
    """Ordered dropout: width p has the first ceil(p n) of the n units of every hidden layer. Subclasses train them.

    `widths`: the shares of units, rising to 1. `tiers` gives each device its largest, as which it is sent and sends
    the model: equally many devices each, drawn once ("random") or by speed, the fastest the widest ("speed"); or level
    i has the i-th ("level"). For every batch a device draws one of the widths up to its own and takes a step in that
    slice. `units`: those that one layer makes ("inner"), or also those that several make, as their outputs are added
    ("all"); the model's inputs and outputs stay. `absent`: a parameter is averaged over who had it ("skip"), or who had
    not counts with the old one ("keep_old").

    Differs: running statistics are kept per width in the source. The global model is tested at full width only, so
    only those are kept: steps at full width move them, and only devices that may train it send and receive them.
    """

    widths: Annotated[tuple[PositiveShare, ...], MinLen(1)] = (0.2, 0.4, 0.6, 0.8, 1.0)
    tiers: Literal["random", "level", "speed"] = "random"
    units: Which = "inner"
    absent: Absent = "skip"
    needs: ClassVar[Needs] = Needs()

    def init(self, setting: Setting, key: Key) -> Any:
        """Return the rank of every device's largest width, from 1. Raises ConfigError if widths or tiers do not fit."""
        count = len(self.widths)
        if list(self.widths) != sorted(set(self.widths)) or self.widths[-1] != 1:
            raise ConfigError(f"method.widths: must rise to 1, the whole model; found {list(self.widths)}")
        if count > 1:
            check_groups(setting.card, self.units, f"method.widths must be [1.0] for it, found {list(self.widths)}")
        groups = groups_of(setting.card, self.units)
        for width in self.widths:
            check_kept(groups, setting.card, f"method.widths: at {width:g}", partial(units_at, width))
        setting.cost.check(widths=count)
        return {"tier": self._tiers(setting, key).tolist()}

    def plan(self, state: Any, view: View, key: Key) -> Plan:
        """Ask the selected devices to train their slices, each with widths of its own, drawn from a seed."""
        parts = [self._part(rank, view.setting) for rank in range(1, len(self.widths) + 1)]
        orders = []
        for device in view.choose(key).tolist():
            seed = key.at(_WIDTHS, device).exact_word()
            orders.append(Order(device, self._task(device, parts[: state["tier"][device]], seed, view)))
        return Plan(tuple(orders))

    def merge(self, state: Any, base: Bundle, got: Sequence[Message], view: View, tools: Any, key: Key) -> Merged:
        """Average each parameter over the devices whose slice had it, by data size; what nobody had stays."""
        return mean_by_size(state, base, got, self.absent, view.setting.card)

    def _tiers(self, setting: Setting, key: Key) -> Ids:
        """Return the rank of every device's largest width, shape (devices,)."""
        devices, count = len(setting.samples), len(self.widths)
        if self.tiers == "level":
            if setting.level.max() != count:
                raise ConfigError(
                    f"fleet.level: method.tiers 'level' needs levels up to the {count} of method.widths, the last of "
                    f"which is the whole model; found levels up to {setting.level.max()}"
                )
            return setting.level
        slowness = key.numpy().random(devices) if self.tiers == "random" else -setting.flops_per_s
        place = np.empty(devices, dtype=np.int64)
        place[np.argsort(slowness, kind="stable")] = np.arange(devices)
        return count - place * count // devices  # the first always has the whole model

    def _part(self, rank: int, setting: Setting) -> Part:
        width = self.widths[rank - 1]
        return Part(f"width{width:g}", width=rank, units=self._units(width, setting))

    def _units(self, width: float, setting: Setting) -> Units:
        """Return the units at a width of the groups that are sliced."""
        groups = groups_of(setting.card, self.units)
        return tuple((group.name, tuple(range(units_at(width, group.size)))) for group in groups)

    def _task(self, device: int, parts: Sequence[Part], seed: int, view: View) -> Task:
        """Return the task of a device that may train these slices."""
        setting, stretch = view.setting, view.setting.training.stretch(view.round)
        sizes = batch_sizes(stretch, int(setting.samples[device]), setting.card.drop_single)
        samples = np.bincount(drawn_ranks(seed, len(parts), len(sizes)), sizes, minlength=len(parts) + 1).astype(int)
        passes = tuple(Pass(samples=n, part=part) for part, n in zip(parts, samples[1:].tolist(), strict=True) if n)
        kinds = {"params", "buffers"} if len(parts) == len(self.widths) else {"params"}
        payload = Payload(kinds=frozenset(kinds))
        return Task(
            part=parts[-1],
            stretches=(stretch,),
            down=payload,
            up=payload,
            passes=(*passes, *self._beside(passes)),
            knobs={"seed": float(seed)},
        )

    def _beside(self, trained: tuple[Pass, ...]) -> tuple[Pass, ...]:
        """Return the work beside these passes, which train slices: the update of all that the device has."""
        return (Pass(times=0.0),)


@dataclass(frozen=True, kw_only=True)
class FjORD(Ordered):
    """Ordered dropout: devices train the first units of every hidden layer, as many as their draw says.

    `distill`: a device also trains its largest width on the labels, and the drawn one on what that one says. Other
    keys: see Ordered.
    """

    distill: bool = False

    def local(self, task: Task) -> LocalRule:
        """Return SGD in a slice of the device's network that is drawn for every batch."""
        phase = LocalPhase(loss=cross_entropy, gradient=_distilled if self.distill else plain)
        return LocalRule((phase,), start=start)

    def _beside(self, trained: tuple[Pass, ...]) -> tuple[Pass, ...]:
        return (Pass(times=float(self.distill)),)  # the pass of the largest width


def drawn_ranks(seed: int, largest: int, steps: int) -> Ids:
    """Return the rank, from 1 to `largest`, of the width of each SGD step, shape (steps,)."""
    return Key(seed).numpy().integers(1, largest + 1, size=steps)


def batch_sizes(stretch: Stretch, n_samples: int, drop_single: bool) -> Ids:
    """Return the samples of each SGD step of a stretch, shape (steps,)."""
    samples, steps = replace(stretch, epochs=1, steps=0).amount(np.array([n_samples]), drop_single)
    left = samples[0] - stretch.batch * np.arange(steps[0])
    return np.resize(np.minimum(left, stretch.batch), stretch.amount(np.array([n_samples]), drop_single)[1][0])


# --- on the device ------------------------------------------------------------------------------------------------


def start(base: Bundle, own: Bundle | None, context: Context) -> Bundle:
    """Return a copy of the model received with a kind of its own: the widths to come and where their slices lie."""
    task, (stretch,) = context.task, context.task.stretches
    steps = len(batch_sizes(stretch, len(context.shard), context.drop_single))
    ranks = drawn_ranks(int(task.knobs["seed"]), task.part.width, steps).tolist()
    slices = {part.width: context.corners(part) for part in (task.part, *(p.part for p in task.passes if p.part))}
    return {**context.copy(base), "ordered": {"ranks": iter(ranks), "slices": slices}}


def leaves_of(w: Bundle, context: Context) -> dict[str, Tensor]:
    """Return the trained parameters as tensors of which slices have gradients in the whole."""
    return {name: w["params"][name].detach().requires_grad_() for name in context.trained}


def slice_of(leaves: Mapping[str, Tensor], w: Bundle, rank: int, moves: bool) -> Bundle:
    """Return the weights of the width of a rank, as views. `moves`: running statistics are those being trained."""
    corners = w["ordered"]["slices"][rank]
    buffers = w["buffers"] if moves else {name: tensor[corners[name]] for name, tensor in w["buffers"].items()}
    return {"params": {name: leaf[corners[name]] for name, leaf in leaves.items()}, "buffers": buffers}


def plain(w: Bundle, batch: Batch, context: Context) -> list[Tensor]:
    """Return the gradients of the cross-entropy at the width that is next."""
    leaves, rank = leaves_of(w, context), next(w["ordered"]["ranks"])
    logits = context.forward(slice_of(leaves, w, rank, moves=rank == context.task.part.width), batch.x)
    return gradients(F.cross_entropy(logits, batch.y), list(leaves.values()))


def _distilled(w: Bundle, batch: Batch, context: Context) -> list[Tensor]:
    leaves, rank = leaves_of(w, context), next(w["ordered"]["ranks"])
    widest = context.forward(slice_of(leaves, w, context.task.part.width, moves=True), batch.x)
    logits = context.forward(slice_of(leaves, w, rank, moves=False), batch.x)
    told = widest.detach().softmax(dim=1)
    loss = F.cross_entropy(widest, batch.y) + F.cross_entropy(logits, told)
    return gradients(loss, list(leaves.values()))


PARTS = {"fjord": FjORD}
