"""Measurement of a cost profile on meta tensors: only shapes are computed, so any network takes seconds.

Every operation that can be differentiated leaves a node in autograd's graph. Backward passes count the FLOPs of the
gradient of each operand (`backward_flops`), and the graph tells the layers whose weights an operand depends on. Partial
training is therefore priced as autograd runs it, whatever the architecture. Work that grows with the batch is priced
per sample. Other work, such as work on a table that all samples share, is priced per step.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, TypeAlias, TypeVar

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from edgesim.core.errors import ConfigError
from edgesim.core.price_list import CostProfile, LayerCost, OperationCost, ProductCost
from edgesim.learning.measure.backward_flops import NodeFlops, node_flops
from edgesim.learning.measure.channel_groups import Layout, find_groups
from edgesim.learning.measure.elementwise import left_at_zero, merged, price_operations
from edgesim.learning.measure.memory import saved_bytes
from edgesim.learning.measure.run_again import nodes_run_again, parts_run_again
from edgesim.learning.measure.step_timeline import timeline_of
from edgesim.learning.measure.work_kinds import work_costs
from edgesim.learning.models.build import applied, base_of, blank_inputs, on_meta, reason_of, sent_buffers
from edgesim.learning.models.flop_counter import flop_counter
from edgesim.learning.models.quantised import QuantisedLinear
from edgesim.learning.models.trace import (
    BATCH_NORMS,
    DATA,
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
    kinds: bool = False,
    tokens: bool = False,
) -> CostProfile:
    """Return the cost profile of a network in training mode. Its weights are neither read nor changed.

    `input_shape`: shape of one sample. `kinds`: also measure the kinds of work beside FLOPs. `tokens`: inputs are int64
    tokens, otherwise float32. Raises ConfigError if the
    costs of the layers do not add up to the FLOPs counted in a whole training step (forward, mean loss, backward), or
    if an operation has no price.
    """
    try:
        return _measured(module, name, input_shape, classes, batch, objective, kinds, tokens)
    except (NotMeasured, RuntimeError, ValueError, TypeError, AssertionError) as error:  # of torch or of the network
        named = name if type(objective) is type(CLASSIFICATION) else f"{name} with {type(objective).__name__}"
        raise ConfigError(f"model.name: {named} cannot be priced: {reason_of(error)}") from error


def _measured(
    module: nn.Module,
    name: str,
    input_shape: Sequence[int],
    classes: int,
    batch: int,
    objective: Objective,
    kinds: bool,
    tokens: bool,
) -> CostProfile:
    metered = [_Metered(module), _Metered(module)]
    trace, larger = (
        trace_step(module, input_shape, size, objective, around, tokens, around.clock)
        for size, around in zip((batch, batch + 1), metered, strict=True)
    )
    growing = grown(trace, larger)
    one, other = (each.flops for each in metered)
    if one.keys() != other.keys():
        raise NotMeasured("its modules are not the same in every pass and for every batch")
    forward = {layer: other[layer] - flops for layer, flops in one.items()}  # by module, per sample
    per_step = sum(flops - batch * forward[layer] for layer, flops in one.items())
    costs = _Costs()
    again, again_per_step = _again([(trace, metered[0]), (larger, metered[1])])
    for place, cost in enumerate(node_flops(trace, larger)):
        costs.add(place, cost, of_data=DATA in trace.reach[cost.node])
    own_work = {layer for layer, flops in costs.weight_flops.items() if flops == batch * forward.get(layer, 0.0)}
    layout = find_groups(trace, module, own_work)
    kept, more_kept = (trace_on_cpu(module, input_shape, size, objective, tokens) for size in (batch, batch + 1))
    grown(kept, more_kept)
    every: dict[str, _Tensors] = {layer: _Tensors([], [], []) for layer, _ in module.named_modules()}
    for tensor, value in module.named_parameters():  # a tensor that layers share belongs to the first of them
        every[layer_of(tensor)].params.append(value)
    for tensor, buffer in sent_buffers(module).items():
        every[layer_of(tensor)].buffers.append(buffer)
    base = base_of(module)
    for tensor, frozen in base.items():
        every[layer_of(tensor)].base.append(frozen)
    tensors = {layer: own for layer, own in every.items() if any(map(len, own))}
    layers = _in_order(list(tensors), costs.position, forward)
    operations: list[OperationCost] = []
    repeated = nodes_run_again(trace)
    for node, found in price_operations(trace, growing):
        groups = tuple(group for group in layout.axes[node] if group)
        operations.extend(replace(each, groups=groups) for each in found)
        if behind := repeated.get(node):
            second = (each for each in found if each.forward_flops)
            operations.extend(OperationCost(w.operation, 0, w.forward_flops, behind, "", groups) for w in second)
    normed = any(isinstance(inner, BATCH_NORMS) for inner in module.modules())
    kept_layout = find_groups(kept, module, own_work)
    cost_profile = CostProfile(
        model=name,
        input_shape=tuple(input_shape),
        classes=classes,
        layers=tuple(_layer(module, layer, tensors[layer], costs, forward, batch, layout) for layer in layers),
        other_forward_flops=sum(flops for layer, flops in forward.items() if layer not in layers),
        products=(*_products(costs.products, batch), *_repeats(again, layers)),
        drop_single=normed,
        needs_two=normed and _refuses_one(module, input_shape, tokens),
        groups=layout.groups,
        operations=merged(operations),
        left_at_zero=left_at_zero(trace),
        saved=saved_bytes(kept, more_kept, kept_layout),
        timeline=timeline_of(module, input_shape, objective, tokens, kept, kept_layout),
        work=work_costs(module, input_shape, batch, objective, own_work, tokens) if kinds else None,
        integer_buffer_bytes=sum(
            value.nbytes
            for tensor, value in module.named_buffers()
            if not value.is_floating_point() and tensor not in base
        ),
        step_forward_flops=per_step,
        step_products=(*_products(costs.per_step, 1), *_repeats(again_per_step, layers)),
    )
    for done in (trace, larger, kept, more_kept):
        done.kept.forget()
    size = batch + 2  # of which the price has seen nothing
    charged = cost_profile.train_flops() * size + cost_profile.step_flops()
    counted = _count_step(module, input_shape, size, objective, tokens)
    if charged != counted:
        raise NotMeasured(f"its layers add up to {charged:.0f} FLOPs, a step of {size} samples counts {counted:.0f}")
    return cost_profile


class _Tensors(NamedTuple):
    """Tensors of one layer."""

    params: list[Tensor]
    buffers: list[Tensor]
    base: list[Tensor]


def _refuses_one(module: nn.Module, input_shape: Sequence[int], tokens: bool) -> bool:
    """Return True if PyTorch refuses to train on a single sample, because one normalised number is always 0."""
    one = blank_inputs(1, input_shape, tokens)
    try:
        applied(module, on_meta(module), one)
    except ValueError:
        return True
    return False


@dataclass
class _Costs:
    """Backward FLOPs for a whole batch, by layer."""

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
            first = self.upstream.setdefault(layer, inputs[0][0]) if inputs else None
            for owners, flops in inputs:
                if owners == first:
                    _add(self.input_flops, layer, flops)
            inputs = [(owners, flops) for owners, flops in inputs if owners != first]  # others are products
        for owners, flops in inputs:
            _add(self.products, owners, flops)


def _add(totals: dict[_Key, float], key: _Key, flops: float) -> None:
    if flops and key != frozenset():  # what depends on the data alone is never trained
        totals[key] = totals.get(key, 0.0) + flops


class _Metered:
    """A block in which the FLOPs of a network's forward pass are charged to the innermost running module.

    `flops`: by module, without those of its inner modules, in the order in which they first ran. `charges`: in the
    order in which they were made.
    """

    def __init__(self, module: nn.Module) -> None:
        self.flops: dict[str, float] = {}
        self.charges: list[tuple[str, float]] = []
        self._module = module
        self._counter = flop_counter()
        self._charged = 0.0
        self._running = [""]
        self._hooks: list[RemovableHandle] = []

    def __enter__(self) -> None:
        for name, inner in self._module.named_modules():
            self._hooks.append(inner.register_forward_pre_hook(partial(self._began, name)))
            self._hooks.append(inner.register_forward_hook(self._ended))
        self._counter.__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *error: Any) -> None:
        self._counter.__exit__(*error)  # type: ignore[no-untyped-call]
        for hook in self._hooks:
            hook.remove()

    def clock(self) -> int:
        """Return the number of charges for all work so far."""
        self._charge()
        return len(self.charges)

    def _began(self, name: str, *_: object) -> None:
        self._charge()
        self._running.append(name)

    def _ended(self, *_: object) -> None:
        self._charge()
        self._running.pop()

    def _charge(self) -> None:
        total = float(self._counter.get_total_flops())
        name = self._running[-1]
        self.flops[name] = self.flops.get(name, 0.0) + total - self._charged
        if total > self._charged:
            self.charges.append((name, total - self._charged))
        self._charged = total


def _count_step(module: nn.Module, input_shape: Sequence[int], batch: int, objective: Objective, tokens: bool) -> float:
    """Return the FLOPs of a whole training step, counted without a trace."""
    weights = on_meta(module)
    with flop_counter() as counter:
        loss = loss_of(module, weights, blank_inputs(batch, input_shape, tokens), objective)
        gradients(loss, [value for value in weights.values() if value.requires_grad])
    return float(counter.get_total_flops())


def _in_order(layers: list[str], position: Mapping[str, int], ran: Iterable[str]) -> list[str]:
    """Return layers in forward order.

    A layer that trains nothing leaves no trace. It comes after the layers that ran before it.
    """
    places, last = dict[str, float](), -1.0
    for layer in ran:
        last = max(last, position.get(layer, -1.0))
        places[layer] = position.get(layer, last)
    return sorted(layers, key=lambda layer: position.get(layer, places.get(layer, math.inf)))


def _products(costs: Mapping[Owners, float], batch: int) -> tuple[ProductCost, ...]:
    return tuple(ProductCost(flops / batch, upstream) for upstream, flops in costs.items())


_Repeats: TypeAlias = dict[tuple[str, Owners], float]  # by the module that does the work


def _again(runs: Sequence[tuple[Trace, _Metered]]) -> tuple[_Repeats, _Repeats]:
    """Return the FLOPs of forward that run again in backward, by the sample and by the step.

    `runs`: of the same network with two batches, of which the second has one sample more.
    """
    small, large = _Repeats(), _Repeats()
    for (trace, metered), found in zip(runs, (small, large), strict=True):
        for part in parts_run_again(trace):
            for module, flops in metered.charges[part.since : part.until]:
                found[module, part.upstream] = found.get((module, part.upstream), 0.0) + flops
    if small.keys() != large.keys():
        raise NotMeasured("its checkpointed blocks are not the same in every pass and for every batch")
    per_sample = {key: large[key] - flops for key, flops in small.items()}
    return per_sample, {key: flops - runs[0][0].batch * per_sample[key] for key, flops in small.items()}


def _repeats(costs: _Repeats, layers: Collection[str]) -> Iterator[ProductCost]:
    """Yield the costs of work that runs again. Work of no layer is work of the whole network."""
    for (module, upstream), flops in costs.items():
        if flops:
            yield ProductCost(flops, upstream, module if module in layers else "")


def _layer(
    module: nn.Module,
    name: str,
    tensors: _Tensors,
    costs: _Costs,
    forward: Mapping[str, float],
    batch: int,
    layout: Layout,
) -> LayerCost:
    params, buffers, base = tensors
    columns, spread = layout.columns.get(name, ("", 1))
    inner = module.get_submodule(name)
    frozen = sum(value.numel() for value in base)
    if isinstance(inner, QuantisedLinear):  # codes and scales stand for its weights
        frozen += inner.weights - inner.codes.numel() - inner.scales.numel()
    return LayerCost(
        name=name,
        kind=type(inner).__name__,
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
        base=frozen,
        base_bytes=sum(value.nbytes for value in base),
    )
