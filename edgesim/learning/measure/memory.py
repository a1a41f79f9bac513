"""Which bytes a training step keeps from forward for backward, and for which layers' sake.

Read off the hooks through which autograd keeps tensors. Every storage counts once, whoever shares it; parameters and
buffers are not counted, as they are there anyway. The kernels are those of a CPU: a GPU's may keep other things, such
as dropout masks of one byte an element instead of four. The workspace of oneDNN's LSTM, which the library alone knows,
is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from edgesim.core.price_list import SavedBytes
from edgesim.learning.measure.channel_groups import Layout
from edgesim.learning.models.trace import Node, Owners, Trace, operand, operation, shape_of

# A factor of a product is kept for the sake of the other factor's gradient: whose argument that is.
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
_STATISTICS = ("result1", "result2")  # of a batch normalisation that trains


@dataclass
class _Storage:
    nbytes: int
    upstream: Owners = frozenset()
    claimed: bool = False
    groups: tuple[str, ...] = ()


def saved_bytes(trace: Trace, larger: Trace, layout: Layout) -> tuple[SavedBytes, ...]:
    """Return what a step keeps, from traces of the same network with two batch sizes; the layout is of the first."""
    totals: dict[tuple[Owners, tuple[str, ...]], tuple[int, int]] = {}
    found, others = _storages(trace), _storages(larger)
    _attribute(found, trace, layout)
    for one, other in zip(found.values(), others.values(), strict=True):
        per_sample = (other.nbytes - one.nbytes) // (larger.batch - trace.batch)
        sampled, fixed = totals.get((one.upstream, one.groups), (0, 0))
        totals[one.upstream, one.groups] = (sampled + per_sample, fixed + one.nbytes - per_sample * trace.batch)
    return tuple(SavedBytes(*sizes, upstream, groups) for (upstream, groups), sizes in totals.items() if upstream)


def _storages(trace: Trace) -> dict[int, _Storage]:
    """Return every storage that is kept, in the order in which forward keeps them."""
    weights = {_identity(value) for value in trace.weights.values()}
    kept = {_identity(tensor): _Storage(tensor.untyped_storage().nbytes()) for tensor in trace.kept.tensors}
    return {identity: storage for identity, storage in kept.items() if identity not in weights}


def _attribute(storages: Mapping[int, _Storage], trace: Trace, layout: Layout) -> None:
    """Tell each storage who keeps it and what it grows with."""
    for node in trace.nodes:
        for name, place in trace.kept.by_node(node):
            tensor = trace.kept.tensors[place]
            storage = storages.get(_identity(tensor))
            if storage is not None:
                storage.upstream |= _for_whom(node, name, trace)
                storage.claimed = True
                storage.groups = storage.groups or _groups(node, tensor, layout)
    for storage in storages.values():
        if not storage.claimed:  # kept by a function of a kind that does not tell
            storage.upstream = trace.behind(trace.loss.grad_fn)


def _identity(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata  # tensors without numbers have no address


def _for_whom(node: Node, name: str, trace: Trace) -> Owners:
    """Return the layers of which one must be trained for a node to keep a tensor."""
    kind = operation(node)
    if (kind, name) in _FOR_ARGUMENT:
        return trace.behind(operand(node, _FOR_ARGUMENT[kind, name]))
    if kind == "NativeBatchNorm" and name in _STATISTICS and node in trace.running_norms:
        return frozenset({trace.running_norms[node]})
    return trace.behind(node)


def _groups(node: Node, tensor: torch.Tensor, layout: Layout) -> tuple[str, ...]:
    """Return the channel groups that a kept tensor grows with: those of the result that it is or belongs to."""
    source = tensor.grad_fn if tensor.grad_fn in layout.axes else node
    sizes, names, shape = shape_of(source), layout.axes[source], tuple(tensor.shape)
    if len(shape) == len(sizes):
        return tuple(name for have, size, name in zip(shape, sizes, names, strict=True) if name and have == size)
    return tuple(name for name in names[1:2] if name and shape == sizes[1:2])  # one number a channel
