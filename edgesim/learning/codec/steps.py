"""Values that the steps of an encoding leave: one function for each class of `edgesim.core.encoding`.

A function gets the floating-point tensors of a collection, by name, and the steps behind its own as `rest`. It changes
the tensors on the way out, and undoes the change, where it can be undone, on the way back. So what it returns are the
tensors as the receiver decodes them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, TypeAlias

import torch
from torch import Tensor

from edgesim.core import encoding
from edgesim.core.encoding import EncodingStep
from edgesim.core.rng import Key
from edgesim.learning.models.trace import layer_of

Tensors: TypeAlias = Mapping[str, Tensor]
Rest: TypeAlias = Callable[[Tensors], Tensors]

_NOTHING = 1e-10  # norm below which gsgd's authors send numbers unchanged; share of a column that rounding leaves


@dataclass
class Message:
    """Tensors of one collection, or of several that share random numbers, on their way through a chain of steps."""

    steps: tuple[EncodingStep, ...]
    key: Key
    base: Tensors = field(default_factory=dict)  # tensors that the receiver has, to which a change is added
    moves: Tensors = field(default_factory=dict)  # changes that the sender knows better than as a difference
    before: Mapping[str, Tensors] = field(default_factory=dict)  # state on the device, by `EncodingStep.keeps`
    left: dict[str, Tensors] = field(default_factory=dict)  # state after the message
    sent: Tensors = field(default_factory=dict)  # masks of the sent weights, bool, where a step has chosen some

    def crossed(self, tensors: Tensors, place: int = 0) -> Tensors:
        """Return floating-point tensors as the receiver decodes them, in the same order. `place`: of the first step."""
        if place == len(self.steps):
            return tensors
        step, rest = self.steps[place], partial(self.crossed, place=place + 1)
        work = WORK.get(type(step))
        result: Tensors = work(step, tensors, rest, self) if work else step.crossed(tensors, rest, self)
        return result

    @cached_property
    def rounding(self) -> torch.Generator:
        """Generator of the random numbers of the sender alone."""
        return torch.Generator().manual_seed(self.key.word())

    def shared(self, *index: int) -> torch.Generator:
        """Return a generator that sender and receiver share."""
        return torch.Generator().manual_seed(self.key.at(0, *index).word())


# --- layers -----------------------------------------------------------------------------------------------------------


def layers_of(tensors: Tensors) -> dict[str, list[str]]:
    """Return the names of the weights of each layer: floating-point tensors of two dimensions or more."""
    layers: dict[str, list[str]] = {}
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and tensor.dim() >= 2:
            layers.setdefault(layer_of(name), []).append(name)
    return layers


def flat_layers(tensors: Tensors) -> dict[str, Tensor]:
    """Return the weights of each layer as one vector, in logical order, whatever their layout in memory."""
    return {layer: torch.cat([tensors[n].flatten() for n in names]) for layer, names in layers_of(tensors).items()}


def shaped(flat: Tensors, like: Tensors) -> dict[str, Tensor]:
    """Return the tensors whose weights are in the vectors of layers, by name, in the shapes of `like`."""
    result: dict[str, Tensor] = {}
    for layer, names in layers_of(like).items():
        pieces = torch.split(flat[layer], [like[name].numel() for name in names])
        result |= {name: piece.view(like[name].shape) for name, piece in zip(names, pieces, strict=True)}
    return result


# --- updates ----------------------------------------------------------------------------------------------------------


def change(step: encoding.Change, tensors: Tensors, rest: Rest, message: Message) -> Tensors:
    """Send the changes from the base. Vectors are sent themselves, unless a step works on them."""
    base, moves = message.base, message.moves
    got = rest({n: moves[n] if n in moves else t - base[n] if n in base else t for n, t in tensors.items()})
    vectors = any(s.of_params or (isinstance(s, encoding.Quantise) and not s.scaled) for s in message.steps)
    arrived = {n: got[n] for n, t in tensors.items() if vectors or t.dim() >= 2}
    return {**tensors, **{n: base[n] + t if n in base else t for n, t in arrived.items()}}


def clip(step: encoding.Clip, tensors: Tensors, rest: Rest, message: Message) -> Tensors:
    """Scale an update down to a norm if it is longer. All its tensors count as one vector."""
    if not tensors:
        return rest(tensors)
    norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(t.double()) for t in tensors.values()]))
    factor = min(1.0, step.norm / float(norm)) if norm > 0 else 1.0
    return rest({name: tensor * factor for name, tensor in tensors.items()})


def momentum(step: encoding.Momentum, tensors: Tensors, rest: Rest, message: Message) -> Tensors:
    """Send u <- m u + g for a change g, or g itself before the first u."""
    u = message.before.get(step.keeps, {})
    moved = {n: t.add(u[n], alpha=step.m) if n in u else t for n, t in tensors.items()}
    got, sent = rest(moved), message.sent
    message.left[step.keeps] = {n: t.masked_fill(sent[n], 0.0) if n in sent else t for n, t in moved.items()}
    return got


def error_feedback(step: encoding.ErrorFeedback, tensors: Tensors, rest: Rest, message: Message) -> Tensors:
    """Add the residual to the weights, and keep what does not arrive."""
    residual = message.before.get(step.keeps, {})
    names = [name for same in layers_of(tensors).values() for name in same]
    wanted = {n: tensors[n] + residual[n] if n in residual else tensors[n] for n in names}
    got = rest({**tensors, **wanted})
    message.left[step.keeps] = {name: tensor - got[name] for name, tensor in wanted.items()}
    return got


# --- low rank ---------------------------------------------------------------------------------------------------------


def low_rank(step: encoding.LowRank, tensors: Tensors, rest: Rest, message: Message) -> Tensors:
    """Send matrices as two thin ones, and keep bases for the next update."""
    known, got, kept = message.before.get(step.keeps, {}), dict[str, Tensor](), dict[str, Tensor]()
    for place, name in enumerate(name for same in layers_of(tensors).values() for name in same):
        tensor = tensors[name]
        matrix = tensor.reshape(len(tensor), -1)
        if rank := step.rank_of(*matrix.shape):
            last = known[name].flatten(1) if name in known else None
            p, q = factors(matrix, warm(last, matrix.shape[1], rank, message.shared(2, place)))
            got[name] = (p @ q.T).view(tensor.shape)
            kept[name] = q.T.reshape(rank, *tensor.shape[1:])
    message.left[step.keeps] = kept
    return {**tensors, **rest({name: tensor for name, tensor in tensors.items() if name not in got}), **got}


def factors(matrix: Tensor, basis: Tensor) -> tuple[Tensor, Tensor]:
    """Return P of shape (n, r) and Q of shape (m, r), so that P Q^T approximates a matrix of shape (n, m).

    `basis`: shape (m, r). P has orthonormal columns, or zeros if the rank of the matrix is below r, and spans the
    matrix times the basis. P Q^T is the projection of the matrix onto this span. Computed in double precision.
    """
    exact = matrix.double()
    p = orthonormal(exact @ basis.double())
    return p.to(matrix.dtype), (exact.T @ p).to(matrix.dtype)


def orthonormal(columns: Tensor) -> Tensor:
    """Return a matrix of orthonormal columns with the same span, by the modified Gram-Schmidt process.

    A column that depends on earlier columns becomes 0.
    """
    result = columns.clone()
    for place in range(columns.shape[1]):
        column = result[:, place]
        for before in range(place):
            column -= (result[:, before] @ column) * result[:, before]
        norm = torch.linalg.vector_norm(column)
        there = norm > _NOTHING * torch.linalg.vector_norm(columns[:, place])
        result[:, place] = column / norm if there else torch.zeros_like(column)
    return result


def warm(known: Tensor | None, each: int, rank: int, generator: torch.Generator) -> Tensor:
    """Return a basis of shape (each, rank): the known columns, with drawn columns in place of zero columns.

    `known`: shape (rank, each), or None if no column is known. Drawn numbers are standard normal.
    """
    drawn = torch.randn(rank, each, generator=generator)
    return (drawn if known is None else torch.where(known.any(dim=1, keepdim=True), known, drawn)).T


# --- rotations --------------------------------------------------------------------------------------------------------


def rotate(step: encoding.Rotate, tensors: Tensors, rest: Rest, message: Message) -> Tensors:
    """Rotate the weights of each layer, and rotate back what arrives."""

    def turned(given: Tensors, turn: Callable[[Tensor, torch.Generator], Tensor]) -> Tensors:
        flat = {layer: turn(x, message.shared(1, place)) for place, (layer, x) in enumerate(flat_layers(given).items())}
        return {**given, **shaped(flat, given)}

    return turned(rest(turned(tensors, rotated)), turned_back)


def rotated(vector: Tensor, generator: torch.Generator) -> Tensor:
    """Return H D x for signs D drawn from the generator, of the vector's shape (n,).

    The papers fill x up with zeros to a power of 2, and these zeros would have to be sent. Here H has a Hadamard matrix
    on its diagonal for each power of 2 in n, the largest first. H is still orthogonal and symmetric.
    Source: Konecny et al. (2016), section 4; Suresh et al., "Distributed Mean Estimation with Limited Communication"
    (2017), section 4.
    """
    return _hadamard(vector * _random_signs(vector, generator))


def turned_back(vector: Tensor, generator: torch.Generator) -> Tensor:
    """Return the original of a vector that `rotated` returned: D H y. The generator must draw the same signs."""
    return _hadamard(vector) * _random_signs(vector, generator)


def _random_signs(vector: Tensor, generator: torch.Generator) -> Tensor:
    return 2.0 * torch.randint(0, 2, vector.shape, generator=generator).to(vector.dtype) - 1.0


def _hadamard(vector: Tensor) -> Tensor:
    """Return the product of a vector with the orthonormal matrix of Hadamard blocks."""
    result, start = torch.empty_like(vector), 0
    for size in (1 << place for place in reversed(range(vector.numel().bit_length()))):
        if vector.numel() & size:  # a Walsh-Hadamard transform
            block, half = vector[start : start + size], 1
            while half < size:
                pairs = block.view(-1, 2, half)
                block = torch.stack((pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]), 1).flatten()
                half *= 2
            result[start : start + size] = block / math.sqrt(size)
            start += size
    return result


# --- choices of weights -----------------------------------------------------------------------------------------------


def top_k(step: encoding.TopK, tensors: Tensors, rest: Rest, message: Message) -> Tensors:
    """Send the largest weights."""
    return sparse(step, tensors, rest, message, largest)


def rand_k(step: encoding.RandK, tensors: Tensors, rest: Rest, message: Message) -> Tensors:
    """Send random weights."""

    def drawn(weights: Tensor, count: int) -> Tensor:
        mask = torch.zeros_like(weights, dtype=torch.bool)
        mask[torch.randperm(weights.numel(), generator=message.shared(0))[:count]] = True
        return mask

    return sparse(step, tensors, rest, message, drawn, step.larger)


def sparse(
    step: encoding.Sparsify,
    tensors: Tensors,
    rest: Rest,
    message: Message,
    choose: Callable[[Tensor, int], Tensor],
    larger: bool = False,
) -> Tensors:
    """Send chosen weights and all vectors. The weights of a layer are one row under the name of its first tensor.

    `choose`: returns the mask of `count` of the weights of all layers, bool. `larger`: the weights are sent larger by
    the inverse of their share.
    """
    layers, flat = layers_of(tensors), flat_layers(tensors)
    if not layers:
        return rest(tensors)
    weights = torch.cat(list(flat.values()))
    count = step.count(weights.numel())
    scale = weights.numel() / count if larger else 1.0
    masks = dict(zip(flat, torch.split(choose(weights, count), [x.numel() for x in flat.values()]), strict=True))
    message.sent = shaped(masks, tensors)
    rows = {layers[layer][0]: (x * scale)[masks[layer]][None] for layer, x in flat.items() if masks[layer].any()}
    got = rest({**{n: t for n, t in tensors.items() if t.dim() < 2}, **rows})
    whole = {  # a layer of which nothing is sent takes nothing from x
        layer: torch.zeros_like(x).masked_scatter(masks[layer], got.get(layers[layer][0], x))
        for layer, x in flat.items()
    }
    return {n: got[n] if t.dim() < 2 else t for n, t in {**tensors, **shaped(whole, tensors)}.items()}


def largest(flat: Tensor, count: int) -> Tensor:
    """Return a mask of the `count` numbers of largest magnitude, bool, shape (n,). Of equal ones the first count."""
    magnitudes = flat.abs()
    least = torch.topk(magnitudes, count, sorted=False).values.min()
    chosen = magnitudes > least
    equal = torch.nonzero(magnitudes == least).flatten()
    chosen[equal[: count - int(chosen.sum())]] = True
    return chosen


# --- quantisation -----------------------------------------------------------------------------------------------------


def quantise(step: encoding.Quantise, tensors: Tensors, rest: Rest, message: Message) -> Tensors:
    """Round all tensors, or the weights of each layer with a scale of their own."""
    if not step.scaled:
        return {name: rounded(step, tensor, message.rounding) for name, tensor in tensors.items()}
    flat = {layer: rounded(step, x, message.rounding) for layer, x in flat_layers(tensors).items()}
    return {**tensors, **shaped(flat, tensors)}


def rounded(step: encoding.Quantise, tensor: Tensor, generator: torch.Generator) -> Tensor:
    """Return a floating-point tensor as the receiver decodes it. If the step has a scale, one scale is used.

    Infinite and undefined numbers stay infinite or undefined, or make all others undefined.
    """
    if isinstance(step, encoding.Sign):
        return signs(tensor, step.scale)
    match step.values:
        case "float16":
            return tensor.half().to(tensor.dtype)
        case "int8":
            return nearest_int8(tensor)
        case _:
            u = torch.rand(tensor.shape, generator=generator, dtype=torch.float32)
            return stochastic(tensor, step.bits, u, shrunk=step.values == "gsgd")


def stochastic(tensor: Tensor, bits: int, u: Tensor, shrunk: bool) -> Tensor:
    """Return sign(x) norm / (tau levels) floor(levels |x| / norm + u) with levels = 2^(bits - 1).

    `u`: uniform in [0, 1), float32, of the tensor's shape. `shrunk`: tau = 1 + min(d / levels^2, sqrt(d) / levels) for
    d numbers, so that the mean error is smaller than x. Otherwise tau = 1 and the mean is x. A tensor of almost zero
    norm stays unchanged. Computed in double precision, in which no sum is rounded up to a level beyond the last.
    Source: Alistarh et al., "QSGD" (2017). With tau: Zhao et al., "BEER" (2022), gsgd.
    """
    exact, levels = tensor.double(), 2.0 ** (bits - 1)
    norm = torch.linalg.vector_norm(exact)
    if norm < _NOTHING:
        return tensor
    d = tensor.numel()
    tau = 1.0 + min(d / levels**2, math.sqrt(d) / levels) if shrunk else 1.0
    multiples = exact.sign() * torch.floor(levels * exact.abs() / norm + u)
    return _times(multiples, norm / (tau * levels), tensor)


def nearest_int8(tensor: Tensor) -> Tensor:
    """Round to the nearest multiples of a scale: 1/127 of the largest magnitude, in the tensor's own precision."""
    exact_scale = tensor.abs().max().double() / 127.0
    scale = exact_scale.to(tensor.dtype)
    # A subnormal scale has few digits. Rounded down, it would be 0 or could not represent the largest number.
    if scale < torch.finfo(tensor.dtype).tiny and scale.double() < exact_scale:
        scale = torch.nextafter(scale, torch.ones_like(scale))
    return tensor if scale == 0 else _times(torch.round(tensor.double() / scale.double()), scale, tensor)


def signs(tensor: Tensor, scale: encoding.Scale) -> Tensor:
    """Return one magnitude with each number's sign, where 0 counts as positive.

    The magnitude is the mean |x| (Karimireddy et al., "Error Feedback Fixes SignSGD and other Gradient Compression
    Schemes", 2019, section 4), or the norm of x over the root of the number of entries (Tang et al., "1-bit Adam",
    2021, where the signs have the norm of x).
    """
    if scale == "mean":
        magnitude = tensor.abs().mean(dtype=torch.float64).to(tensor.dtype)
    else:
        norm = torch.linalg.vector_norm(tensor, dtype=torch.float64)
        magnitude = (norm / math.sqrt(tensor.numel())).to(tensor.dtype)
    return torch.where(tensor < 0, -magnitude, magnitude)


def _times(multiples: Tensor, scale: Tensor, like: Tensor) -> Tensor:
    """Return multiples of a scale that is sent in the precision of the tensor."""
    return multiples.to(like.dtype) * scale.to(like.dtype)


# Steps that are not here leave all values as they are, or compute them in a method of their own.
WORK: Mapping[type[EncodingStep], Callable[..., Any]] = {
    encoding.Change: change,
    encoding.Clip: clip,
    encoding.Momentum: momentum,
    encoding.ErrorFeedback: error_feedback,
    encoding.LowRank: low_rank,
    encoding.Rotate: rotate,
    encoding.TopK: top_k,
    encoding.RandK: rand_k,
    encoding.Quantise: quantise,
    encoding.Sign: quantise,
}
