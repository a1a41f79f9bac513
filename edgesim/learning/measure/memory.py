"""Bytes that a training step keeps from forward for backward, and the layers that need them.

The hooks through which autograd saves tensors report them. Every storage counts once, however many tensors share it.
Parameters and buffers are not counted, because they exist anyway. The kernels are CPU kernels. A GPU's kernels may keep
other tensors, such as dropout masks of one byte per element instead of four. The workspace of oneDNN's LSTM is left
out, because only the library knows it. A checkpointed block keeps its inputs alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch

from edgesim.core.price_list import SavedBytes
from edgesim.learning.measure.channel_groups import Layout
from edgesim.learning.models.trace import Node, Owners, Trace, operand, operands, operation, shape_of

# A factor of a product is kept for the gradient of the other factor: the place of that argument.
_FOR_ARGUMENT = {
    ("Mul", "self"): 1,
    ("Mul", "other"): 0,
    ("Div", "self"): 1,
    ("Mm", "self"): 1,
    ("Mm", "mat2"): 0,
    ("Bmm", "self"): 1,
    ("Bmm", "mat2"): 0,
    ("Addmm", "mat1"): 2,
    ("Addmm", "mat2"): 1,
    ("Baddbmm", "batch1"): 2,
    ("Baddbmm", "batch2"): 1,
}
_OUTPUTS = ("result", "output", "logsumexp", "mask")  # beginnings of a node's names of what its operation computes
_STATISTICS = ("result1", "result2")  # of a batch normalisation that trains


class KeptInBlock(NamedTuple):
    """A tensor that a node of a block keeps."""

    node: Node
    after: bool  # whether the operation of the node must run for it
    upstream: Owners  # kept only if one of these layers is trained


@dataclass
class _Storage:
    nbytes: int
    upstream: Owners = frozenset()
    claimed: bool = False
    groups: tuple[str, ...] = ()


def saved_bytes(trace: Trace, larger: Trace, layout: Layout) -> tuple[SavedBytes, ...]:
    """Return the bytes that a step keeps, by the layers that need them and by channel groups.

    `larger`: a trace of the same network with a larger batch. `layout`: the layout of `trace`.
    """
    totals: dict[tuple[Owners, tuple[str, ...]], tuple[int, int]] = {}
    found, others = _storages(trace), _storages(larger)
    in_blocks = trace.kept.in_blocks
    kept = ((node, name, place) for node in trace.nodes for name, place in trace.kept.by_node(node))
    for node, name, place in kept:
        if place in in_blocks:
            continue
        tensor = trace.kept.tensors[place]
        storage = found.get(_identity(tensor))
        if storage is not None:
            storage.upstream |= needed_by(node, name, trace)
            storage.claimed = True
            storage.groups = storage.groups or groups_of(node, tensor, layout)
    of_blocks = kept_in_blocks(trace)
    inputs = [(block, tensor) for block in trace.kept.blocks for tensor in block.inputs]
    for block, tensor in inputs:
        storage = found.get(_identity(tensor))
        if storage is not None:
            storage.upstream = storage.upstream.union(*(of_blocks[p].upstream for p in block.places if p in of_blocks))
            storage.claimed = True
            if tensor.grad_fn in layout.axes:
                storage.groups = storage.groups or groups_of(tensor.grad_fn, tensor, layout)
    for storage in found.values():
        if not storage.claimed:  # kept by a kind of function that does not list its tensors
            storage.upstream = trace.behind(trace.loss.grad_fn)
    for one, other in zip(found.values(), others.values(), strict=True):
        per_sample = (other.nbytes - one.nbytes) // (larger.batch - trace.batch)
        sampled, fixed = totals.get((one.upstream, one.groups), (0, 0))
        totals[one.upstream, one.groups] = (sampled + per_sample, fixed + one.nbytes - per_sample * trace.batch)
    return tuple(SavedBytes(*sizes, upstream, groups) for (upstream, groups), sizes in totals.items() if upstream)


def _storages(trace: Trace) -> dict[int, _Storage]:
    """Return every kept storage by its identity, in an order that is the same in each trace of a network."""
    weights = {_identity(value) for value in trace.weights.values()}
    in_blocks = trace.kept.in_blocks
    tensors = [tensor for place, tensor in enumerate(trace.kept.tensors) if place not in in_blocks]
    tensors += [tensor for block in trace.kept.blocks for tensor in block.inputs]
    kept = {_identity(tensor): _Storage(tensor.untyped_storage().nbytes()) for tensor in tensors}
    return {identity: storage for identity, storage in kept.items() if identity not in weights}


def kept_in_blocks(trace: Trace) -> Mapping[int, KeptInBlock]:
    """Return the tensors that nodes of checkpointed blocks keep, by their places among all kept tensors."""
    if not trace.kept.blocks:
        return {}
    made = {node._sequence_nr(): node for node in trace.nodes if operands(node)}
    named = {place: (node, name) for node in trace.nodes for name, place in trace.kept.by_node(node)}
    found: dict[int, KeptInBlock] = {}
    for block in trace.kept.blocks:
        for each in block.kept:
            if each.place in named:
                node, name = named[each.place]
                found[each.place] = KeptInBlock(node, name.startswith(_OUTPUTS), needed_by(node, name, trace))
            elif each.node in made:  # by a function of Python, which does not list its tensors
                node = made[each.node]
                found[each.place] = KeptInBlock(node, True, trace.behind(node))
    return found


def _identity(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata  # tensors without numbers have no address


def needed_by(node: Node, name: str, trace: Trace) -> Owners:
    """Return the layers that make a node keep a tensor: training any one of them is enough."""
    kind = operation(node)
    if (kind, name) in _FOR_ARGUMENT:
        return trace.behind(operand(node, _FOR_ARGUMENT[kind, name]))
    if kind == "NativeBatchNorm" and name in _STATISTICS and node in trace.running_norms:
        return frozenset({trace.running_norms[node]})
    return trace.behind(node)


def groups_of(node: Node, tensor: torch.Tensor, layout: Layout) -> tuple[str, ...]:
    """Return the channel groups that a kept tensor grows with: the groups of the result that it is or belongs to."""
    source = tensor.grad_fn if tensor.grad_fn in layout.axes else node
    sizes, names, shape = shape_of(source), layout.axes[source], tuple(tensor.shape)
    if len(shape) == len(sizes):
        return tuple(name for have, size, name in zip(shape, sizes, names, strict=True) if name and have == size)
    return tuple(name for name in names[1:2] if name and shape == sizes[1:2])  # one number a channel
