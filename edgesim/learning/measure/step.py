"""Measures a cost profile on meta tensors: shapes are worked out, numbers never are, so any network takes seconds.

Every operation that can be differentiated leaves a node in autograd's graph. Backward passes count what the gradient
of each of its operands takes (`backward_flops`), and whose weights an operand depends on is read off the graph. So
partial training is priced as autograd really runs it, whatever the architecture. Work that grows with the batch is
priced by the sample; the rest, such as on a table that all samples share, by the step.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode
from torch.utils.hooks import RemovableHandle

from edgesim.core.errors import ConfigError
from edgesim.core.price_list import CostProfile, LayerCost, OperationCost, ProductCost
from edgesim.learning.measure.backward_flops import NodeFlops, node_flops
from edgesim.learning.measure.channel_groups import Layout, find_groups
from edgesim.learning.measure.elementwise import left_at_zero, merged, price_operations
from edgesim.learning.measure.memory import saved_bytes
from edgesim.learning.models.build import applied, on_meta, reason_of
from edgesim.learning.models.flop_counter import flop_counter
from edgesim.learning.models.trace import (
    BATCH_NORMS,
    DATA,
    Node,
    NotMeasured,
    Owners,
    Trace,
    grown,
    layer_of,
    loss_of,
    trace_on_cpu,
    trace_step,
)
from edgesim.learning.objectives.base import Objective
from edgesim.learning.objectives.classification import CLASSIFICATION
from edgesim.learning.train.loop import gradients

_Key = TypeVar("_Key", str, Owners)


def measure(
    module: nn.Module,
    name: str,
    input_shape: Sequence[int],
    classes: int,
    batch: int = 2,
    objective: Objective = CLASSIFICATION,
) -> CostProfile:
    """Return the cost profile of a network that is in training mode; its weights are neither read nor changed.

    `input_shape` is that of one sample. Raises ConfigError if the layers' costs do not add up to what a whole
    training step (forward, mean loss, backward) counts, or the network does what has no price.
    """
    try:
        return _measured(module, name, input_shape, classes, batch, objective)
    except (NotMeasured, RuntimeError, ValueError, TypeError, AssertionError) as error:  # torch's or the network's own
        named = name if type(objective) is type(CLASSIFICATION) else f"{name} with {type(objective).__name__}"
        raise ConfigError(f"model.name: {named} cannot be priced: {reason_of(error)}") from error


def _measured(
    module: nn.Module, name: str, input_shape: Sequence[int], classes: int, batch: int, objective: Objective
) -> CostProfile:
    trace, larger = (trace_step(module, input_shape, size, objective) for size in (batch, batch + 1))
    growing = grown(trace, larger)
    counted = [_count_step(module, input_shape, size, objective) for size in (batch, batch + 1, batch + 2)]
    forward, per_step = _by_sample([flops for flops, _ in counted], batch)
    costs = _Costs()
    for place, cost in enumerate(node_flops(trace, larger)):
        costs.add(place, cost, of_data=DATA in trace.reach[cost.node])
    own_work = {layer for layer, flops in costs.weight_flops.items() if flops == batch * forward.get(layer, 0.0)}
    layout = find_groups(trace, module, own_work)
    kept, more_kept = (trace_on_cpu(module, input_shape, size, objective) for size in (batch, batch + 1))
    grown(kept, more_kept)
    tensors = _tensors(module)
    layers = _in_order(list(tensors), costs.position, forward)
    normed = any(isinstance(inner, BATCH_NORMS) for inner in module.modules())
    cost_profile = CostProfile(
        model=name,
        input_shape=tuple(input_shape),
        classes=classes,
        layers=tuple(_layer(module, layer, tensors[layer], costs, forward, batch, layout) for layer in layers),
        other_forward_flops=sum(flops for layer, flops in forward.items() if layer not in layers),
        products=_products(costs.products, batch),
        drop_single=normed,
        needs_two=normed and _refuses_one(module, input_shape),
        groups=layout.groups,
        operations=_operations(trace, growing, layout),
        left_at_zero=left_at_zero(trace),
        saved=saved_bytes(kept, more_kept, find_groups(kept, module, own_work)),
        integer_buffer_bytes=sum(value.nbytes for value in module.buffers() if not value.is_floating_point()),
        step_forward_flops=per_step,
        step_products=_products(costs.per_step, 1),
    )
    for done in (trace, larger, kept, more_kept):
        done.kept.tensors.clear()  # they know their graph, which knows them: it would never be freed
    for size, (_, step_flops) in enumerate(counted, start=batch):
        charged = cost_profile.train_flops() * size + cost_profile.step_flops()
        if charged != step_flops:
            raise NotMeasured(
                f"its layers add up to {charged:.0f} FLOPs, a step of {size} samples counts {step_flops:.0f}"
            )
    return cost_profile


def _refuses_one(module: nn.Module, input_shape: Sequence[int]) -> bool:
    """Whether PyTorch refuses to train on a single sample: normalised over one number, all would be 0."""
    one = torch.empty(1, *input_shape, device="meta")
    try:
        applied(module, on_meta(module), one)
    except ValueError:
        return True
    return False


@dataclass
class _Costs:
    """Backward FLOPs for a whole batch, gathered by layer."""

    upstream: dict[str, Owners] = field(default_factory=dict)
    input_flops: dict[str, float] = field(default_factory=dict)
    weight_flops: dict[str, float] = field(default_factory=dict)
    position: dict[str, int] = field(default_factory=dict)
    products: dict[Owners, float] = field(default_factory=dict)
    per_step: dict[Owners, float] = field(default_factory=dict)

    def add(self, place: int, cost: NodeFlops, of_data: bool) -> None:
        """Book one node, in forward order. `of_data`: its result depends on the data."""
        if cost.per_step:
            for behind, flops in cost.operands:
                _add(self.per_step, behind - {DATA}, flops)
            return
        inputs = [(behind - {DATA}, flops) for behind, flops in cost.operands if DATA in behind]
        if not any(flops for _, flops in inputs):
            inputs = [(frozenset[str]().union(*(owners for owners, _ in inputs)), 0.0)] * bool(inputs)
        weights = [(behind, flops) for behind, flops in cost.operands if DATA not in behind]
        for owners, flops in weights:
            if len(owners) == 1:
                (layer,) = owners
                _add(self.weight_flops, layer, flops)
            else:
                _add(self.products, owners, flops)
        layers = frozenset[str]().union(*(owners for owners, _ in weights))
        if len(layers) == 1 and of_data:
            (layer,) = layers
            self.position.setdefault(layer, place)
            inputs = [(owners, flops) for owners, flops in inputs if not self._book_input(layer, owners, flops)]
        for owners, flops in inputs:
            _add(self.products, owners, flops)

    def _book_input(self, layer: str, upstream: Owners, flops: float) -> bool:
        """Book an input of a layer, unless it has another one: what comes after the first is a product."""
        if self.upstream.setdefault(layer, upstream) != upstream:
            return False
        _add(self.input_flops, layer, flops)
        return True


def _add(totals: dict[_Key, float], key: _Key, flops: float) -> None:
    if flops and key != frozenset():  # nobody trains what depends on the data alone
        totals[key] = totals.get(key, 0.0) + flops


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


def _count_step(
    module: nn.Module, input_shape: Sequence[int], batch: int, objective: Objective
) -> tuple[dict[str, float], float]:
    """Return forward FLOPs by module, less those of its inner modules, and FLOPs of a whole training step.

    Modules are in the order in which they ran first.
    """
    weights = on_meta(module)
    with flop_counter() as counter:
        meter = _Meter(module, counter)
        try:
            loss = loss_of(module, weights, torch.empty(batch, *input_shape, device="meta"), objective)
        finally:
            meter.remove()
        gradients(loss, [value for value in weights.values() if value.requires_grad])
    return meter.flops, float(counter.get_total_flops())


def _by_sample(counts: Sequence[Mapping[str, float]], batch: int) -> tuple[dict[str, float], float]:
    """Return forward FLOPs by module and sample, and those of a step, from counts for `batch` samples and one more."""
    one, other = counts[:2]
    if one.keys() != other.keys():
        raise NotMeasured("its modules are not the same in every pass and for every batch")
    per_sample = {layer: other[layer] - flops for layer, flops in one.items()}
    return per_sample, sum(flops - batch * per_sample[layer] for layer, flops in one.items())


def _tensors(module: nn.Module) -> dict[str, tuple[list[Tensor], list[Tensor]]]:
    """Return the parameters and the floating-point buffers of every layer; what layers share is the first one's."""
    found: dict[str, tuple[list[Tensor], list[Tensor]]] = {layer: ([], []) for layer, _ in module.named_modules()}
    for name, value in module.named_parameters():
        found[layer_of(name)][0].append(value)
    for name, buffer in module.named_buffers():
        if buffer.is_floating_point():
            found[layer_of(name)][1].append(buffer)
    return {layer: tensors for layer, tensors in found.items() if any(map(len, tensors))}


def _in_order(layers: list[str], position: Mapping[str, int], ran: Iterable[str]) -> list[str]:
    """Return layers in forward order; those that leave no trace, as they train nothing, come after who ran before."""
    places, last = dict[str, float](), -1.0
    for layer in ran:
        last = max(last, position.get(layer, -1.0))
        places[layer] = position.get(layer, last)
    return sorted(layers, key=lambda layer: position.get(layer, places.get(layer, math.inf)))


def _products(costs: Mapping[Owners, float], batch: int) -> tuple[ProductCost, ...]:
    return tuple(ProductCost(flops / batch, upstream) for upstream, flops in costs.items())


def _layer(
    module: nn.Module,
    name: str,
    tensors: tuple[list[Tensor], list[Tensor]],
    costs: _Costs,
    forward: Mapping[str, float],
    batch: int,
    layout: Layout,
) -> LayerCost:
    params, buffers = tensors
    columns, spread = layout.columns.get(name, ("", 1))
    return LayerCost(
        name=name,
        kind=type(module.get_submodule(name)).__name__,
        params=sum(value.numel() for value in params),
        buffers=sum(value.numel() for value in buffers),
        forward_flops=forward.get(name, 0.0),
        weight_grad_flops=costs.weight_flops.get(name, 0.0) / batch,
        input_grad_flops=costs.input_flops.get(name, 0.0) / batch,
        upstream=costs.upstream.get(name, frozenset()),
        weights=sum(value.numel() for value in params if value.dim() >= 2),
        rows=layout.rows.get(name, ""),
        columns=columns,
        column_spread=spread,
        matrices=tuple(
            (len(value), value.numel() // len(value)) for value in params if value.dim() >= 2 and len(value)
        ),
    )


def _operations(trace: Trace, growing: Collection[Node], layout: Layout) -> tuple[OperationCost, ...]:
    """Return the work by formula, each with the channel groups of its result."""
    found: list[OperationCost] = []
    for node, costs in price_operations(trace, growing):
        groups = tuple(name for name in layout.axes[node] if name)
        found.extend(replace(cost, groups=groups) for cost in costs)
    return merged(found)
