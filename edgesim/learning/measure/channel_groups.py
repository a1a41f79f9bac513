"""Groups of output channels and neurons that can be left out together, derived from autograd's graph.

Every dimension of every intermediate result is followed through the operations. Two facts are tracked: the layer whose
units the dimension counts, and the number of consecutive entries of one unit (a flattened channel has height x width).
Units that are added to each other are one group. A group that meets the input, the logits or an unknown operation stays
whole, so that such a network can be thinned less but never wrongly. Leading dimensions, such as the positions of a
sequence, may be flattened and restored, as linear layers do. One case escapes: a constant tensor that a network
holds outside its buffers. The thinner network then does not run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from torch import Tensor, nn

from edgesim.core.price_list import ChannelGroup
from edgesim.learning.models.trace import (
    BATCH_NORMS,
    DATA,
    Node,
    Trace,
    layer_of,
    operand,
    operands,
    operation,
    shape_of,
)


class Axis(NamedTuple):
    """A dimension that counts units: the number of its variable, and the entries of each unit."""

    channels: int
    spread: int = 1


Axes: TypeAlias = tuple[Axis | None, ...]


@dataclass(frozen=True)
class Layout:
    """Places where the units of groups appear. A group's name is "" where nothing can be left out."""

    groups: tuple[ChannelGroup, ...]
    rows: Mapping[str, str]  # layer -> group of its outputs
    columns: Mapping[str, tuple[str, int]]  # layer -> group of its inputs, entries of one unit
    axes: Mapping[Node, tuple[str, ...]]  # node -> group of each dimension of its result


def find_groups(trace: Trace, module: nn.Module, own_work: Collection[str]) -> Layout:
    """Return the layout of a traced network. `own_work`: layers that do exactly their weights' work."""
    others = [inner for inner in module.modules() if not isinstance(inner, BATCH_NORMS)]
    search = _Search(trace, any(next(inner.buffers(recurse=False), None) is not None for inner in others))
    for node in trace.nodes:
        search.follow(node)
    for layer, axis in search.columns.items():
        own = module.get_submodule(layer)
        dimensions = sorted(value.dim() for value in own.parameters(recurse=False))
        # A plain layer owns one matrix or kernel and at most one vector, and nothing else.
        plain = not dimensions or (dimensions[-1] >= 2 and dimensions[:-1] in ([], [1]))
        plain = plain and next(own.buffers(recurse=False), None) is None
        if layer not in own_work or not plain:
            search.pin((search.rows[layer], axis))
    names: dict[int, str] = {}  # each group is named after the first layer that has it as outputs
    for layer in search.columns:  # in forward order, and only these layers make units
        made = search.rows[layer]
        if made is not None and not search.whole(made.channels):
            names.setdefault(search.root(made.channels), layer)

    def name(axis: Axis | None) -> str:
        return "" if axis is None else names.get(search.root(axis.channels), "")

    rows = {layer: name(axis) for layer, axis in search.rows.items()}
    splits = dict.fromkeys(names.values(), 1)
    for layer, group in rows.items():
        norm = module.get_submodule(layer)
        if group and isinstance(norm, nn.GroupNorm):
            splits[group] = math.lcm(splits[group], norm.num_groups)
    return Layout(
        groups=tuple(ChannelGroup(layer, search.sizes[root], splits[layer]) for root, layer in names.items()),
        rows=rows,
        columns={layer: (name(axis), axis.spread if axis else 1) for layer, axis in search.columns.items()},
        axes={node: tuple(name(axis) for axis in axes) for node, axes in search.axes.items()},
    )


class _Search:
    """Follows dimensions. Variables that turn out to be equal are united, and those that must stay whole are pinned.

    Rules of operations, listed in `_RULES`, return the axes of a node's result, or None if nothing is known of them.
    `buffers`: whether the network has buffers, which leave no trace where an operation reads them.
    """

    def __init__(self, trace: Trace, buffers: bool) -> None:
        self.sizes: list[int] = []
        self.pinned: set[int] = set()
        self.rows: dict[str, Axis | None] = {}
        self.columns: dict[str, Axis | None] = {}
        self.axes: dict[Node, Axes] = {}
        self._parents: list[int] = []
        self._trace = trace
        self._buffers = buffers

    def follow(self, node: Node) -> None:
        """Work out the axes of a node's result."""
        if not operands(node):
            self.axes[node] = (None,) * len(shape_of(node))
        elif DATA not in self._trace.reach[node] and operation(node) == "T":
            self.axes[node] = (None, None)  # a weight as a linear layer reads it
        else:
            found = _RULES.get(operation(node), _Search._unknown)(self, node)
            self.axes[node] = self._unknown(node) if found is None else found

    def root(self, channels: int) -> int:
        """Return the variable that represents all variables equal to this one."""
        while self._parents[channels] != channels:
            channels = self._parents[channels]
        return channels

    def pin(self, axes: Axes) -> None:
        """Keep the units of these axes whole."""
        self.pinned.update(axis.channels for axis in axes if axis is not None)

    def whole(self, channels: int) -> bool:
        """Return True if this variable or an equal one is pinned."""
        return self.root(channels) in {self.root(pinned) for pinned in self.pinned}

    def _unite(self, one: Axis | None, other: Axis | None) -> Axis | None:
        if one is None or other is None or one.spread != other.spread:
            self.pin((one, other))
            return None
        self._parents[self.root(max(one.channels, other.channels))] = self.root(min(one.channels, other.channels))
        return one

    def _of(self, node: Node | None) -> Axes:
        return self.axes.get(node, ())

    def _unknown(self, node: Node) -> Axes:
        for source, _ in operands(node):
            self.pin(self._of(source))
        return (None,) * len(shape_of(node))

    def _matrix(self, weight: str, bias: Node | None, axis: Axis | None, size: int) -> Axis | None:
        """Register a layer that turns units of `axis` into `size` units of its own.

        Returns the axis of its units, or None if it is not a layer that can be thinned.
        """
        layer = layer_of(weight)
        if not weight or (bias is not None and layer_of(self._trace.parameter(bias)) != layer):
            return None
        if layer in self.rows:  # used a second time: its work is not in one place
            self.pin((self.rows[layer], self.columns[layer]))
            return None
        self.sizes.append(size)
        self._parents.append(len(self.sizes) - 1)
        self.rows[layer], self.columns[layer] = Axis(len(self.sizes) - 1), axis
        return self.rows[layer]

    def convolution(self, node: Node) -> Axes | None:
        source, weight, bias = (operand(node, place) for place in range(3))
        axis = self._of(source)[1] if source is not None else None
        if node._saved_groups != 1 or node._saved_transposed or (axis is not None and axis.spread > 1):
            return None
        out = shape_of(node)
        channels = self._matrix(self._trace.parameter(weight), bias, axis, out[1])
        return channels and (None, channels, *(None,) * (len(out) - 2))

    def linear(self, node: Node) -> Axes | None:
        bias, source, weight = (None, operand(node, 0), operand(node, 1))
        if len(node.next_functions) == 3:
            bias, source, weight = (operand(node, place) for place in range(3))
        if weight is None or operation(weight) != "T" or any(self._of(source)[:1]):
            return None
        axis = self._of(source)[1] if source is not None else None
        channels = self._matrix(self._trace.parameter(operand(weight, 0)), bias, axis, shape_of(node)[1])
        return channels and (None, channels)

    def norm(self, node: Node) -> Axes | None:
        source, weight = operand(node, 0), self._trace.parameter(operand(node, 1))
        axes = self._of(source)
        if not weight or len(axes) < 2 or (axes[1] is not None and axes[1].spread > 1):
            return None
        layer = layer_of(weight)
        self.rows[layer] = self._unite(self.rows[layer], axes[1]) if layer in self.rows else axes[1]
        return axes

    def elementwise(self, node: Node) -> Axes:
        """Unite aligned dimensions. Dimensions of size 1 are repeated and carry no information."""
        if self._buffers and operation(node) in _OF_TWO and len(operands(node)) < 2 and not _by_a_number(node):
            return self._unknown(node)  # the other operand may be a buffer
        found: dict[int, Axis | None] = {}
        for source, place in operands(node):
            sizes = shape_of(source, place)
            for back in range(1, len(sizes) + 1):
                if sizes[-back] > 1:
                    axis = self._of(source)[-back] if place == 0 else None
                    found[back] = self._unite(found[back], axis) if back in found else axis
        return tuple(found.get(back) for back in range(len(shape_of(node)), 0, -1))

    def pool(self, node: Node) -> Axes | None:
        axes = self._of(operand(node, 0))
        return None if any(axes[-2:]) else axes

    def reduced(self, node: Node) -> Axes | None:
        axes = self._of(operand(node, 0))
        dims = {(dim + 2**63) % 2**64 - 2**63 for dim in getattr(node, "_saved_dim", ())}  # signed, read as unsigned
        dims = {dim % len(axes) for dim in dims} or set(range(len(axes)))
        if any(axes[dim] for dim in dims):
            return None
        if len(shape_of(node)) == len(axes):
            return axes
        return tuple(axis for dim, axis in enumerate(axes) if dim not in dims)

    def reshaped(self, node: Node) -> Axes | None:
        """Follow dimensions from the left until the rest is flattened into one, or the last ones if others are."""
        source, place = operands(node)[0]
        before, after, axes = shape_of(source, place), shape_of(node), self._of(source)
        last = next((d for d, (a, b) in enumerate(zip(before[::-1], after[::-1], strict=False)) if a != b), 0)
        if last and not any(axes[:-last]):
            return (*(None,) * (len(after) - last), *axes[-last:])
        same = next((d for d, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), len(after))
        rest = math.prod(before[same:])
        if same == len(after):
            return axes[:same] if rest == 1 else None
        if len(after) != same + 1 or after[same] != rest or any(axes[same + 1 :]):
            return None
        axis = axes[same]
        return (*axes[:same], axis and Axis(axis.channels, axis.spread * math.prod(before[same + 1 :])))

    def restrided(self, node: Node) -> Axes | None:
        """Follow a change of layout between maps of one pixel, which cannot mix dimensions."""
        source, place = operands(node)[0]
        unchanged = shape_of(source, place) == shape_of(node)
        return self._of(source) if unchanged and math.prod(shape_of(node)[2:]) == 1 else None


_OF_TWO = ("Add", "Sub", "Mul", "Div")


def _by_a_number(node: Node) -> bool:
    """Return True if a product or quotient is certainly one with a single number."""
    if operation(node) not in ("Mul", "Div"):
        return False
    if node.name().endswith("Backward1"):  # a number of Python
        return True
    return any(isinstance(saved, Tensor) and saved.dim() == 0 for saved in (node._saved_self, node._saved_other))


_RULES: dict[str, Callable[[_Search, Node], Axes | None]] = {
    "Convolution": _Search.convolution,
    "Addmm": _Search.linear,
    "Mm": _Search.linear,
    **dict.fromkeys(("NativeBatchNorm", "NativeGroupNorm"), _Search.norm),
    **dict.fromkeys(("Add", "Sub", "Mul", "Div", "Clone", "NativeDropout"), _Search.elementwise),
    **dict.fromkeys(("Relu", "LeakyRelu", "Hardtanh", "Elu", "Gelu", "Silu"), _Search.elementwise),
    **dict.fromkeys(("Sigmoid", "Tanh", "Hardsigmoid", "Hardswish"), _Search.elementwise),
    **dict.fromkeys(("MaxPool2DWithIndices", "AvgPool2D", "AdaptiveAvgPool2D"), _Search.pool),
    **dict.fromkeys(("Mean", "Sum"), _Search.reduced),
    **dict.fromkeys(("View", "UnsafeView", "ReshapeAlias", "Squeeze"), _Search.reshaped),
    "AsStrided": _Search.restrided,
}
