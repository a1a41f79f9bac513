"""Masks of the weights that a network keeps, and the rules that choose, move and average masked weights.

*Weights* are the tensors of two dimensions or more. Biases, normalisation and running statistics are never masked. A
mask is a bool tensor by parameter name, a count is the number of weights that a tensor keeps. The mask of a message is
its non-zero entries, and the mask of a model its largest weights, so that neither has to travel. Where this is not
enough, a model carries its masks as a collection of their own (`with_masks`). `Submodel.nnz` prices masked weights, and
`Payload.encoding` their bytes. Of equal numbers the one with the lowest index comes first.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from edgesim.core.encoding import Encoding
from edgesim.core.errors import ConfigError
from edgesim.core.method import LocalState
from edgesim.core.price_list import CostProfile
from edgesim.core.rng import JobStream, Key
from edgesim.core.task import Submodel
from edgesim.core.update import ModelState
from edgesim.learning.codec.packed import WORDS
from edgesim.learning.models.trace import layer_of
from edgesim.learning.train.context import Batch, Context
from edgesim.learning.train.loop import gradients
from edgesim.learning.train.rules import objective_loss

Masks: TypeAlias = Mapping[str, Tensor]
Shapes: TypeAlias = Mapping[str, Sequence[int]]
Counts: TypeAlias = Mapping[str, int]
Allocation: TypeAlias = Literal["erk", "feddst"]

ZEROS_STAY = "has zeros in its global model that have to stay, which a step beside it would fill"
ZEROS_GO = "sends models under masks, whose zeros an update would have to bring about"
_SAMPLE = 4096  # scores that are sorted to estimate a quantile of many
_MASKS, _PREFIX = "mask", "mask."  # unique names, because a run folder keeps all collections of a model side by side
SLACK = 1e-9  # tolerance for rounding: 0.3 x 10 counts as exactly 3


# --- number of weights --------------------------------------------------------------------------------------


def weight_shapes(cost_profile: CostProfile) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a model's weights by parameter name, in forward order.

    They follow from the cost profile, because a method knows no more before the first round. Raises ConfigError for a
    model without weights and for layers other than linear ones and convolutions with square kernels in one group.
    """
    found: dict[str, tuple[int, ...]] = {}
    sizes = {group.name: group.size for group in cost_profile.groups}
    for layer in (layer for layer in cost_profile.layers if layer.weights):
        outputs = layer.params - layer.weights or sizes.get(layer.rows, cost_profile.classes)
        inputs, kernel = layer.weights // outputs, 1
        if layer.kind != "Linear":
            entering = sizes.get(layer.columns, 0) if layer.upstream else cost_profile.input_shape[0]
            inputs, kernel = entering, math.isqrt(layer.weights // max(1, outputs * entering))
        if layer.kind not in ("Linear", "Conv2d") or outputs * inputs * kernel**2 != layer.weights:
            raise ConfigError(
                f"model.name: {cost_profile.model} has weights in {layer.name} ({layer.kind}) whose shape its "
                "cost profile does not tell; "
                "masks by shape need linear layers and convolutions with square kernels in one group"
            )
        shape = (outputs, inputs) if layer.kind == "Linear" else (outputs, inputs, kernel, kernel)
        found[f"{layer.name}.weight"] = shape
    if not found:
        raise ConfigError(
            f"model.name: {cost_profile.model} has no tensor of two dimensions or more that a mask could cover"
        )
    return found


def densities(shapes: Shapes, sparsity: float, allocation: Allocation) -> dict[str, float]:
    """Return the share of weights that each tensor keeps if a share `sparsity` in [0, 1) of all weights is left out.

    Both rules spare tensors whose dimensions have a large sum relative to their product. "erk" makes densities
    proportional to sum / product, at most 1. "feddst" makes sparsities proportional to 1 - sum / product, at least 0.
    Raises ConfigError if "feddst" would leave out more than all weights of a tensor.
    Source: Evci et al., "Rigging the Lottery" (2020), ERK; published code of Bibikar et al., "FedDST" (2022).
    """
    raw = {name: sum(shape) / math.prod(shape) for name, shape in shapes.items()}
    sizes = {name: math.prod(shape) for name, shape in shapes.items()}
    if not sparsity:
        return dict.fromkeys(sizes, 1.0)
    if allocation == "erk":
        whole: set[str] = set()  # tensors of density 1
        while rest := [name for name in sizes if name not in whole]:
            wanted = (1 - sparsity) * sum(sizes.values()) - sum(sizes[name] for name in whole)
            factor = wanted / sum(raw[name] * sizes[name] for name in rest)
            largest_raw = max(raw[name] for name in rest)
            if largest_raw * factor <= 1:
                break
            whole |= {name for name in rest if raw[name] == largest_raw}
        return {name: 1.0 if name in whole else factor * raw[name] for name in sizes}
    sparing = {name: max(0.0, 1 - raw[name]) for name in sizes}
    spread = sum(sparing[name] * size for name, size in sizes.items())
    if not spread:  # tensors of two by two alone
        return dict.fromkeys(sizes, 1 - sparsity)
    factor = sparsity * sum(sizes.values()) / spread
    if factor * max(sparing.values()) > 1:
        most = sparsity / (factor * max(sparing.values()))
        raise ConfigError(
            f"method.sparsity: method.allocation 'feddst' can leave out at most a share {math.floor(1e3 * most) / 1e3} "
            f"of this model's weights, found {sparsity}; 'erk' has no such limit"
        )
    return {name: 1 - sparing[name] * factor for name in sizes}


def kept_counts(shapes: Shapes, shares: Mapping[str, float]) -> dict[str, int]:
    """Return the number of weights that each tensor keeps: its share of them, rounded down, and at least one."""
    return {n: max(1, math.floor(shares[n] * math.prod(shape) + SLACK)) for n, shape in shapes.items()}


def counts_of(masks: Masks) -> dict[str, int]:
    """Return the number of weights that each mask keeps."""
    return {name: how_many(mask) for name, mask in masks.items()}


def nonzeros(counts: Counts) -> tuple[tuple[str, int], ...]:
    """Return counts by layer, in the form of `Submodel.nnz`."""
    by_layer: dict[str, int] = {}
    for name, count in counts.items():
        by_layer[layer_of(name)] = by_layer.get(layer_of(name), 0) + count
    return tuple(by_layer.items())


def counts_in(submodel: Submodel) -> dict[str, int]:
    """Return the counts of a part by parameter name, as in `weight_shapes`, if each layer has one tensor of weights."""
    return {f"{layer}.weight": count for layer, count in submodel.nnz}


# --- choice of weights --------------------------------------------------------------------------------------


def largest(scores: Tensor, count: int, among: Tensor | None = None) -> Tensor:
    """Return a mask of the `count` largest scores. NaN is larger than any number.

    `among`: a mask of the available scores, at least `count`. Scores must then not be negative.
    """
    held = scores if among is None else zeroed(scores, among)
    flat = held.flatten()
    mask, equal = torch.zeros_like(flat, dtype=torch.bool), torch.zeros_like(flat, dtype=torch.bool)
    if count:
        least = _nth_largest(flat, count)
        mask, equal = (mask, flat.isnan()) if math.isnan(least) else (~(flat <= least), flat == least)
        if among is not None and least == 0:
            equal &= among.flatten()
        if missing := count - how_many(mask):
            mask[equal.nonzero().flatten()[:missing]] = True
    return torch.empty_like(held, dtype=torch.bool).copy_(mask.view(scores.shape))


def how_many(mask: Tensor) -> int:
    """Return the number of entries that are set in a mask."""
    if mask.device.type != "cpu":
        return int(torch.count_nonzero(mask))
    return int(np.count_nonzero(mask.numpy()))  # in a tenth of torch's time


def _nth_largest(scores: Tensor, n: int) -> float:
    """Return the n-th largest of 1 <= n <= len(scores) scores. NaN is larger than any number."""
    if scores.device.type != "cpu":
        return float(torch.kthvalue(scores, len(scores) - n + 1).values)
    found, n = _near_nth_largest(scores.detach().numpy(), n)  # NumPy selects several times as fast as torch
    # All weights outside a mask share the least score. Selection among many equal numbers takes ten times as long.
    least = np.fmin.reduce(found)
    above = np.compress(~(found <= least), found)
    return float(np.partition(above, len(above) - n)[len(above) - n] if n <= len(above) else least)


def _near_nth_largest(scores: np.ndarray, n: int) -> tuple[np.ndarray, int]:
    """Return a few scores around the n-th largest one, and its place among them, counted from the largest.

    A sample gives the range of the n-th largest score, and counting checks it. Counting twice is faster than selecting
    once.
    Source: Floyd and Rivest, "Expected time bounds for selection" (1975).
    """
    sample = np.sort(scores[:: max(1, len(scores) // _SAMPLE)])
    place = len(sample) - 1 - n * len(sample) // len(scores)
    margin = 2 * math.isqrt(len(sample))  # four standard deviations or more
    low, high = (sample[min(max(0, at), len(sample) - 1)] for at in (place - margin, place + margin))
    beyond = ~(scores <= high)
    above = int(np.count_nonzero(beyond))
    near = np.compress((scores >= low) & ~beyond, scores)
    return (near, n - above) if above < n <= above + len(near) else (scores, n)


def by_magnitude(params: Mapping[str, Tensor], counts: Counts) -> dict[str, Tensor]:
    """Return masks of the largest weights of each tensor."""
    return {name: largest(params[name].abs(), count) for name, count in counts.items()}


def at_random(shapes: Shapes, counts: Counts, key: Key) -> dict[str, Tensor]:
    """Return masks of random weights of each tensor. All positions are equally likely."""
    found = {}
    for place, (name, shape) in enumerate(shapes.items()):
        generator = torch.Generator().manual_seed(key.at(place).word())
        found[name] = largest(torch.rand(tuple(shape), generator=generator, dtype=torch.float64), counts[name])
    return found


def support(params: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return masks of the weights that are not zero."""
    return {name: tensor != 0 for name, tensor in params.items() if tensor.dim() >= 2}


def pruned(weight: Tensor, mask: Tensor, share: float) -> Tensor:
    """Return a mask without this share of its weights, rounded up: the smallest ones. A full mask stays."""
    active = how_many(mask)
    return mask if active == mask.numel() else without_smallest(weight, mask, math.ceil(share * active - SLACK))


def without_smallest(weight: Tensor, mask: Tensor, count: int) -> Tensor:
    """Return a mask without its `count` smallest weights."""
    return largest(weight.abs(), how_many(mask) - count, among=mask)


def regrown(kept: Tensor, gradient: Tensor, active: int) -> Tensor:
    """Return a mask with the weights of largest gradient added up to a total of `active`. Pruned ones may come back.

    `gradient`: gradients, or other scores that are ranked by magnitude.
    Source: Evci et al. (2020), algorithm 1.
    """
    missing = active - how_many(kept)
    return kept | largest(gradient.abs(), missing, among=~kept)


def annealed(share: float, t: float, end: float) -> float:
    """Return the share to prune at time `t` of [0, end]: share / 2 x (1 + cos(pi t / end))."""
    return share / 2 * (1 + math.cos(math.pi * t / end))


# --- models under masks -------------------------------------------------------------------------------------


def applied(model: ModelState, masks: Masks) -> dict[str, dict[str, Tensor]]:
    """Return a model state whose parameters are zero outside their masks. Other tensors are the same objects."""
    params = dict(Applied(model["params"], masks))
    return {**{collection: dict(tensors) for collection, tensors in model.items()}, "params": params}


class Applied(Mapping[str, Tensor]):
    """Parameters of a model under masks. Each is computed when it is read, so that many masks share one model."""

    def __init__(self, params: Mapping[str, Tensor], masks: Masks) -> None:
        self._params, self._masks = params, masks

    def __getitem__(self, name: str) -> Tensor:
        tensor = self._params[name]
        return zeroed(tensor, self._masks[name], torch.contiguous_format) if name in self._masks else tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._params)

    def __len__(self) -> int:
        return len(self._params)


def zeroed(tensor: Tensor, mask: Tensor, layout: torch.memory_format = torch.preserve_format) -> Tensor:
    """Return a tensor that is 0 outside a mask, in the memory format `layout` of the mask. Gradients are lost.

    Its bits are multiplied, as integers, by 0 or 1. A choice entry by entry takes ten times as long.
    """
    words = WORDS[tensor.element_size()]
    kept = torch.empty_like(mask, dtype=words, memory_format=layout)
    factor = mask.to(words) if words == torch.int64 else mask  # int64 times bool takes four times as long
    return torch.mul(tensor.detach().view(words), factor, out=kept).view(tensor.dtype)


def masked_mean(
    models: Sequence[ModelState], masks: Sequence[Masks], weights: Sequence[float]
) -> dict[str, dict[str, Tensor]]:
    """Return the mean over the models that keep a weight, sum_k a_k M_k w_k / sum_k a_k M_k, and 0 if none keeps it.

    Tensors without masks are averaged over all models. `weights`: a_k, positive. Sums run in float64 in the given
    order.
    """

    def mean(collection: str, name: str, like: Tensor) -> Tensor:
        total, weight = torch.zeros_like(like, dtype=torch.float64), torch.zeros_like(like, dtype=torch.float64)
        for model, mask, a in zip(models, masks, weights, strict=True):
            held = mask.get(name) if collection == "params" else None
            tensor = model[collection][name].double()
            total += a * (tensor if held is None else tensor.where(held, 0.0))
            weight += a if held is None else a * held
        return (total / weight.where(weight > 0, 1.0)).to(like.dtype)

    return {
        collection: {name: mean(collection, name, t) for name, t in ts.items()} for collection, ts in models[0].items()
    }


def with_masks(model: ModelState, masks: Masks) -> dict[str, Mapping[str, Tensor]]:
    """Return a model that carries masks. They add no bytes to a message, because its encoding prices them."""
    return {**model, _MASKS: {_PREFIX + name: mask for name, mask in masks.items()}}


def masks_in(model: ModelState) -> dict[str, Tensor]:
    """Return the masks that a model carries, none for a whole model."""
    return {name.removeprefix(_PREFIX): mask for name, mask in model.get(_MASKS, {}).items()}


def without_masks(model: ModelState) -> dict[str, Mapping[str, Tensor]]:
    """Return a model without the masks that it carries."""
    return {collection: tensors for collection, tensors in model.items() if collection != _MASKS}


# --- on a device --------------------------------------------------------------------------------------------


@dataclass(slots=True)
class UnderMask:
    """Scratch of a job that trains under a mask: the kept weights of each tensor, by parameter name."""

    mask: Masks


def laid_out(mask: Masks, params: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return masks on the device and in the memory layout of the parameters that they cover."""
    return {name: torch.empty_like(params[name], dtype=torch.bool).copy_(each) for name, each in mask.items()}


def masked_gradients(grads: Sequence[Tensor], local: LocalState, context: Context) -> list[Tensor]:
    """Return gradients that are zero outside the mask of the scratch, an UnderMask, so that SGD keeps zeros."""
    masks = local.scratch.mask
    named = zip(context.trained, grads, strict=True)
    return [zeroed(g, masks[name]) if name in masks else g for name, g in named]


def dense_gradient(w: ModelState, batch: Batch, context: Context, moving: bool = False) -> dict[str, Tensor]:
    """Return the gradient of the objective's loss by parameter name, outside masks too. `w` does not change.

    `moving`: its running statistics move as in training.
    """
    leaves = {name: t.detach().clone().requires_grad_(name in context.trained) for name, t in w["params"].items()}
    loss = objective_loss({"params": leaves, "buffers": dict(w["buffers"])}, batch, context, moving)
    return dict(zip(context.trained, gradients(loss, [leaves[name] for name in context.trained]), strict=True))


def one_batch(context: Context, size: int) -> Batch:
    """Return `size` random samples of the device's data, drawn independently of the training steps."""
    order, augmenting = (torch.Generator().manual_seed(context.key.at(JobStream.ONE_BATCH, i).word()) for i in range(2))
    return context.batch(torch.randperm(len(context.shard), generator=order)[:size], augmenting)


def random_scores(like: Masks, context: Context) -> dict[str, Tensor]:
    """Return random scores in [0, 1), float64, by the device's key, for the regrowth of weights at random places."""
    found = {}
    for place, (name, mask) in enumerate(like.items()):
        generator = torch.Generator().manual_seed(context.key.at(JobStream.GROWTH, place).word())
        found[name] = torch.rand(mask.shape, generator=generator, dtype=torch.float64).to(mask.device)
    return found


def wire(usual: Encoding, known: bool) -> Encoding | None:
    """Return the encoding of a masked payload whose receiver may know the mask, or None for the usual encoding.

    A scenario whose encoding sends zeros like other numbers (`zeros = "sent"`) keeps doing so.
    """
    return replace(usual, zeros="known") if known and usual.zeros != "sent" else None
