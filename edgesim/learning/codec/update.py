"""What arrives of an update: how far weights have moved from those received, made small, and added to these again.

What is not sent stays on the device as its *residual*, where the encoding feeds errors back.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from edgesim.core.backend import Assignment
from edgesim.core.encoding import Encoding
from edgesim.core.rng import JobStream, Key
from edgesim.core.task import TENSORS, Submodel
from edgesim.core.update import AVERAGED, ModelState
from edgesim.cost.profile import CostProfile
from edgesim.learning.aggregate.mean import is_finite
from edgesim.learning.codec.encode import carried_by, decoded, layers_of, sent
from edgesim.learning.codec.rotation import rotated, turned_back
from edgesim.learning.codec.transfer import on_cpu
from edgesim.learning.submodel.slicing import Cut


def update_uplinked(
    body: ModelState, received: ModelState, residual: ModelState, assignment: Assignment, encoding: Encoding
) -> tuple[ModelState, ModelState]:
    """Return what the server makes of a message that encodes an update, and what of it was not sent, on the CPU.

    `received`: the model that the device got. `residual`: of earlier updates, empty without error feedback; of the
    shapes of the body. Weights of the model are moved by what arrives; a method's own collections, which are changes by
    themselves, are what arrives. A body that is not finite arrives as it is, and leaves the residual alone.
    """
    task, key = assignment.task, assignment.key.at(JobStream.UPLINK)
    carried = on_cpu(carried_by(body, task.up))
    if not is_finite(carried):
        return carried, {}
    moving = [kind for kind in sorted(carried) if kind not in ("buffers", TENSORS)]
    others = {kind: tensors for kind, tensors in carried.items() if kind not in moving}
    arrived: dict[str, Mapping[str, Tensor]] = dict(decoded(others, encoding.of_others, key))
    left: dict[str, Mapping[str, Tensor]] = {}
    for place, kind in enumerate(moving):
        base = on_cpu({kind: received[kind]})[kind] if kind in AVERAGED else {}
        coder = _Coder(encoding, key.at(place))
        arrived[kind], left[kind] = coder.crossed(carried[kind], base, residual.get(kind, {}))
    return {kind: arrived[kind] for kind in carried}, left if encoding.error_feedback else {}


class _Coder:
    """Encodes the update of one collection."""

    def __init__(self, encoding: Encoding, key: Key) -> None:
        self._encoding = encoding
        self._key = key  # of rounding, and below it of what both sides draw

    def crossed(
        self, tensors: Mapping[str, Tensor], base: Mapping[str, Tensor], residual: Mapping[str, Tensor]
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the tensors as they arrive, and what of their weights was not sent."""
        moved = {n: t - base[n] if n in base else t for n, t in tensors.items() if t.is_floating_point()}
        names = [name for same in layers_of(moved).values() for name in same]
        wanted = {name: moved[name] + residual[name] if name in residual else moved[name] for name in names}
        got = self._weights(wanted)
        if not self._encoding.scaled and self._encoding.values != "float32":
            got |= {name: sent(t, self._encoding, torch.Generator()) for name, t in moved.items() if name not in got}
        arrived = {n: (base[n] + got[n] if n in base else got[n]) if n in got else t for n, t in tensors.items()}
        return arrived, {name: wanted[name] - got[name] for name in names}

    def _weights(self, wanted: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return weights as they arrive: layer by layer turned, thinned out together, written, and turned back."""
        layers = layers_of(wanted)
        if not layers:
            return {}
        flat = [torch.cat([wanted[name].flatten() for name in names]) for names in layers.values()]
        if self._encoding.rotate:
            flat = [rotated(x, self._shared(1, place)) for place, x in enumerate(flat)]
        sizes = [x.numel() for x in flat]
        chosen, scale = torch.split(self._chosen(torch.cat(flat)), sizes), self._scale(sum(sizes))
        generator = torch.Generator().manual_seed(self._key.word())
        flat = [self._written(x * scale, there, generator) for x, there in zip(flat, chosen, strict=True)]
        if self._encoding.rotate:
            flat = [turned_back(x, self._shared(1, place)) for place, x in enumerate(flat)]
        result: dict[str, Tensor] = {}
        for names, x in zip(layers.values(), flat, strict=True):
            pieces = torch.split(x, [wanted[name].numel() for name in names])
            result |= {name: piece.view(wanted[name].shape) for name, piece in zip(names, pieces, strict=True)}
        return result

    def _chosen(self, flat: Tensor) -> Tensor:
        """Return which weights of all layers are sent, bool, shape (weights,)."""
        count = self._encoding.count(flat.numel())
        match self._encoding.sparsify:
            case "none":
                return torch.ones_like(flat, dtype=torch.bool)
            case "rand_k":
                chosen = torch.zeros_like(flat, dtype=torch.bool)
                chosen[torch.randperm(flat.numel(), generator=self._shared(0))[:count]] = True
                return chosen
            case _:
                return largest(flat, count)

    def _scale(self, weights: int) -> float:
        """Return by how much weights are multiplied, so that the mean of what arrives of random ones is right.

        With error feedback by nothing, as what is missing will come.
        """
        random = self._encoding.sparsify == "rand_k" and not self._encoding.error_feedback
        return weights / self._encoding.count(weights) if random else 1.0

    def _written(self, x: Tensor, there: Tensor, generator: torch.Generator) -> Tensor:
        """Return the weights of a layer as they are read again, zeros for those that are not there."""
        result = torch.zeros_like(x)
        if bool(there.any()):
            result[there] = sent(x[there], self._encoding, generator)
        return result

    def _shared(self, *index: int) -> torch.Generator:
        """Return a generator that both sides have."""
        return torch.Generator().manual_seed(self._key.at(0, *index).word())


def largest(flat: Tensor, count: int) -> Tensor:
    """Return which numbers are the `count` of largest magnitude, bool, shape (n,); of equal ones the first."""
    magnitudes = flat.abs()
    least = torch.topk(magnitudes, count, sorted=False).values.min()
    chosen = magnitudes > least
    equal = torch.nonzero(magnitudes == least).flatten()
    chosen[equal[: count - int(chosen.sum())]] = True
    return chosen


def residual_of_part(residual: ModelState, submodel: Submodel, cost_profile: CostProfile) -> ModelState:
    """Return what a residual has of the channels of a part."""
    if not submodel.channels:
        return residual
    cut = Cut(submodel, cost_profile)
    return {kind: {name: cut.kept(name, t) for name, t in tensors.items()} for kind, tensors in residual.items()}


def residual_with_part(
    residual: ModelState, part: ModelState, submodel: Submodel, cost_profile: CostProfile, model: ModelState
) -> dict[str, Mapping[str, Tensor]]:
    """Return a residual with that of a part in its place; layers and channels that the part leaves out stay.

    `model`: whole, for the shapes of what has no residual yet.
    """
    if not submodel.channels:
        return {**residual, **{kind: {**residual.get(kind, {}), **tensors} for kind, tensors in part.items()}}
    cut = Cut(submodel, cost_profile)
    result: dict[str, Mapping[str, Tensor]] = dict(residual)
    for kind, tensors in part.items():
        whole = dict(residual.get(kind, {}))
        for name, tensor in tensors.items():
            new = whole[name].clone() if name in whole else torch.zeros(model["params"][name].shape)
            new[cut.index(name, new)] = tensor
            whole[name] = new
        result[kind] = whole
    return result
