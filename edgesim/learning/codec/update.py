"""Encoding of updates: the move of the weights from those received is compressed and added to these again.

With error feedback, the part that is not sent stays on the device as its *residual*. The *momentum* and the *basis* of
low-rank matrices stay there too.
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
    """Return the decoded message of an encoded update and the remainders that stay on the device, on the CPU.

    `received`: the model that the device got. `before`: the remainders of earlier updates, in the shapes of the body,
    empty without error feedback. The decoded move is added to the weights of the model. A method's own collections are
    changes themselves, so nothing is added to them. `moves`: the moves of tensors of the model that the method knows
    more precisely than as the difference of two rounded models. A body that is not finite arrives unchanged and leaves
    no remainder.
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
    """Remainders on a device of the updates of one collection, by name of the tensor."""

    residual: Mapping[str, Tensor]
    momentum: Mapping[str, Tensor]
    basis: Mapping[str, Tensor]


_LEFT = (RESIDUAL, MOMENTUM, BASIS)  # prefixes of the collections' names on the device


class _Coder:
    """Encodes the update of one collection."""

    def __init__(self, encoding: Encoding, key: Key) -> None:
        self._encoding = encoding
        self._key = key  # of rounding. Its sub-keys are for numbers that both sides draw

    def crossed(
        self, tensors: Mapping[str, Tensor], base: Mapping[str, Tensor], moves: Mapping[str, Tensor], before: _Left
    ) -> tuple[dict[str, Tensor], _Left]:
        """Return the decoded tensors and the remainders on the device."""
        encoding = self._encoding
        own = {n: t - base[n] if n in base else t for n, t in tensors.items() if t.is_floating_point()}
        own = {n: moves.get(n, t) for n, t in own.items()}
        # Momentum: u <- m u + g for a move g, and g itself without momentum or before the first u.
        m, u = encoding.momentum, before.momentum
        clipped = shortened(own, encoding.clip_norm)
        moved = {n: t.add(u[n], alpha=m) if m and n in u else t for n, t in clipped.items()}
        names, residual = [name for same in layers_of(moved).values() for name in same], before.residual
        wanted = {name: moved[name] + residual[name] if name in residual else moved[name] for name in names}
        if encoding.rank is None:
            (got, chosen), basis = self._weights(wanted), dict[str, Tensor]()
        else:
            (got, basis), chosen = self._low_rank(wanted, before.basis), {}
        vectors = {name: tensor for name, tensor in moved.items() if name not in got}
        if not encoding.scaled and encoding.values != "float32":
            got |= {name: sent(tensor, encoding, torch.Generator()) for name, tensor in vectors.items()}
        elif encoding.moves_vectors:  # otherwise vectors themselves are sent, and arrive unchanged
            got |= vectors
        arrived = {n: (base[n] + got[n] if n in base else got[n]) if n in got else t for n, t in tensors.items()}
        left = {name: wanted[name] - got[name] for name in names if encoding.error_feedback}
        # Where a weight is sent, its momentum stops. Vectors are always sent, and their momentum goes on.
        momentum = {n: t.masked_fill(chosen[n], 0.0) if n in chosen else t for n, t in moved.items() if m}
        return arrived, _Left(left, momentum, basis)

    def _low_rank(
        self, wanted: Mapping[str, Tensor], known: Mapping[str, Tensor]
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return decoded weights, with matrices as products of two thin ones, and bases for the next update.

        The columns of a basis are kept as rows, in the shape of one output of the tensor.
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
        """Rotate weights layer by layer, sparsify all together, encode and rotate back.

        Returns the decoded weights, and masks of the sent ones among the rotated weights, bool, in the weights' shapes.
        """
        encoding, layers = self._encoding, layers_of(wanted)
        if not layers:
            return {}, {}
        flat = [torch.cat([wanted[name].flatten() for name in names]) for names in layers.values()]
        if encoding.rotate:
            flat = [rotated(x, self._shared(1, place)) for place, x in enumerate(flat)]
        together = torch.cat(flat)
        count, scale = encoding.count(together.numel()), 1.0
        match encoding.sparsify:
            case "none":
                mask = torch.ones_like(together, dtype=torch.bool)
            case "rand_k":
                mask = torch.zeros_like(together, dtype=torch.bool)
                mask[torch.randperm(together.numel(), generator=self._shared(0))[:count]] = True
                if not encoding.error_feedback:  # with it the missing weights come later
                    scale = together.numel() / count  # so that the mean of what arrives is unbiased
            case _:
                mask = largest(together, count)
        chosen = torch.split(mask, [x.numel() for x in flat])
        generator = torch.Generator().manual_seed(self._key.word())
        decoded_layers: list[Tensor] = []  # zeros for weights that are not sent
        for x, there in zip(flat, chosen, strict=True):
            result = torch.zeros_like(x)
            if bool(there.any()):
                result[there] = sent((x * scale)[there], encoding, generator)
            decoded_layers.append(result)
        if encoding.rotate:
            decoded_layers = [turned_back(x, self._shared(1, place)) for place, x in enumerate(decoded_layers)]
        return _pieces(decoded_layers, layers, wanted), _pieces(chosen, layers, wanted)

    def _shared(self, *index: int) -> torch.Generator:
        """Return a generator that sender and receiver share."""
        return torch.Generator().manual_seed(self._key.at(0, *index).word())


def _pieces(
    flat: Sequence[Tensor], layers: Mapping[str, Sequence[str]], like: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Split the vector of each layer into its tensors, in the shapes of `like`."""
    result: dict[str, Tensor] = {}
    for names, x in zip(layers.values(), flat, strict=True):
        pieces = torch.split(x, [like[name].numel() for name in names])
        result |= {name: piece.view(like[name].shape) for name, piece in zip(names, pieces, strict=True)}
    return result


def shortened(moved: Mapping[str, Tensor], longest: float) -> Mapping[str, Tensor]:
    """Return a move scaled down to this norm if it is longer. All its tensors count as one vector."""
    if not moved or longest == math.inf:
        return moved
    norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(t.double()) for t in moved.values()]))
    factor = min(1.0, longest / float(norm)) if norm > 0 else 1.0
    return {name: tensor * factor for name, tensor in moved.items()}


def largest(flat: Tensor, count: int) -> Tensor:
    """Return a mask of the `count` numbers of largest magnitude, bool, shape (n,). Of equal ones the first count."""
    magnitudes = flat.abs()
    least = torch.topk(magnitudes, count, sorted=False).values.min()
    chosen = magnitudes > least
    equal = torch.nonzero(magnitudes == least).flatten()
    chosen[equal[: count - int(chosen.sum())]] = True
    return chosen


def left_of_part(left: ModelState, submodel: Submodel, cost_profile: CostProfile) -> ModelState:
    """Return the remainders of updates on a device, cut to the channels of a part."""
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
    """Return the remainders of updates on a device, with those of a part in their places. Other entries stay.

    `model`: the whole model, for the shapes of new remainders.
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
