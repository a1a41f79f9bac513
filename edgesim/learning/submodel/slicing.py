"""Thinner networks: cuts kept channels out of a model state, puts them back, builds the network that runs with them."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from edgesim.core.errors import ConfigError, ContractError
from edgesim.core.price_list import CostProfile, LayerCost
from edgesim.core.task import Submodel
from edgesim.core.update import ModelState
from edgesim.learning.models.build import own_tensors
from edgesim.learning.models.trace import layer_of

_WHOLE = "_whole_cost_profile"  # attribute of a thinner network: the whole model's, by which it is sliced again
_SIZES = ("out_channels", "out_features", "num_features", "num_channels"), ("in_channels", "in_features")


def extract(model_state: ModelState, submodel: Submodel, cost_profile: CostProfile) -> dict[str, dict[str, Tensor]]:
    """Return the kept channels of a model state, as new tensors: rows and columns of matrices, rows of vectors.

    Every collection is cut whose tensors are named like the model's. Raises ValueError for a group or channel that the
    model does not have.
    """
    cut = Cut(submodel, cost_profile)
    return {
        collection: {name: cut.kept(name, t) for name, t in tensors.items()}
        for collection, tensors in model_state.items()
    }


def thinner(module: nn.Module, submodel: Submodel, cost_profile: CostProfile) -> nn.Module:
    """Return a copy of a network with the kept channels only, its kernels in channels-last layout.

    `submodel.scale` multiplies what kept channels give to the layers that read them, as inverted dropout does: for
    local training. Raises ValueError as `extract` does or if scales and channels differ in number, ConfigError if kept
    channels do not split into the groups of a group normalisation.
    """
    cut = Cut(submodel, cost_profile)
    result = copy.deepcopy(module)
    _cut_tensors(result, cut)
    for layer in cost_profile.layers:
        _resize(result.get_submodule(layer.name), layer, cut)
    for group, factors in submodel.scale:
        if len(factors) != len(cut.channels.get(group, ())):
            raise ValueError(f"{cost_profile.model}: {len(factors)} scales for the kept channels of {group}")
        for layer in (layer for layer in cost_profile.layers if layer.columns == group):
            scale = torch.tensor(factors).repeat_interleave(layer.column_spread)
            result.get_submodule(layer.name).register_forward_pre_hook(partial(_scaled, scale))
    setattr(result, _WHOLE, cost_profile)
    return result


def corners(module: nn.Module, submodel: Submodel) -> dict[str, tuple[slice, ...]]:
    """Return which corner of every tensor of a thinner network a part has that keeps the first units of its groups.

    `module`: made by `thinner`, of at least these units, if the part leaves out any; tensors are parameters and
    floating-point buffers. Raises ContractError for a network that `thinner` did not make or for other units than the
    first, ConfigError and ValueError as it does.
    """
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    tensors = {name: tensor.detach() for name, tensor in tensors.items() if tensor.is_floating_point()}
    if not submodel.channels:
        return dict.fromkeys(tensors, ())
    cost_profile: CostProfile | None = getattr(module, _WHOLE, None)
    if cost_profile is None or any(channels != tuple(range(len(channels))) for _, channels in submodel.channels):
        raise ContractError("corners are those of a thinner network, of a part with the first units of its groups")
    cut = Cut(submodel, cost_profile)
    for layer in cost_profile.layers:
        _check_groups(module.get_submodule(layer.name), layer, cut)
    return {name: tuple(map(slice, cut.kept(name, tensor).shape)) for name, tensor in tensors.items()}


class Cut:
    """Which entries of each tensor a part keeps."""

    def __init__(self, submodel: Submodel, cost_profile: CostProfile) -> None:
        self.channels = cost_profile.kept_channels(submodel)
        self._layers: Mapping[str, LayerCost] = {layer.name: layer for layer in cost_profile.layers}

    def kept(self, name: str, tensor: Tensor, rows: bool = True) -> Tensor:
        """Return the kept entries of a tensor; `rows`: as for `index`."""
        return tensor[self.index(name, tensor, rows)].clone()

    def index(self, name: str, tensor: Tensor, rows: bool = True) -> Any:
        """Return what a tensor of this name is indexed with to get the kept entries.

        `rows`: whether its first places are the layer's outputs; else they are all kept.
        """
        places = [(dim, kept) for dim, kept in self._places(name, tensor) if rows or dim]
        if len(places) == 2:
            return places[0][1].unsqueeze(1), places[1][1]
        return next(((slice(None),) * dim + (kept,) for dim, kept in places), ...)

    def rows(self, layer: LayerCost) -> Tensor | None:
        """Return the kept outputs of a layer; None if all are."""
        return torch.tensor(self.channels[layer.rows]) if layer.rows in self.channels else None

    def columns(self, layer: LayerCost) -> Tensor | None:
        """Return the kept inputs of a layer; None if all are."""
        if layer.columns not in self.channels:
            return None
        first = torch.tensor(self.channels[layer.columns]) * layer.column_spread
        return (first.unsqueeze(1) + torch.arange(layer.column_spread)).flatten()

    def _places(self, name: str, tensor: Tensor) -> list[tuple[int, Tensor]]:
        layer = self._layers.get(layer_of(name))
        if layer is None or tensor.dim() == 0:
            return []
        found = (self.rows(layer), self.columns(layer) if tensor.dim() >= 2 else None)
        return [(dim, places.to(tensor.device)) for dim, places in enumerate(found) if places is not None]


def _cut_tensors(module: nn.Module, cut: Cut) -> None:
    """Put what is kept of every tensor wherever the network has it."""
    instead: dict[int, Tensor] = {}
    for name, value in module.named_parameters():
        kept = cut.kept(name, value.detach())
        layout = torch.channels_last if kept.dim() == 4 else torch.contiguous_format
        instead[id(value)] = nn.Parameter(kept.to(memory_format=layout), requires_grad=value.requires_grad)
    instead |= {id(buffer): cut.kept(name, buffer) for name, buffer in module.named_buffers()}
    for inner in module.modules():
        for name, tensor in list(own_tensors(inner)):
            setattr(inner, name, instead[id(tensor)])


def _resize(inner: nn.Module, layer: LayerCost, cut: Cut) -> None:
    """Let a layer state its new sizes."""
    for names, kept in zip(_SIZES, (cut.rows(layer), cut.columns(layer)), strict=True):
        for name in names:
            if kept is not None and hasattr(inner, name):
                setattr(inner, name, len(kept))
    _check_groups(inner, layer, cut)


def _check_groups(inner: nn.Module, layer: LayerCost, cut: Cut) -> None:
    kept = cut.rows(layer)
    if isinstance(inner, nn.GroupNorm) and kept is not None and len(kept) % inner.num_groups:
        raise ConfigError(
            f"model.name: {layer.name} cannot split {len(kept)} kept channels into {inner.num_groups} groups"
        )


def _scaled(scale: Tensor, layer: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    values = inputs[0]
    factors = scale.to(values).view(-1, *(1,) * (values.dim() - 2))
    return (values * factors, *inputs[1:])
