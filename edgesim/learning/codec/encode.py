"""What arrives of a model state: the collections and layers that its payload carries, as the receiver decodes them.

The trainer lets everything that crosses a link pass through here, so that a method need not think of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import cast

import torch
from torch import Tensor

from edgesim.core.encoding import FLOAT32, Encoding, Scale
from edgesim.core.errors import ContractError
from edgesim.core.rng import JobStream, Key
from edgesim.core.task import TENSORS, Payload, Task, TensorSpec
from edgesim.core.update import ModelState
from edgesim.learning.codec.transfer import on_cpu
from edgesim.learning.models.trace import layer_of

_NOTHING = 1e-10  # a norm below which gsgd's authors send numbers as they are


def uplinked(body: ModelState, task: Task, usual: Encoding, key: Key) -> ModelState:
    """Return what others get of the message of a job whose assignment has `key`, on the CPU.

    Asking twice gives the same, so that a method whose devices have to know what others got may ask too.
    `usual`: the encoding of a payload that names none. Of a part under a mask, a weight that is rounded to 0 arrives as
    the least number above 0, so that it still counts as one that is there.
    """
    carried = on_cpu(carried_by(body, task.up))
    return _crossed(carried, task, task.up.encoding or usual, key.at(JobStream.UPLINK))


def downlinked(base: ModelState, task: Task, usual: Encoding, key: Key) -> ModelState:
    """Return the model that a device got from the server, for a job whose assignment has `key`.

    What its payload does not carry stays as it is. `usual`, and weights under a mask: as for `uplinked`.
    """
    if task.start == "device" or task.down is None:
        return base
    got = _crossed(carried_by(base, task.down), task, task.down.encoding or usual, key.at(JobStream.DOWNLINK))
    return {collection: {**tensors, **got.get(collection, {})} for collection, tensors in base.items()}


def sent(tensor: Tensor, encoding: Encoding, generator: torch.Generator) -> Tensor:
    """Return a floating-point tensor as the receiver decodes it, all of it on one scale if the encoding has one.

    Infinite and undefined numbers stay so, or make all others undefined.
    """
    match encoding.values:
        case "float32":
            return tensor
        case "float16":
            return tensor.half().to(tensor.dtype)
        case "int8":
            return _nearest(tensor)
        case "sign":
            return _signs(tensor, encoding.scale)
        case _:
            assert encoding.bits is not None
            u = torch.rand(tensor.shape, generator=generator, dtype=torch.float32)
            return stochastic(tensor, encoding.bits, u, shrunk=encoding.values == "gsgd")


def stochastic(tensor: Tensor, bits: int, u: Tensor, shrunk: bool) -> Tensor:
    """Return sign(x) norm / (tau levels) floor(levels |x| / norm + u) with levels = 2^(bits - 1).

    `u`: uniform in [0, 1), float32, of the tensor's shape. `shrunk`: tau = 1 + min(d / levels^2, sqrt(d) / levels) for
    d numbers, so that the mean error is smaller than x; else tau = 1 and the mean is x. A tensor of next to nothing
    stays. In double precision, in which no sum is rounded up to a level beyond the last.
    Source: Alistarh et al., "QSGD" (2017); with tau: Zhao et al., "BEER" (2022), gsgd.
    """
    exact, levels = tensor.double(), 2.0 ** (bits - 1)
    norm = torch.linalg.vector_norm(exact)
    if norm < _NOTHING:
        return tensor
    d = tensor.numel()
    tau = 1.0 + min(d / levels**2, math.sqrt(d) / levels) if shrunk else 1.0
    multiples = exact.sign() * torch.floor(levels * exact.abs() / norm + u)
    return _times(multiples, norm / (tau * levels), tensor)


def _nearest(tensor: Tensor) -> Tensor:
    """Return the nearest multiples of a 127th of the largest number, in the precision in which that 127th travels."""
    exact_scale = tensor.abs().max().double() / 127.0
    scale = exact_scale.to(tensor.dtype)
    # A subnormal scale has few digits: rounded down it would not reach the largest number, or would be 0.
    if scale < torch.finfo(tensor.dtype).tiny and scale.double() < exact_scale:
        scale = torch.nextafter(scale, torch.ones_like(scale))
    return tensor if scale == 0 else _times(torch.round(tensor.double() / scale.double()), scale, tensor)


def _signs(tensor: Tensor, scale: Scale) -> Tensor:
    """Return one magnitude with each number's sign, that of 0 being positive.

    The magnitude is the mean |x| (Karimireddy et al., "Error Feedback Fixes SignSGD and other Gradient Compression
    Schemes", 2019, section 4) or the norm of x over the root of how many numbers it has (Tang et al., "1-bit Adam",
    2021, where the signs have the norm of x).
    """
    if scale == "mean":
        magnitude = tensor.abs().mean(dtype=torch.float64).to(tensor.dtype)
    else:
        norm = torch.linalg.vector_norm(tensor, dtype=torch.float64)
        magnitude = (norm / math.sqrt(tensor.numel())).to(tensor.dtype)
    return torch.where(tensor < 0, -magnitude, magnitude)


def _times(multiples: Tensor, scale: Tensor, like: Tensor) -> Tensor:
    """Return multiples of a scale that travels in the precision of the tensor."""
    return multiples.to(like.dtype) * scale.to(like.dtype)


def carried_by(model_state: ModelState, payload: Payload) -> dict[str, dict[str, Tensor]]:
    """Return what a payload has of a model state. Raises ContractError for a declared tensor that is not there."""

    def carried(name: str, tensor: Tensor) -> bool:
        in_layers = payload.layers is None or layer_of(name) in payload.layers
        return in_layers and (tensor.dim() >= 2 or not payload.weights_only)

    model = {
        collection: {n: t for n, t in tensors.items() if carried(n, t)}
        for collection, tensors in model_state.items()
        if collection in payload.collections
    }
    if not payload.tensors:
        return model
    return {**model, TENSORS: {spec.name: _declared(spec, model_state) for spec in payload.tensors}}


def _declared(spec: TensorSpec, model_state: ModelState) -> Tensor:
    """Return a method's own tensor. Raises ContractError if there is none of the shape and type that was declared."""
    tensor = model_state.get(TENSORS, {}).get(spec.name)
    if tensor is None:
        raise ContractError(f"a payload declares the tensor {spec.name!r}, but the method gave none of this name")
    found = (tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))
    if found != (spec.shape, spec.dtype):
        raise ContractError(
            f"the tensor {spec.name!r} was declared as {spec.dtype} of shape {spec.shape}, "
            f"but the method gave {found[1]} of shape {found[0]}"
        )
    return cast(Tensor, tensor)


def _crossed(carried: dict[str, dict[str, Tensor]], task: Task, encoding: Encoding, key: Key) -> ModelState:
    got = decoded(carried, encoding, key)
    return _still_there(got, carried) if task.submodel.nnz else got


def decoded(model_state: dict[str, dict[str, Tensor]], encoding: Encoding, key: Key) -> ModelState:
    """Return a model state as the receiver reads it."""
    if encoding == FLOAT32:
        return model_state
    generator = torch.Generator().manual_seed(key.word())
    if not encoding.scaled:
        return {
            collection: {n: _cast(t, encoding, generator) for n, t in ts.items()}
            for collection, ts in model_state.items()
        }
    ways = {"buffers": _as_they_are, TENSORS: _each_scaled}
    return {
        collection: ways.get(collection, _scaled)(ts, encoding, generator) for collection, ts in model_state.items()
    }


def layers_of(tensors: Mapping[str, Tensor]) -> dict[str, list[str]]:
    """Return the names of the weights of each layer: floating-point tensors of two dimensions or more."""
    layers: dict[str, list[str]] = {}
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and tensor.dim() >= 2:
            layers.setdefault(layer_of(name), []).append(name)
    return layers


def _still_there(got: ModelState, carried: ModelState) -> ModelState:
    """Return what arrived, with the least normal number for weights that were rounded to 0."""

    def telling(there: Tensor, sent: Tensor) -> Tensor:
        if there is sent or sent.dim() < 2 or not sent.is_floating_point():
            return there
        return there.masked_fill((there == 0) & (sent != 0), torch.finfo(there.dtype).tiny)

    return {
        collection: {n: t if collection == TENSORS else telling(t, carried[collection][n]) for n, t in tensors.items()}
        for collection, tensors in got.items()
    }


def _cast(tensor: Tensor, encoding: Encoding, generator: torch.Generator) -> Tensor:
    return sent(tensor, encoding, generator) if tensor.is_floating_point() else tensor


def _as_they_are(tensors: Mapping[str, Tensor], encoding: Encoding, generator: torch.Generator) -> dict[str, Tensor]:
    return dict(tensors)


def _each_scaled(tensors: Mapping[str, Tensor], encoding: Encoding, generator: torch.Generator) -> dict[str, Tensor]:
    """Return tensors of a method's own, each on a scale of its own; vectors and whole numbers as they are."""
    scaled = {n for n, t in tensors.items() if t.is_floating_point() and t.dim() >= 2}
    return {n: sent(t, encoding, generator) if n in scaled else t for n, t in tensors.items()}


def _scaled(tensors: Mapping[str, Tensor], encoding: Encoding, generator: torch.Generator) -> dict[str, Tensor]:
    """Return tensors with the weights of each layer on a scale of their own, and vectors as they are."""
    result = dict(tensors)
    for names in layers_of(tensors).values():
        # in the order of the entries, whatever their layout in memory
        flat = torch.cat([tensors[name].flatten() for name in names])
        pieces = torch.split(sent(flat, encoding, generator), [tensors[name].numel() for name in names])
        result |= {name: piece.view(tensors[name].shape) for name, piece in zip(names, pieces, strict=True)}
    return result
