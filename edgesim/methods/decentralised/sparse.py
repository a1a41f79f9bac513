"""Base of peers with sparse models of their own: first masks, mixing under masks, moving masks, and prices.

A message carries no mask: the mask is the nonzero entries. A device that never trained has the first model under its
first mask, which every device can draw from a seed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from graphlib import TopologicalSorter
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from torch import Tensor

from edgesim.core.method import Aggregate, LocalState
from edgesim.core.model_state import model_in
from edgesim.core.price_list import CostProfile
from edgesim.core.rng import Key
from edgesim.core.task import Order, Pass, Submodel, Task
from edgesim.core.update import ModelState, Update
from edgesim.core.view import Setting, View
from edgesim.core.workload import full_speed_s
from edgesim.learning.aggregate.mean import finite, is_finite, mean_of_nonzero
from edgesim.learning.codec.packed import packed
from edgesim.learning.codec.transfer import on_cpu
from edgesim.learning.submodel import masks
from edgesim.learning.train.context import Context

Maskable: TypeAlias = Literal["2d", "authors"]
Initial: TypeAlias = Literal["per_device", "shared"]
Growth: TypeAlias = Literal["gradient", "random"]

_SHORTCUTS = frozenset({"shortcut", "downsample"})  # parts of the names of their layers


class FirstMasks(NamedTuple):
    """First masks of devices: random weights, with numbers for each tensor by ERK.

    `maskable`: all weights ("2d"), or all except the weights of shortcuts ("authors"). `initial`: every device draws a
    mask of its own ("per_device"), or all share one ("shared").
    """

    sparsity: float
    maskable: Maskable
    initial: Initial

    def shapes(self, cost_profile: CostProfile) -> dict[str, tuple[int, ...]]:
        """Return the shapes of maskable tensors by name. Raises ConfigError for a model that no mask fits."""
        return self._maskable(masks.weight_shapes(cost_profile))

    def counts(self, shapes: masks.Shapes) -> dict[str, int]:
        """Return the number of weights that a mask keeps in each tensor of these shapes."""
        return masks.kept_counts(shapes, masks.densities(shapes, self.sparsity, "erk"))

    def model(self, whole: ModelState, device: int, seed: int) -> ModelState:
        """Return the first model of a device with its mask."""
        mask = self.mask(whole, device, seed)
        return masks.with_masks(masks.applied(whole, mask), mask)

    def mask(self, whole: ModelState, device: int, seed: int) -> masks.Masks:
        """Return the first mask of a device."""
        params = {n: tuple(t.shape) for n, t in whole["params"].items() if t.dim() >= 2}
        whose = device if self.initial == "per_device" else None
        drawn = _drawn(self, tuple(self._maskable(params).items()), whose, seed)
        return {name: m.to(whole["params"][name].device) for name, m in drawn.items()}

    def _maskable(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
        everything = self.maskable == "2d"
        return {n: shape for n, shape in shapes.items() if everything or _SHORTCUTS.isdisjoint(n.split("."))}


@lru_cache(maxsize=128)  # in a first round every neighbour of a device asks. Packed, a weight takes 1/8 byte
def _drawn(
    first: FirstMasks, shapes: tuple[tuple[str, tuple[int, ...]], ...], device: int | None, seed: int
) -> Mapping[str, Tensor]:
    """Return the first mask of a device, or of all devices for None. Callers must not change it."""
    key, sizes = Key(seed), dict(shapes)
    drawn = masks.at_random(sizes, first.counts(sizes), key if device is None else key.at(device))
    (small,) = packed({"mask": drawn})
    mask: Mapping[str, Tensor] = small["mask"]
    return mask


# --- prices -----------------------------------------------------------------------------------------------------


def config_of(seed: int, share: float) -> dict[str, float]:
    """Return the config of a task: the seed of the first masks, and the share of weights to move, if any."""
    return {"seed": seed, **({"share": share} if share else {})}


def share_at(alpha: float, t: int, end: int) -> float:
    """Return the share of weights that move in round `t`, counted from 1. After round `end` it is 0."""
    return masks.annealed(alpha, t - 1, end) if t <= end else 0.0


def sparse_orders(
    orders: Sequence[Order], view: View, kept: Mapping[int, masks.Counts], config: Mapping[str, float], growth: Growth
) -> tuple[Order, ...]:
    """Return orders with the tasks of devices that keep `kept` weights of each tensor, by device.

    By "gradient" a device also takes the gradient of the whole model on one batch. A device that takes no step moves no
    weight.
    """
    setting, sgd = view.setting, view.setting.training.local_sgd(view.round)
    ids = [order.device for order in orders]
    _, steps = sgd.amount(setting.samples[ids], setting.cost_profile.drop_single)
    tasks: dict[Any, Task] = {}
    found = []
    for order, taken in zip(orders, steps.tolist(), strict=True):
        nnz, moves = masks.nonzeros(kept[order.device]), bool(taken) and "share" in config
        size = min(sgd.batch, int(setting.samples[order.device])) if moves and growth == "gradient" else 0
        if (nnz, size, moves) not in tasks:
            passes = (Pass(), *([Pass("train", samples=size, submodel=Submodel())] if size else []))
            told = {name: value for name, value in config.items() if moves or name != "share"}
            submodel = Submodel("sparse", nnz=nnz)
            tasks[nnz, size, moves] = Task(
                start="device", submodel=submodel, local_sgd=(sgd,), passes=passes, config=told
            )
        found.append(order._replace(task=tasks[nnz, size, moves]))
    return tuple(found)


def impatient(orders: Sequence[Order], setting: Setting, times: float) -> tuple[Order, ...]:
    """Return orders whose waits end after `times` the expected training time of the awaited devices.

    The expected time is the device's own training time for each training in the longest chain of waits before it.
    """
    waits = {order.device: order.wait.peers for order in orders}
    chain: dict[int, int] = {}  # number of devices that train one after another before each device
    for device in TopologicalSorter(waits).static_order():
        chain[device] = max((1 + chain[peer] for peer in waits.get(device, ())), default=0)
    found = []
    for order in orders:
        training_s = full_speed_s(order.task, setting, np.array([order.device]))
        allowed_s = chain[order.device] * float(training_s[0])
        wait = order.wait._replace(within_s=times * allowed_s) if allowed_s else order.wait
        found.append(order._replace(wait=wait))
    return tuple(found)


# --- on a device ------------------------------------------------------------------------------------------------


def mixed(context: Context, first: FirstMasks) -> LocalState:
    """Return the mean of a device's own model and the received ones under its mask, and the mask as scratch.

    Each weight is averaged over the models that have it, and is 0 if none does. Tensors without masks, such as biases,
    are averaged over all models. Models that are not finite are left out.
    Source: DA-DPFL paper, mask-based aggregation; DisPFL.
    """
    seed = int(context.task.config["seed"])
    kept = context.device_state
    mine = first.model(context.global_model, context.device, seed) if kept is None else kept
    mask = masks.masks_in(mine)
    own = Update(context.device, -1, context.task, model_in(mine), 0, 0, 0, {})
    bodies = {id(m.body): m.body for m in (own, *context.received)}  # devices that never trained share one
    good = {which for which, body in bodies.items() if is_finite(model_in(body))}
    usable = []
    for m in sorted([own, *context.received], key=lambda message: message.device):
        model = model_in(m.body)
        if m is not own and m.job < 0:  # it never trained
            model["params"] = masks.Applied(m.body["params"], first.mask(m.body, m.device, seed))
        if id(m.body) in good or is_finite(model):
            usable.append(model)
    mean = mean_of_nonzero(usable or [model_in(mine)], mask)
    w = context.copy(masks.applied(mean, mask))
    return LocalState(w, masks.UnderMask({name: m.to(w["params"][name].device) for name, m in mask.items()}))


def moved(model: ModelState, mask: masks.Masks, context: Context, growth: Growth) -> dict[str, Tensor]:
    """Return the mask with the smallest weights of every tensor replaced: the task has their share.

    The new weights, as many as the removed ones, are those with the largest gradient of one batch, or random ones.
    Source: Evci et al., "Rigging the Lottery" (2020), as in DisPFL.
    """
    share = context.task.config.get("share", 0.0)
    if not share:
        return dict(mask)
    size = min(context.task.local_sgd[0].batch, len(context.shard))
    if growth == "gradient":
        scores = masks.dense_gradient(model, masks.one_batch(context, size), context)
    else:
        scores = masks.random_scores(mask, context)
    stay = {name: masks.pruned(model["params"][name], m, share) for name, m in mask.items()}
    return {name: masks.regrown(stay[name], scores[name], masks.how_many(m)) for name, m in mask.items()}


def memory(model: ModelState, mask: masks.Masks) -> dict[str, dict[str, Tensor]]:
    """Return a device's model and its mask of the next round to keep, on the CPU like received messages."""
    return on_cpu(masks.with_masks(model, mask))


# --- the reported model -----------------------------------------------------------------------------------------


def mean_of_sparse(state: Any, global_model: ModelState, updates: Sequence[Update]) -> tuple[Aggregate, list[Update]]:
    """Return the mean of each weight over the models that have it, and the messages used.

    No device has this model, but it can be evaluated.
    """
    usable, metrics = finite(updates)
    if not usable:
        return Aggregate(state, None, metrics=metrics), usable
    covered = {name for name, tensor in global_model["params"].items() if tensor.dim() >= 2}
    mean = mean_of_nonzero(({kind: message.body[kind] for kind in global_model} for message in usable), covered)
    return Aggregate(state, mean, metrics=metrics), usable
