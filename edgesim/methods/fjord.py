"""FjORD: a device trains the first units of every layer, for every batch a random share of them up to its own width.

Source: S. Horvath et al., "FjORD: Fair and Accurate Federated Learning under heterogeneous targets with Ordered
Dropout" (2021), with the settings of Flower's baseline, written with its authors; as the baseline of "Efficient
Federated Learning with Heterogeneous Data and Adaptive Dropout" (FedDHAD, arXiv 2507.10430).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

import numpy as np
import torch.nn.functional as F
from annotated_types import MinLen
from torch import Tensor

from edgesim.core.arrays import Ids
from edgesim.core.errors import ConfigError
from edgesim.core.limits import PositiveShare
from edgesim.core.local_sgd import LocalSGD
from edgesim.core.method import Absent, LocalPhase, LocalRule, LocalState
from edgesim.core.rng import Key, PlanStream
from edgesim.core.task import Order, Pass, Payload, Plan, Submodel, Task
from edgesim.core.update import ModelState
from edgesim.core.view import Setting, View
from edgesim.learning.submodel.selection import Units, Which, check_groups, check_kept, groups_of, units_at
from edgesim.learning.train.context import Batch, Context
from edgesim.learning.train.loop import gradients
from edgesim.methods.weighting.by_entry import MeanByEntry


@dataclass(frozen=True, kw_only=True)
class Ordered(MeanByEntry):
    """Ordered dropout: width p has the first ceil(p n) of the n units of every hidden layer. Subclasses train them.

    `widths`: the shares of units, rising to 1. `tiers` gives each device its largest width, at which it receives and
    sends the model. With "random" equally many devices have each width, drawn once. With "speed" too, but the fastest
    devices have the widest. With "level" devices of level i have the i-th width, with "all" all devices have the whole
    model. For every batch a device draws one of the widths up to its own and takes a step in that slice. `channels`:
    only channels that one layer makes ("inner"), or also channels that several layers make because their outputs are
    added ("all"). The model's inputs and outputs stay whole. `absent`: a parameter is averaged over the devices that
    had it ("average_over_holders"), or the other devices count with the old value ("include_absent").

    Differs: the source keeps running statistics for each width. Here the global model is tested at full width only, so
    only these are kept: steps at full width move them, and only devices that may train at full width send and receive
    them.
    """

    widths: Annotated[tuple[PositiveShare, ...], MinLen(1)] = (0.2, 0.4, 0.6, 0.8, 1.0)
    """Horvath et al. The FedDHAD paper tuned them and does not give them. Its printed costs, 0.74 to 0.88 of the whole
    model, suggest `[0.6, 0.8, 1.0]`.
    """
    tiers: Literal["random", "level", "speed", "all"] = "random"
    """Flower's baseline, by the authors: equally many devices of each width. `"speed"` gives the slowest devices the
    narrowest width, `"level"` follows the fleet's levels.
    """
    channels: Which = "inner"
    """Flower's baseline slices all channels of its residual network: `"all"`. The FedDHAD paper does not specify this.
    The default is the same as in `afd`, so that both leave out the same units.
    """
    absent: Absent = "average_over_holders"
    """Each ring of units is averaged over the devices that have it, by data size. `"include_absent"` as for `afd`."""

    def init(self, setting: Setting, key: Key) -> Any:
        """Return the rank of every device's largest width, from 1. Raises ConfigError if widths or tiers do not fit."""
        count = len(self.widths)
        if list(self.widths) != sorted(set(self.widths)) or self.widths[-1] != 1:
            raise ConfigError(f"method.widths: must rise to 1, the whole model; found {list(self.widths)}")
        if count > 1:
            check_groups(
                setting.cost_profile, self.channels, f"method.widths must be [1.0] for it, found {list(self.widths)}"
            )
        groups = groups_of(setting.cost_profile, self.channels)
        for width in self.widths:
            check_kept(groups, setting.cost_profile, f"method.widths: at {width:g}", partial(units_at, width))
        setting.cost.check(widths=count)
        own = setting.of_members()
        devices = own.devices
        if self.tiers == "level":
            if own.level.max() != count:
                raise ConfigError(
                    f"fleet.level: method.tiers 'level' needs levels up to the {count} of method.widths, the last of "
                    f"which is the whole model; found levels up to {own.level.max()}"
                )
            tier = setting.level
        elif self.tiers == "all":
            tier = setting.by_device(np.full(devices, count))
        else:
            slowness = key.numpy().random(devices) if self.tiers == "random" else -own.flops_per_s
            place = np.empty(devices, dtype=np.int64)
            place[np.argsort(slowness, kind="stable")] = np.arange(devices)
            tier = setting.by_device(count - place * count // devices)  # the first always has the whole model
        return {"tier": tier.tolist()}

    def plan(self, state: Any, view: View, key: Key) -> Plan:
        """Ask the selected devices to train their slices, each device with widths drawn from a seed of its own."""
        submodels = [self.submodel(rank, view.setting) for rank in range(1, len(self.widths) + 1)]
        orders = []
        for device in view.choose(key).tolist():
            seed = key.at(PlanStream.CHANNELS, device).exact_word()
            orders.append(Order(device, self.device_task(device, submodels[: state["tier"][device]], seed, view)))
        return Plan(tuple(orders))

    def submodel(self, rank: int, setting: Setting) -> Submodel:
        """Return the slice of the width of a rank, counted from 1."""
        width = self.widths[rank - 1]
        return Submodel(f"width{width:g}", width=rank, channels=self.units(width, setting))

    def units(self, width: float, setting: Setting) -> Units:
        """Return the units at a width for each group that is sliced."""
        groups = groups_of(setting.cost_profile, self.channels)
        return tuple((group.name, tuple(range(units_at(width, group.size)))) for group in groups)

    def device_task(self, device: int, submodels: Sequence[Submodel], seed: int, view: View) -> Task:
        """Return the task of a device that may train these slices."""
        setting, sgd = view.setting, view.setting.training.local_sgd(view.round)
        sizes = batch_sizes(sgd, int(setting.samples[device]), setting.cost_profile.drop_single)
        samples = np.bincount(
            drawn_ranks(seed, len(submodels), len(sizes)), sizes, minlength=len(submodels) + 1
        ).astype(int)
        passes = tuple(
            Pass(samples=n, submodel=submodel) for submodel, n in zip(submodels, samples[1:].tolist(), strict=True) if n
        )
        collections = {"params", "buffers"} if len(submodels) == len(self.widths) else {"params"}
        payload = Payload(collections=frozenset(collections))
        return Task(
            submodel=submodels[-1],
            local_sgd=(sgd,),
            down=payload,
            up=payload,
            passes=(*passes, *self.extra_passes(passes)),
            config={"seed": seed},
        )

    def extra_passes(self, trained: tuple[Pass, ...]) -> tuple[Pass, ...]:
        """Return the work besides the training of slices in `trained`: the update step of all the device's weights."""
        return (Pass(times=0.0),)


@dataclass(frozen=True, kw_only=True)
class FjORD(Ordered):
    """Ordered dropout: for every batch a device trains the first units of every hidden layer, of a random width.

    `distill`: a device also trains its largest width on the labels, and the drawn width on the outputs of the largest.
    Other keys: see Ordered.

    Flower's baseline keeps running statistics for each width. As the model is tested at full width, only these are kept
    here: steps at full width move them, and they travel only to and from devices that may train at full width.

    Family: smaller networks. Formula: `w_e <- sum_(k has e) n_k w_ke / sum_(k has e) n_k, where k has the first units
    of every layer`. Paper: arXiv 2102.13451.
    """

    distill: bool = False
    """Self-distillation is FjORD's option, at temperature 1. The FedDHAD paper's baseline does not use it. It adds a
    pass of the widest slice, also if the drawn width is the widest.
    """

    @property
    def needs_classes(self) -> str:
        """The reason why labels have to be classes; empty without distillation."""
        return "lets narrow slices learn the classes that the widest sees" if self.distill else ""

    def local(self, task: Task) -> LocalRule:
        """Return SGD in a slice of the device's network, drawn for every batch."""
        phase = LocalPhase(gradient=_distilled if self.distill else plain, after_step=to_next_width)
        return LocalRule((phase,), on_start=start)

    def extra_passes(self, trained: tuple[Pass, ...]) -> tuple[Pass, ...]:
        """Return the pass of the largest width, with the update step."""
        return (Pass(times=float(self.distill)),)


def drawn_ranks(seed: int, largest: int, steps: int) -> Ids:
    """Return the rank, from 1 to `largest`, of the width of each SGD step, shape (steps,)."""
    return Key(seed).numpy().integers(1, largest + 1, size=steps)


def batch_sizes(sgd: LocalSGD, n_samples: int, drop_single: bool) -> Ids:
    """Return the samples of each step of a run of local SGD, shape (steps,)."""
    samples, steps = sgd.for_epochs(1).amount(np.array([n_samples]), drop_single)
    left = samples[0] - sgd.batch * np.arange(steps[0])
    return np.resize(np.minimum(left, sgd.batch), sgd.amount(np.array([n_samples]), drop_single)[1][0])


# --- on the device ------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Widths:
    """Scratch of a job: the rank of each step's width, the places of the slices by rank, and the next step."""

    ranks: Sequence[int]
    slices: Mapping[int, Mapping[str, tuple[slice, ...]]]
    step: int = 0

    @property
    def rank(self) -> int:
        """Rank of the width of the next step."""
        return self.ranks[self.step]


def start(context: Context) -> LocalState:
    """Return a copy of the received model, the widths of the steps and the places of their slices."""
    return LocalState(context.copy(context.global_model), widths_of(context))


def widths_of(context: Context) -> Widths:
    """Return the widths of a device's steps by its task."""
    task, (sgd,) = context.task, context.task.local_sgd
    steps = len(batch_sizes(sgd, len(context.shard), context.drop_single))
    ranks = drawn_ranks(int(task.config["seed"]), task.submodel.width, steps).tolist()
    submodels = (task.submodel, *(p.submodel for p in task.passes if p.submodel))
    return Widths(ranks, {submodel.width: context.corners(submodel) for submodel in submodels})


def to_next_width(local: LocalState, context: Context) -> None:
    """Move on to the width of the next step."""
    local.scratch.step += 1


def leaves_of(w: ModelState, context: Context) -> dict[str, Tensor]:
    """Return the trained parameters as leaf tensors: gradients of slices arrive in the whole tensor."""
    return {name: w["params"][name].detach().requires_grad_() for name in context.trained}


def slice_of(leaves: Mapping[str, Tensor], local: LocalState, rank: int, moves: bool) -> ModelState:
    """Return the weights of the width of a rank, as views. `moves`: this pass updates the running statistics."""
    corners, buffers = local.scratch.slices[rank], local.weights["buffers"]
    if not moves:
        buffers = {name: tensor[corners[name]] for name, tensor in buffers.items()}
    return {"params": {name: leaf[corners[name]] for name, leaf in leaves.items()}, "buffers": buffers}


def plain(local: LocalState, batch: Batch, context: Context) -> list[Tensor]:
    """Return the gradients of the loss at the width of the next step."""
    leaves, rank = leaves_of(local.weights, context), local.scratch.rank
    logits = context.forward(slice_of(leaves, local, rank, moves=rank == context.task.submodel.width), batch.x)
    return gradients(context.objective.loss(logits, batch.y), list(leaves.values()))


def _distilled(local: LocalState, batch: Batch, context: Context) -> list[Tensor]:
    """Return the gradients of the largest width on the labels and of the step's width on the outputs of the largest."""
    leaves, rank = leaves_of(local.weights, context), local.scratch.rank
    widest = context.forward(slice_of(leaves, local, context.task.submodel.width, moves=True), batch.x)
    logits = context.forward(slice_of(leaves, local, rank, moves=False), batch.x)
    told = widest.detach().softmax(dim=1)
    loss = F.cross_entropy(widest, batch.y) + F.cross_entropy(logits, told)
    return gradients(loss, list(leaves.values()))


PLUGINS = {"fjord": FjORD}
