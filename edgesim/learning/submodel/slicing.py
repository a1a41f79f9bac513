"""Thinner networks: the kept channels of a model state, and the network that runs with them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from edgesim.core.errors import ConfigError, ContractError
from edgesim.core.model_state import ModelState, named
from edgesim.core.price_list import CostProfile, LayerCost
from edgesim.core.task import Submodel
from edgesim.learning.models.build import base_of, copy_of, own_tensors
from edgesim.learning.models.trace import layer_of

_WHOLE = "_whole_cost_profile"  # attribute of a thinner network: cost profile of the whole model, for slicing again
_SIZES = ("out_channels", "out_features", "num_features", "num_channels"), ("in_channels", "in_features")


def extract(model_state: ModelState, submodel: Submodel, cost_profile: CostProfile) -> dict[str, dict[str, Tensor]]:
    """Return the kept channels of a model state, as new tensors: rows and columns of matrices, rows of vectors.

    Every collection is cut whose tensors have the names of the model's tensors. Raises ValueError for a group or
    channel that the model does not have.
    """
    cut = Cut(submodel, cost_profile)
    return named(cut.kept, model_state)


def thinner(module: nn.Module, submodel: Submodel, cost_profile: CostProfile) -> nn.Module:
    """Return a copy of a network with the kept channels only, its kernels in channels-last layout.

    `submodel.scale` multiplies the outputs of kept channels where other layers read them, as inverted dropout does. It
    is for local training. Raises ValueError as `extract` does, or if scales and channels differ in number. Raises
    ConfigError if kept channels do not split into the groups of a group normalisation.
    """
    cut = Cut(submodel, cost_profile)
    result = copy_of(module)
    base = base_of(result)
    instead: dict[int, Tensor] = {}  # kept part of each tensor, which replaces it wherever the network has it
    for name, value in result.named_parameters():
        kept = cut.kept(name, value.detach())
        layout = torch.channels_last if kept.dim() == 4 else torch.contiguous_format
        instead[id(value)] = nn.Parameter(kept.to(memory_format=layout), requires_grad=value.requires_grad)
    for name, buffer in result.named_buffers():
        whole = name in base and cut.index(name, buffer) is ...  # all networks share it
        instead[id(buffer)] = buffer if whole else cut.kept(name, buffer)
    for inner in result.modules():
        for name, tensor in list(own_tensors(inner)):
            setattr(inner, name, instead[id(tensor)])
    for layer in cost_profile.layers:
        inner = result.get_submodule(layer.name)
        sizes = zip(_SIZES, (cut.rows(layer), cut.columns(layer)), strict=True)
        for size, places in ((size, places) for names, places in sizes for size in names):
            if places is not None and hasattr(inner, size):
                setattr(inner, size, len(places))
        _check_groups(inner, layer, cut)
    for group, factors in submodel.scale:
        if len(factors) != len(cut.channels.get(group, ())):
            raise ValueError(f"{cost_profile.model}: {len(factors)} scales for the kept channels of {group}")
        for layer in (layer for layer in cost_profile.layers if layer.columns == group):
            scale = torch.tensor(factors).repeat_interleave(layer.column_spread)
            result.get_submodule(layer.name).register_forward_pre_hook(partial(_scaled, scale))
    setattr(result, _WHOLE, cost_profile)
    return result


def corners(module: nn.Module, submodel: Submodel) -> dict[str, tuple[slice, ...]]:
    """Return the corner of every tensor of a thinner network that belongs to a part with the first units of its groups.

    `module`: a network made by `thinner`, with at least these units, if the part leaves out any. Tensors are parameters
    and floating-point buffers. Raises ContractError for a network that `thinner` did not make or for units other than
    the first ones, and ConfigError and ValueError as `thinner` does.
    """
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    tensors = {name: tensor.detach() for name, tensor in tensors.items() if tensor.is_floating_point()}
    if not submodel.channels:
        return dict.fromkeys(tensors, ())
    cost_profile: CostProfile | None = vars(module).get(_WHOLE)
    if cost_profile is None or any(channels != tuple(range(len(channels))) for _, channels in submodel.channels):
        raise ContractError("corners are those of a thinner network, of a part with the first units of its groups")
    cut = Cut(submodel, cost_profile)
    for layer in cost_profile.layers:
        _check_groups(module.get_submodule(layer.name), layer, cut)
    return {name: tuple(map(slice, cut.kept(name, tensor).shape)) for name, tensor in tensors.items()}


class Cut:
    """Entries of each tensor that a part keeps."""

    def __init__(self, submodel: Submodel, cost_profile: CostProfile) -> None:
        self.channels = cost_profile.kept_channels(submodel)
        self._layers: Mapping[str, LayerCost] = {layer.name: layer for layer in cost_profile.layers}

    def kept(self, name: str, tensor: Tensor, rows: bool = True) -> Tensor:
        """Return the kept entries of a tensor. `rows`: as for `index`."""
        return tensor[self.index(name, tensor, rows)].clone()

    def index(self, name: str, tensor: Tensor, rows: bool = True) -> Any:
        """Return an index into a tensor of this name that selects the kept entries.

        `rows`: whether the first dimension counts the layer's outputs. If not, all its places are kept.
        """
        layer = self._layers.get(layer_of(name))
        if layer is None or tensor.dim() == 0:
            return ...
        found = (self.rows(layer) if rows else None, self.columns(layer) if tensor.dim() >= 2 else None)
        outputs, inputs = (None if places is None else places.to(tensor.device) for places in found)
        if outputs is not None and inputs is not None:
            return outputs.unsqueeze(1), inputs
        if outputs is not None:
            return (outputs,)
        return ... if inputs is None else (slice(None), inputs)

    def rows(self, layer: LayerCost) -> Tensor | None:
        """Return the kept outputs of a layer, or None if it keeps all."""
        return torch.tensor(self.channels[layer.rows]) if layer.rows in self.channels else None

    def columns(self, layer: LayerCost) -> Tensor | None:
        """Return the kept inputs of a layer, or None if it keeps all."""
        if layer.columns not in self.channels:
            return None
        first = torch.tensor(self.channels[layer.columns]) * layer.column_spread
        return (first.unsqueeze(1) + torch.arange(layer.column_spread)).flatten()


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
