"""Measures a model card on meta tensors: shapes are worked out, numbers never are, so any network takes seconds.

Every operation that can be differentiated leaves a node in autograd's graph. Two backward passes, one for the
weights and one for the input, give each node's FLOPs for both; whose weights a node depends on is read off the
graph. So partial training is priced as autograd really runs it, whatever the architecture.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import nn
from torch.func import functional_call
from torch.utils.flop_counter import FlopCounterMode
from torch.utils.hooks import RemovableHandle

from edgesim.card import LayerCost, ModelCard, OperationCost, ProductCost
from edgesim.errors import ConfigError
from edgesim.learning.build import on_meta
from edgesim.learning.elementwise import left_at_zero, merged, price_operations
from edgesim.learning.loop import gradients
from edgesim.learning.memory import saved_bytes
from edgesim.learning.trace import BATCH_NORMS, DATA, Node, Owners, Trace, loss_of, operands, trace_on_cpu, trace_step
from edgesim.learning.unit_groups import Layout, find_groups


def measure(module: nn.Module, name: str, input_shape: Sequence[int], classes: int, batch: int = 2) -> ModelCard:
    """Return the card of a network that is in training mode; its weights are neither read nor changed.

    `input_shape` is that of one sample. Raises ConfigError if the layers' costs do not add up to what a whole
    training step (forward, mean cross-entropy, backward) counts.
    """
    per_layer, step_flops = _count_step(module, input_shape, batch)
    trace = trace_step(module, input_shape, batch)
    costs = _Costs()
    for node in _graph_costs(trace, trace_step(module, input_shape, batch)):
        costs.add(node)
    own_work = {layer for layer, flops in costs.weight_flops.items() if flops == per_layer.get(layer)}
    layout = find_groups(trace, module, own_work)
    kept, larger = (trace_on_cpu(module, input_shape, size) for size in (batch, batch + 1))
    layers = [layer for layer, inner in module.named_modules() if any(_sizes(inner))]
    layers.sort(key=lambda layer: costs.position.get(layer, math.inf))  # buffers alone leave no trace: they come last
    normed = any(isinstance(inner, BATCH_NORMS) for inner in module.modules())
    card = ModelCard(
        model=name,
        input_shape=tuple(input_shape),
        classes=classes,
        layers=tuple(_layer(module, layer, costs, per_layer, batch, layout) for layer in layers),
        other_forward_flops=sum(flops for layer, flops in per_layer.items() if layer not in layers) / batch,
        products=tuple(ProductCost(flops / batch, upstream) for upstream, flops in costs.products.items()),
        drop_single=normed,
        needs_two=normed and _refuses_one(module, input_shape),
        groups=layout.groups,
        operations=_operations(trace, layout),
        left_at_zero=left_at_zero(trace),
        saved=saved_bytes(kept, larger, find_groups(kept, module, own_work)),
        integer_buffer_bytes=sum(value.nbytes for value in module.buffers() if not value.is_floating_point()),
    )
    if card.train_flops() != step_flops / batch:
        raise ConfigError(
            f"model.name: {name} cannot be priced by layer: they add up to {card.train_flops():.0f} FLOPs a sample, "
            f"a training step counts {step_flops / batch:.0f}"
        )
    return card


def _refuses_one(module: nn.Module, input_shape: Sequence[int]) -> bool:
    """Whether PyTorch refuses to train on a single sample: normalised over one number, all would be 0."""
    one = torch.empty(1, *input_shape, device="meta")
    try:
        functional_call(module, on_meta(module), (one,))
    except ValueError:
        return True
    return False


def flop_counter() -> FlopCounterMode:
    """Return torch's FLOP counter with grouped convolutions counted right.

    Differs: torch's own formula for the weight gradient ignores groups, fourteenfold the truth for a whole
    EfficientNet-B0 step.
    """
    return FlopCounterMode(display=False, custom_mapping={torch.ops.aten.convolution_backward: _conv_backward_flops})


def _conv_backward_flops(
    grad_shape: Sequence[int],
    x_shape: Sequence[int],
    w_shape: Sequence[int],
    _bias: object,
    _stride: object,
    _padding: object,
    _dilation: object,
    transposed: bool,
    _output_padding: object,
    _groups: int,  # already in w_shape, whose second size is per group
    output_mask: Sequence[bool],
    out_shape: object,
) -> int:
    """Return FLOPs: for input and for weight as many as forward, two per weight, kernel position and sample."""
    positions = math.prod((x_shape if transposed else grad_shape)[2:])
    return 2 * x_shape[0] * positions * math.prod(w_shape) * sum(output_mask[:2])


class _NodeCost(NamedTuple):
    """Backward FLOPs of one graph node for a whole batch, and what its operands depend on.

    `upstream`: owners behind the operands that the data reaches, `weights`: owners behind the others.
    """

    position: int  # in forward order
    has_input: bool
    upstream: Owners
    weights: Owners
    input_flops: float
    weight_flops: float


@dataclass
class _Costs:
    """Node costs gathered by layer."""

    upstream: dict[str, Owners] = field(default_factory=dict)
    input_flops: dict[str, float] = field(default_factory=dict)
    weight_flops: dict[str, float] = field(default_factory=dict)
    position: dict[str, int] = field(default_factory=dict)
    products: dict[Owners, float] = field(default_factory=dict)

    def add(self, node: _NodeCost) -> None:
        """Book one node, in forward order."""
        input_flops = self._book_weights(node)
        if input_flops and node.upstream:
            self._add_product(node.upstream, input_flops)

    def _book_weights(self, node: _NodeCost) -> float:
        """Book the weights of a node and return the input FLOPs that no layer took."""
        if len(node.weights) != 1:
            if node.weight_flops:
                self._add_product(node.weights, node.weight_flops)
            return node.input_flops
        (layer,) = node.weights
        self.weight_flops[layer] = self.weight_flops.get(layer, 0.0) + node.weight_flops
        if not node.has_input:
            return 0.0
        self.position.setdefault(layer, node.position)
        # A layer that is used several times has several inputs; those after the first are booked as products.
        if self.upstream.setdefault(layer, node.upstream) != node.upstream:
            return node.input_flops
        self.input_flops[layer] = self.input_flops.get(layer, 0.0) + node.input_flops
        return 0.0

    def _add_product(self, owners: Owners, flops: float) -> None:
        self.products[owners] = self.products.get(owners, 0.0) + flops


class _Meter:
    """Charges counted FLOPs to the innermost module that runs."""

    def __init__(self, module: nn.Module, counter: FlopCounterMode) -> None:
        self.flops: dict[str, float] = {}
        self._counter = counter
        self._charged = 0.0
        self._running = [""]
        self._hooks = [hook for name, inner in module.named_modules() for hook in self._watch(name, inner)]

    def _watch(self, name: str, module: nn.Module) -> tuple[RemovableHandle, RemovableHandle]:
        def enter(*_: object) -> None:
            self._charge()
            self._running.append(name)

        def leave(*_: object) -> None:
            self._charge()
            self._running.pop()

        return module.register_forward_pre_hook(enter), module.register_forward_hook(leave)

    def _charge(self) -> None:
        total = float(self._counter.get_total_flops())
        name = self._running[-1]
        self.flops[name] = self.flops.get(name, 0.0) + total - self._charged
        self._charged = total

    def remove(self) -> None:
        """Take the hooks off the module."""
        for hook in self._hooks:
            hook.remove()


def _count_step(module: nn.Module, input_shape: Sequence[int], batch: int) -> tuple[dict[str, float], float]:
    """Return forward FLOPs by module, less those of its inner modules, and FLOPs of a whole training step."""
    weights = on_meta(module)
    with flop_counter() as counter:
        meter = _Meter(module, counter)
        try:
            loss = loss_of(module, weights, torch.empty(batch, *input_shape, device="meta"))
        finally:
            meter.remove()
        gradients(loss, [value for value in weights.values() if value.requires_grad])
    return meter.flops, float(counter.get_total_flops())


def _graph_costs(trace: Trace, other: Trace) -> Iterator[_NodeCost]:
    """Yield the cost of every node of the graph of one training step, in forward order.

    A graph can be walked backward once: that is why it takes two traces of the same step.
    """
    whole = _backward_flops(trace, trace.trained)
    through = _backward_flops(other, [other.data])
    for position, node in enumerate(trace.nodes):
        behind = [trace.reach[operand] for operand, _ in operands(node)]
        upstream = frozenset[str]().union(*(names for names in behind if DATA in names))
        weights = frozenset[str]().union(*(names for names in behind if DATA not in names))
        paid = through[position] if upstream - {DATA} else 0.0  # the data itself needs no gradient
        yield _NodeCost(position, bool(upstream), upstream - {DATA}, weights, through[position], whole[position] - paid)


def _backward_flops(trace: Trace, wrt: Sequence[torch.Tensor]) -> list[float]:
    """Return the FLOPs of each node in one backward pass, in forward order."""
    with flop_counter() as counter:
        flops = [_watched(node, counter) for node in trace.nodes]
        gradients(trace.loss, wrt)
    return [sum(of_node) for of_node in flops]


def _watched(node: Node, counter: FlopCounterMode) -> list[float]:
    """Return a list that receives the FLOPs of a graph node when it runs: minus the count before, plus that after."""
    counts: list[float] = []
    node.register_prehook(lambda _: counts.append(-float(counter.get_total_flops())))
    node.register_hook(lambda *_: counts.append(float(counter.get_total_flops())))
    return counts


def _sizes(layer: nn.Module) -> tuple[int, int]:
    """Return the floats in the parameters and in the buffers that a module owns directly."""
    floats = [value.numel() for value in layer.buffers(recurse=False) if value.is_floating_point()]
    return sum(value.numel() for value in layer.parameters(recurse=False)), sum(floats)


def _layer(
    module: nn.Module, name: str, costs: _Costs, forward: Mapping[str, float], batch: int, layout: Layout
) -> LayerCost:
    layer = module.get_submodule(name)
    params, buffers = _sizes(layer)
    columns, spread = layout.columns.get(name, ("", 1))
    return LayerCost(
        name=name,
        kind=type(layer).__name__,
        params=params,
        buffers=buffers,
        forward_flops=forward.get(name, 0.0) / batch,
        weight_grad_flops=costs.weight_flops.get(name, 0.0) / batch,
        input_grad_flops=costs.input_flops.get(name, 0.0) / batch,
        upstream=costs.upstream.get(name, frozenset()),
        weights=sum(value.numel() for value in layer.parameters(recurse=False) if value.dim() >= 2),
        rows=layout.rows.get(name, ""),
        columns=columns,
        column_spread=spread,
    )


def _operations(trace: Trace, layout: Layout) -> tuple[OperationCost, ...]:
    """Return the work by formula, each with the unit groups of its result."""
    found: list[OperationCost] = []
    for node, costs in price_operations(trace):
        groups = tuple(name for name in layout.axes[node] if name)
        found.extend(replace(cost, groups=groups) for cost in costs)
    return merged(found)
