"""What arrives of an update: how far weights have moved from those received, made small, and added to these again.

What is not sent stays on the device as its *residual*, where the encoding feeds errors back; its *momentum*, and the
*basis* of matrices of low rank, too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from edgesim.core.backend import Assignment
from edgesim.core.encoding import Encoding
from edgesim.core.price_list import CostProfile
from edgesim.core.rng import JobStream, Key
from edgesim.core.task import TENSORS, Submodel
from edgesim.core.update import AVERAGED, ModelState
from edgesim.learning.aggregate.mean import is_finite
from edgesim.learning.codec.encode import carried_by, decoded, layers_of, sent
from edgesim.learning.codec.kept import BASIS, MOMENTUM, RESIDUAL
from edgesim.learning.codec.low_rank import factors, warm
from edgesim.learning.codec.rotation import rotated, turned_back
from edgesim.learning.codec.transfer import on_cpu
from edgesim.learning.submodel.slicing import Cut


def update_uplinked(
    body: ModelState,
    received: ModelState,
    before: ModelState,
    assignment: Assignment,
    encoding: Encoding,
    moves: ModelState | None = None,
) -> tuple[ModelState, ModelState]:
    """Return what the server makes of a message that encodes an update, and what it leaves on the device, on the CPU.

    `received`: the model that the device got. `before`: what earlier updates left, empty without error feedback; of the
    shapes of the body. Weights of the model are moved by what arrives; a method's own collections, which are changes by
    themselves, are what arrives. `moves`: how far tensors of the model have moved, where the method knows it
    better than by the difference of two rounded models. A body that is not finite arrives as it is, and leaves nothing.
    """
    task, key = assignment.task, assignment.key.at(JobStream.UPLINK)
    carried = on_cpu(carried_by(body, task.up))
    if not is_finite(carried):
        return carried, {}
    moving = [kind for kind in sorted(carried) if kind not in ("buffers", TENSORS)]
    others = {kind: tensors for kind, tensors in carried.items() if kind not in moving}
    arrived: dict[str, Mapping[str, Tensor]] = dict(decoded(others, encoding.of_others, key))
    left: dict[str, Mapping[str, Tensor]] = {}
    of_model = "params" if "params" in moving else next(iter(moving), "")
    for place, kind in enumerate(moving):
        base = on_cpu({kind: received[kind]})[kind] if kind in AVERAGED else {}
        known_moves = on_cpu({kind: (moves or {}).get(kind, {})})[kind]
        coder = _Coder(encoding if kind == of_model else encoding.of_own_collections, key.at(place))
        known = _Left(*(before.get(name + kind, {}) for name in _LEFT))
        arrived[kind], known = coder.crossed(carried[kind], base, known_moves, known)
        left |= {name + kind: tensors for name, tensors in zip(_LEFT, known, strict=True)}
    return {kind: arrived[kind] for kind in carried}, {kind: tensors for kind, tensors in left.items() if tensors}


class _Left(NamedTuple):
    """What updates of a collection leave on a device, by name of the tensor."""

    residual: Mapping[str, Tensor]
    momentum: Mapping[str, Tensor]
    basis: Mapping[str, Tensor]


_LEFT = (RESIDUAL, MOMENTUM, BASIS)  # as they are named there


class _Coder:
    """Encodes the update of one collection."""

    def __init__(self, encoding: Encoding, key: Key) -> None:
        self._encoding = encoding
        self._key = key  # of rounding, and below it of what both sides draw

    def crossed(
        self, tensors: Mapping[str, Tensor], base: Mapping[str, Tensor], moves: Mapping[str, Tensor], before: _Left
    ) -> tuple[dict[str, Tensor], _Left]:
        """Return the tensors as they arrive, and what they leave on the device."""
        own = {n: t - base[n] if n in base else t for n, t in tensors.items() if t.is_floating_point()}
        own = {n: moves.get(n, t) for n, t in own.items()}
        moved = self._in_motion(shortened(own, self._encoding.clip_norm), before.momentum)
        names, residual = [name for same in layers_of(moved).values() for name in same], before.residual
        wanted = {name: moved[name] + residual[name] if name in residual else moved[name] for name in names}
        if self._encoding.rank is None:
            (got, chosen), basis = self._weights(wanted), dict[str, Tensor]()
        else:
            (got, basis), chosen = self._low_rank(wanted, before.basis), {}
        got |= self._vectors({name: tensor for name, tensor in moved.items() if name not in got})
        arrived = {n: (base[n] + got[n] if n in base else got[n]) if n in got else t for n, t in tensors.items()}
        left = {name: wanted[name] - got[name] for name in names if self._encoding.error_feedback}
        return arrived, _Left(left, self._stopped(moved, chosen), basis)

    def _in_motion(self, moved: Mapping[str, Tensor], momentum: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return u <- m u + g of a move g; g itself without momentum, or where there is no u yet."""
        m = self._encoding.momentum
        return {n: t.add(momentum[n], alpha=m) if m and n in momentum else t for n, t in moved.items()}

    def _stopped(self, momentum: Mapping[str, Tensor], chosen: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return u, at rest where weights are sent; vectors, which always are, go on. Nothing without momentum."""
        if not self._encoding.momentum:
            return {}
        return {n: t.masked_fill(chosen[n], 0.0) if n in chosen else t for n, t in momentum.items()}

    def _vectors(self, moved: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the moves of vectors as they arrive; none if vectors themselves arrive, as nothing changes them."""
        if not self._encoding.scaled and self._encoding.values != "float32":
            return {name: sent(tensor, self._encoding, torch.Generator()) for name, tensor in moved.items()}
        return dict(moved) if self._encoding.moves_vectors else {}

    def _low_rank(
        self, wanted: Mapping[str, Tensor], known: Mapping[str, Tensor]
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return weights as they arrive, matrices as products of two thin ones, and bases for the next update.

        The columns of a basis are kept as rows, of the shape of what one output has.
        """
        got, kept = dict(wanted), dict[str, Tensor]()
        for place, (name, tensor) in enumerate(wanted.items()):
            matrix = tensor.reshape(len(tensor), -1)
            if rank := self._encoding.rank_of(*matrix.shape):
                last = known[name].flatten(1) if name in known else None
                p, q = factors(matrix, warm(last, matrix.shape[1], rank, self._shared(2, place)))
                got[name] = (p @ q.T).view(tensor.shape)
                kept[name] = q.T.reshape(rank, *tensor.shape[1:])
        return got, kept

    def _weights(self, wanted: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return weights as they arrive: layer by layer turned, thinned out together, written, and turned back.

        And which of those that were thinned out are sent, bool, of the shapes of the weights.
        """
        layers = layers_of(wanted)
        if not layers:
            return {}, {}
        flat = [torch.cat([wanted[name].flatten() for name in names]) for names in layers.values()]
        if self._encoding.rotate:
            flat = [rotated(x, self._shared(1, place)) for place, x in enumerate(flat)]
        sizes = [x.numel() for x in flat]
        chosen, scale = torch.split(self._chosen(torch.cat(flat)), sizes), self._scale(sum(sizes))
        generator = torch.Generator().manual_seed(self._key.word())
        flat = [self._written(x * scale, there, generator) for x, there in zip(flat, chosen, strict=True)]
        if self._encoding.rotate:
            flat = [turned_back(x, self._shared(1, place)) for place, x in enumerate(flat)]
        return _pieces(flat, layers, wanted), _pieces(chosen, layers, wanted)

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


def _pieces(
    flat: Sequence[Tensor], layers: Mapping[str, Sequence[str]], like: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Return the tensors of layers of which each is one vector."""
    result: dict[str, Tensor] = {}
    for names, x in zip(layers.values(), flat, strict=True):
        pieces = torch.split(x, [like[name].numel() for name in names])
        result |= {name: piece.view(like[name].shape) for name, piece in zip(names, pieces, strict=True)}
    return result


def shortened(moved: Mapping[str, Tensor], longest: float) -> Mapping[str, Tensor]:
    """Return a move that is scaled down, all tensors of it as one vector, to this norm if it is longer."""
    if not moved or longest == math.inf:
        return moved
    norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(t.double()) for t in moved.values()]))
    factor = min(1.0, longest / float(norm)) if norm > 0 else 1.0
    return {name: tensor * factor for name, tensor in moved.items()}


def largest(flat: Tensor, count: int) -> Tensor:
    """Return which numbers are the `count` of largest magnitude, bool, shape (n,); of equal ones the first."""
    magnitudes = flat.abs()
    least = torch.topk(magnitudes, count, sorted=False).values.min()
    chosen = magnitudes > least
    equal = torch.nonzero(magnitudes == least).flatten()
    chosen[equal[: count - int(chosen.sum())]] = True
    return chosen


def left_of_part(left: ModelState, submodel: Submodel, cost_profile: CostProfile) -> ModelState:
    """Return what updates left on a device for the channels of a part."""
    if not submodel.channels:
        return left
    cut = Cut(submodel, cost_profile)
    return {
        kind: {name: cut.kept(name, t, rows=not kind.startswith(BASIS)) for name, t in tensors.items()}
        for kind, tensors in left.items()
    }


def left_with_part(
    left: ModelState, part: ModelState, submodel: Submodel, cost_profile: CostProfile, model: ModelState
) -> dict[str, Mapping[str, Tensor]]:
    """Return what updates left on a device, with that of a part in its place; what the part leaves out stays.

    `model`: whole, for the shapes of what was not there yet.
    """
    if not submodel.channels:
        return {**left, **{kind: {**left.get(kind, {}), **tensors} for kind, tensors in part.items()}}
    cut = Cut(submodel, cost_profile)
    result: dict[str, Mapping[str, Tensor]] = dict(left)
    for kind, tensors in part.items():
        whole = dict(left.get(kind, {}))
        for name, tensor in tensors.items():
            shape, rows = model["params"][name].shape, not kind.startswith(BASIS)
            shape = shape if rows else (len(tensor), *shape[1:])
            new = whole[name].clone() if name in whole else torch.zeros(shape)
            new[cut.index(name, new, rows)] = tensor
            whole[name] = new
        result[kind] = whole
    return result
