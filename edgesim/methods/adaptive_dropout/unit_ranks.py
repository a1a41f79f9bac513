"""Measurements of a received model on a device: the importance of its units and the curvature of its loss.

Source: "Efficient Federated Learning with Heterogeneous Data and Adaptive Dropout", arXiv 2507.10430 (FedAD).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from edgesim.core.arrays import Arr
from edgesim.core.price_list import ChannelGroup, CostProfile
from edgesim.core.rng import JobStream
from edgesim.core.update import ModelState
from edgesim.learning.train.context import Batch, Context
from edgesim.learning.train.loop import gradients, hessian_product
from edgesim.learning.train.rules import objective_loss
from edgesim.methods.adaptive_dropout.spectrum import Spectrum, dense, lanczos, mean_of

_AXES = {nn.Conv1d.__name__: 1, nn.Conv3d.__name__: 3}  # of a map; 2 of any other layer

NeuronWeight: TypeAlias = Literal["abs", "signed"]


class Ranks(NamedTuple):
    """Importance of the units of layers, by layer, each of shape (units,); NaN where a number was not finite.

    `deficiency`: the mean over all channels of rank over the largest possible one; 1 without channels.
    """

    importance: dict[str, Arr]
    deficiency: float


class Curvature(NamedTuple):
    """The spectrum of a Hessian, a lower bound of B's Lipschitz constant, and the distance from the first model."""

    spectrum: Spectrum
    lipschitz: float
    moved: float


def is_linear(cost_profile: CostProfile, group: ChannelGroup) -> bool:
    """Return True if the units of a group are neurons of a linear layer, False for channels."""
    return next(layer for layer in cost_profile.layers if layer.name == group.name).kind == nn.Linear.__name__


def source_of(cost_profile: CostProfile, group: ChannelGroup) -> str:
    """Return the layer whose output or weights give the importance of the units of a group.

    For neurons this is the layer that makes them. For channels it is the last such layer, their normalisation.
    """
    if is_linear(cost_profile, group):
        return group.name
    return [layer.name for layer in cost_profile.layers if layer.rows == group.name][-1]


def rank_flops(cost_profile: CostProfile, groups: Iterable[ChannelGroup]) -> float:
    """Return the FLOPs of the ranks of all maps of one sample: 8 side^3 / 3 of a square matrix, rounded down.

    A map of a volume is as many matrices as it is deep, taken to be a cube; one of a sequence is a matrix of one row.
    """
    layers = {layer.name: layer for layer in cost_profile.layers if layer.weights}
    flops = 0
    for group in groups:
        if group.name in layers and not is_linear(cost_profile, group):
            layer = layers[group.name]
            axes = _AXES.get(layer.kind, 2)
            side = round((layer.forward_flops / (2 * layer.weights)) ** (1 / axes))
            rows, slices = (1 if axes == 1 else side), (side if axes == 3 else 1)
            flops += group.size * slices * (8 * rows**3 // 3)
    return float(flops)


def ranks_of(w: ModelState, context: Context, layers: Iterable[str], samples: int, weight: NeuronWeight) -> Ranks:
    """Return the importance of the units of these layers in the model `w`, on `samples` samples of the device.

    For a channel it is the mean over samples of the matrix rank of its map after ReLU, before any pooling. The source
    has only images. Here a map of a volume has the mean rank of its slices, and a map of a sequence is a matrix of one
    row. For a neuron it is the sum of its incoming weights or of their magnitudes.
    """
    weights = {name: w["params"].get(f"{name}.weight") for name in layers}
    linear = {name: weight for name, weight in weights.items() if weight is not None and weight.dim() == 2}
    sums = {n: (t.abs() if weight == "abs" else t).double().sum(dim=1).cpu().numpy() for n, t in linear.items()}
    others = [name for name in weights if name not in linear]
    outputs = context.outputs(w, _batch(context, samples).x, others) if others else {}
    maps = {name: F.relu(out if out.dim() > 3 else out.unsqueeze(2)) for name, out in outputs.items()}
    ranks = {name: _mean_ranks(out) for name, out in maps.items()}
    full = [ranks[name] / min(out.shape[-2:]) for name, out in maps.items()]
    return Ranks({**sums, **ranks}, float(np.concatenate(full).mean()) if full else 1.0)


def curvature_of(w: ModelState, context: Context, samples: int, steps: int, starts: int) -> Curvature:
    """Return the spectrum of the loss at `w`, by `steps` Lanczos steps from each of `starts` vectors; in full if 0.

    The loss is taken on `samples` samples of the device, and its variables are the trained layers. With B(x) = H x -
    g(w + x) and x = first - w the bound is |B(x) - B(0)| / |x|, or 0 where |x| is 0. All other weights stay as in w.
    """
    batch, before = _batch(context, samples), {n: context.first["params"][n] for n in context.trained}
    first = context.copy({**w, "params": {**w["params"], **before}})
    there = context.bind_for_test(first)
    first_slope = gradients(objective_loss(first, batch, context), there)
    begin = _flat([t.detach() for t in there])
    here = context.bind_for_test(w)  # from now on the weights stay: products are of this graph
    slope, times = hessian_product(objective_loss(w, batch, context), here)
    sizes = [t.numel() for t in here]

    def product(vector: Tensor) -> Tensor:
        pieces = torch.split(vector, sizes)
        return _flat(times([piece.view_as(t) for piece, t in zip(pieces, here, strict=True)]))

    way = begin - _flat([t.detach() for t in here])
    length = float(torch.linalg.vector_norm(way))
    rest = product(way) - _flat(first_slope) + _flat(slope)
    lipschitz = float(torch.linalg.vector_norm(rest)) / length if length > 0 else 0.0
    if not steps:
        return Curvature(dense(product, way), lipschitz, length)
    draws = context.key.at(JobStream.LANCZOS_STARTS).numpy()
    signs = [torch.from_numpy(draws.choice([-1.0, 1.0], len(way))).to(way) for _ in range(starts)]
    return Curvature(mean_of([lanczos(product, start, steps) for start in signs]), lipschitz, length)


def _batch(context: Context, samples: int) -> Batch:
    """Return `samples` samples of the device, or all, drawn by its key."""
    key = context.key.at(JobStream.LOOKED_AT)
    drawn = key.numpy().permutation(len(context.shard))[:samples]
    return context.batch(torch.from_numpy(drawn), torch.Generator().manual_seed(key.at(1).word()))


def _mean_ranks(maps: Tensor) -> Arr:
    """Return the mean rank of each channel's matrices; `maps`: shape (samples, channels, ..., rows, columns)."""
    if not bool(maps.isfinite().all()):
        return np.full(maps.shape[1], np.nan)
    ranks = torch.linalg.matrix_rank(maps).double()
    means: Arr = ranks.mean(dim=(0, *range(2, ranks.dim()))).cpu().numpy()
    return means


def _flat(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([t.reshape(-1) for t in tensors])
