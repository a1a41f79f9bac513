"""Messages as they arrive: what a payload carries of a model state, through the steps of its encoding.

The trainer passes every message through here, so that methods need not encode anything themselves. Updates are encoded
as the change of the weights from those received, and leave state on the device.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import torch
from torch import Tensor

from edgesim.core.backend import Assignment
from edgesim.core.encoding import Codec
from edgesim.core.errors import ContractError
from edgesim.core.price_list import CostProfile
from edgesim.core.rng import JobStream, Key
from edgesim.core.task import TENSORS, Payload, Submodel, Task
from edgesim.core.update import AVERAGED, ModelState
from edgesim.learning.aggregate.mean import is_finite
from edgesim.learning.codec.kept import state_name, step_of
from edgesim.learning.codec.steps import Message, Tensors
from edgesim.learning.codec.transfer import on_cpu
from edgesim.learning.models.trace import layer_of
from edgesim.learning.submodel.slicing import Cut


def uplinked(body: ModelState, task: Task, usual: Codec, key: Key) -> ModelState:
    """Return the message of a job as its receivers decode it, on the CPU. `key`: of the job's assignment.

    Equal arguments give equal results, so a method whose devices must know the decoded message may call it too.
    `usual`: the encoding of a payload that names none. If a part under a mask has a weight that is rounded to 0, it
    arrives as the least normal number above 0, so that it still counts as kept.
    """
    carried = on_cpu(carried_by(body, task.up))
    return _crossed(carried, task, task.up.encoding or usual, key.at(JobStream.UPLINK))


def downlinked(base: ModelState, task: Task, usual: Codec, key: Key) -> ModelState:
    """Return the model as a device decodes it from the server's message. `key`: of the job's assignment.

    Tensors that the payload does not carry stay unchanged. `usual`, and weights under a mask: as for `uplinked`.
    """
    if task.start == "device" or task.down is None:
        return base
    got = _crossed(carried_by(base, task.down), task, task.down.encoding or usual, key.at(JobStream.DOWNLINK))
    return {collection: {**tensors, **got.get(collection, {})} for collection, tensors in base.items()}


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


def _crossed(carried: dict[str, dict[str, Tensor]], task: Task, encoding: Codec, key: Key) -> ModelState:
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


def decoded(model_state: ModelState, encoding: Codec, key: Key) -> ModelState:
    """Return a model state as the receiver decodes it.

    If the encoding has scales, the weights of each layer share one, a method's own tensors of two dimensions or more
    have one each, and all other tensors stay unchanged.
    """
    if not encoding.steps:
        return model_state
    message, result = Message(encoding.steps, key), dict[str, Tensors]()
    for collection, tensors in model_state.items():
        got: Tensors = {name: t for name, t in tensors.items() if t.is_floating_point()}
        if collection == TENSORS:
            got = {name: message.crossed({name: t})[name] for name, t in got.items()}
        elif collection == "buffers":  # vectors, whatever their shapes
            flat = message.crossed({name: t.flatten() for name, t in got.items()})
            got = {name: flat[name].view(t.shape) for name, t in got.items()}
        else:
            got = message.crossed(got)
        result[collection] = {**tensors, **got}
    return result


# --- updates ----------------------------------------------------------------------------------------------------------


def update_uplinked(
    body: ModelState,
    received: ModelState,
    before: ModelState,
    assignment: Assignment,
    encoding: Codec,
    moves: ModelState | None = None,
) -> tuple[ModelState, ModelState]:
    """Return the decoded message of an encoded update and the state that its steps leave on the device, on the CPU.

    `received`: the model that the device got. `before`: the state that earlier updates left, in the shapes of the body.
    The decoded move is added to the weights of the model. A method's own collections are changes themselves, so nothing
    is added to them. `moves`: the moves of tensors of the model that the method knows more precisely than as the
    difference of two rounded models. A body that is not finite arrives unchanged and leaves no state.
    """
    task, key = assignment.task, assignment.key.at(JobStream.UPLINK)
    carried = on_cpu(carried_by(body, task.up))
    if not is_finite(carried):
        return carried, {}
    moving = [kind for kind in sorted(carried) if kind not in ("buffers", TENSORS)]
    others = {kind: tensors for kind, tensors in carried.items() if kind not in moving}
    arrived, left = dict(decoded(others, encoding.of_others, key)), dict[str, Tensors]()
    of_model = "params" if "params" in moving else next(iter(moving), "")
    for place, kind in enumerate(moving):
        steps = (encoding if kind == of_model else encoding.of_own_collections).steps
        base = on_cpu({kind: received[kind]})[kind] if kind in AVERAGED else {}
        known_moves = on_cpu({kind: (moves or {}).get(kind, {})})[kind]
        words = (step.keeps for step in steps if step.keeps)
        state = {word: before.get(state_name(word, kind), {}) for word in words}
        message = Message(steps, key.at(place), base, known_moves, state)
        numbers = {name: t for name, t in carried[kind].items() if t.is_floating_point()}
        arrived[kind] = {**carried[kind], **message.crossed(numbers)}
        left |= {state_name(word, kind): tensors for word, tensors in message.left.items() if tensors}
    return {kind: arrived[kind] for kind in carried}, left


def left_of_part(left: ModelState, submodel: Submodel, cost_profile: CostProfile) -> ModelState:
    """Return the state that updates left on a device, cut to the channels of a part."""
    if not submodel.channels:
        return left
    cut = Cut(submodel, cost_profile)
    return {
        kind: {name: cut.kept(name, t, rows=step_of(kind).keeps_rows) for name, t in tensors.items()}
        for kind, tensors in left.items()
    }


def left_with_part(
    left: ModelState, part: ModelState, submodel: Submodel, cost_profile: CostProfile, model: ModelState
) -> dict[str, Mapping[str, Tensor]]:
    """Return the state that updates left on a device, with that of a part in its places. Other entries stay.

    `model`: the whole model, for the shapes of new entries.
    """
    if not submodel.channels:
        return {**left, **{kind: {**left.get(kind, {}), **tensors} for kind, tensors in part.items()}}
    cut = Cut(submodel, cost_profile)
    result: dict[str, Mapping[str, Tensor]] = dict(left)
    for kind, tensors in part.items():
        whole, rows = dict(left.get(kind, {})), step_of(kind).keeps_rows
        for name, tensor in tensors.items():
            shape = model["params"][name].shape
            new = whole[name].clone() if name in whole else torch.zeros(shape if rows else (len(tensor), *shape[1:]))
            new[cut.index(name, new, rows)] = tensor
            whole[name] = new
        result[kind] = whole
    return result
