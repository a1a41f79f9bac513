"""Encoding of model states: the receiver's copy of the collections and layers that a payload carries.

The trainer passes every message through here, so that methods need not encode anything themselves.
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
from edgesim.core.task import TENSORS, Payload, Task
from edgesim.core.update import ModelState
from edgesim.learning.codec.transfer import on_cpu
from edgesim.learning.models.trace import layer_of

_NOTHING = 1e-10  # norm below which gsgd's authors send numbers unchanged


def uplinked(body: ModelState, task: Task, usual: Encoding, key: Key) -> ModelState:
    """Return the message of a job as its receivers decode it, on the CPU. `key`: of the job's assignment.

    Equal arguments give equal results, so a method whose devices must know the decoded message may call it too.
    `usual`: the encoding of a payload that names none. If a part under a mask has a weight that is rounded to 0, it
    arrives as the least normal number above 0, so that it still counts as kept.
    """
    carried = on_cpu(carried_by(body, task.up))
    return _crossed(carried, task, task.up.encoding or usual, key.at(JobStream.UPLINK))


def downlinked(base: ModelState, task: Task, usual: Encoding, key: Key) -> ModelState:
    """Return the model as a device decodes it from the server's message. `key`: of the job's assignment.

    Tensors that the payload does not carry stay unchanged. `usual`, and weights under a mask: as for `uplinked`.
    """
    if task.start == "device" or task.down is None:
        return base
    got = _crossed(carried_by(base, task.down), task, task.down.encoding or usual, key.at(JobStream.DOWNLINK))
    return {collection: {**tensors, **got.get(collection, {})} for collection, tensors in base.items()}


def sent(tensor: Tensor, encoding: Encoding, generator: torch.Generator) -> Tensor:
    """Return a floating-point tensor as the receiver decodes it. If the encoding has a scale, one scale is used.

    Infinite and undefined numbers stay infinite or undefined, or make all others undefined.
    """
    match encoding.values:
        case "float32":
            return tensor
        case "float16":
            return tensor.half().to(tensor.dtype)
        case "int8":
            return _nearest_int8(tensor)
        case "sign":
            return _signs(tensor, encoding.scale)
        case _:
            assert encoding.bits is not None
            u = torch.rand(tensor.shape, generator=generator, dtype=torch.float32)
            return stochastic(tensor, encoding.bits, u, shrunk=encoding.values == "gsgd")


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


def _nearest_int8(tensor: Tensor) -> Tensor:
    """Round to the nearest multiples of a scale: 1/127 of the largest magnitude, in the tensor's own precision."""
    exact_scale = tensor.abs().max().double() / 127.0
    scale = exact_scale.to(tensor.dtype)
    # A subnormal scale has few digits. Rounded down, it would be 0 or could not represent the largest number.
    if scale < torch.finfo(tensor.dtype).tiny and scale.double() < exact_scale:
        scale = torch.nextafter(scale, torch.ones_like(scale))
    return tensor if scale == 0 else _times(torch.round(tensor.double() / scale.double()), scale, tensor)


def _signs(tensor: Tensor, scale: Scale) -> Tensor:
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


def carried_by(model_state: ModelState, payload: Payload) -> dict[str, dict[str, Tensor]]:
    """Return the tensors of a model state that a payload carries.

    Raises ContractError if a tensor that the payload declares is missing or has another shape or type.
    """

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
    declared: dict[str, Tensor] = {}
    for spec in payload.tensors:
        tensor = model_state.get(TENSORS, {}).get(spec.name)
        if tensor is None:
            raise ContractError(f"a payload declares the tensor {spec.name!r}, but the method gave none of this name")
        found = (tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))
        if found != (spec.shape, spec.dtype):
            raise ContractError(
                f"the tensor {spec.name!r} was declared as {spec.dtype} of shape {spec.shape}, "
                f"but the method gave {found[1]} of shape {found[0]}"
            )
        declared[spec.name] = cast(Tensor, tensor)
    return {**model, TENSORS: declared}


def _crossed(carried: dict[str, dict[str, Tensor]], task: Task, encoding: Encoding, key: Key) -> ModelState:
    """Decode a message. Under a mask, weights that were rounded to 0 become the least normal number."""
    got = decoded(carried, encoding, key)
    if not task.submodel.nnz:
        return got

    def kept(arrived: Tensor, sent: Tensor) -> Tensor:
        if arrived is sent or sent.dim() < 2 or not sent.is_floating_point():
            return arrived
        return arrived.masked_fill((arrived == 0) & (sent != 0), torch.finfo(arrived.dtype).tiny)

    return {
        collection: {n: t if collection == TENSORS else kept(t, carried[collection][n]) for n, t in tensors.items()}
        for collection, tensors in got.items()
    }


def decoded(model_state: dict[str, dict[str, Tensor]], encoding: Encoding, key: Key) -> ModelState:
    """Return a model state as the receiver decodes it.

    If the encoding has scales, the weights of each layer share one, a method's own tensors of two dimensions or more
    have one each, and all other tensors stay unchanged.
    """
    if encoding == FLOAT32:
        return model_state
    generator = torch.Generator().manual_seed(key.word())
    result: dict[str, dict[str, Tensor]] = {}
    for collection, tensors in model_state.items():
        result[collection] = got = dict(tensors)
        if not encoding.scaled or collection == TENSORS:
            least = 2 if encoding.scaled else 0  # dimensions
            coded = [n for n, t in tensors.items() if t.is_floating_point() and t.dim() >= least]
            got |= {n: sent(tensors[n], encoding, generator) for n in coded}
        elif collection != "buffers":
            for names in layers_of(tensors).values():
                # Entries are in logical order, whatever their layout in memory.
                flat = torch.cat([tensors[name].flatten() for name in names])
                pieces = torch.split(sent(flat, encoding, generator), [tensors[name].numel() for name in names])
                got |= {name: piece.view(tensors[name].shape) for name, piece in zip(names, pieces, strict=True)}
    return result


def layers_of(tensors: Mapping[str, Tensor]) -> dict[str, list[str]]:
    """Return the names of the weights of each layer: floating-point tensors of two dimensions or more."""
    layers: dict[str, list[str]] = {}
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and tensor.dim() >= 2:
            layers.setdefault(layer_of(name), []).append(name)
    return layers
