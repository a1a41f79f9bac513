"""From a model part to a network with its starting weights, and from a network to the bundle that travels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.func import functional_call

from edgesim.errors import ConfigError
from edgesim.learning.models.base import ModelPart
from edgesim.learning.seeding import seeded
from edgesim.reading import check_regular, reading
from edgesim.rng import Key

_SHOWN = 3  # differences named in an error line


class Foreign(Protocol):
    """A user's own network: a class from outside and the arguments it is called with."""

    @property
    def cls(self) -> type[nn.Module]:
        """The class."""

    @property
    def args(self) -> Mapping[str, Any]:
        """Its keyword arguments."""


def build_model(part: ModelPart | Foreign, input_shape: Sequence[int], classes: int, key: Key) -> nn.Module:
    """Return a new network in channels-last layout; equal keys give equal weights.

    `input_shape` is that of one sample, without the batch. Raises ConfigError if the inputs do not fit the
    network, if its output is not (batch, classes), or if `init_from` cannot be loaded into it.
    """
    with seeded(key):
        module = part.build(input_shape, classes) if isinstance(part, ModelPart) else _call(part)
    check_fits(module, input_shape, classes)
    if isinstance(part, ModelPart) and part.init_from is not None:
        _load(module, part.init_from)
    return module.to(memory_format=torch.channels_last)


def check_fits(module: nn.Module, input_shape: Sequence[int], classes: int) -> None:
    """Raise ConfigError unless the network turns (2, *input_shape) into (2, classes). No weight is read or changed."""
    name, given = type(module).__name__, "x".join(map(str, input_shape))
    try:
        output = functional_call(module, on_meta(module), (torch.empty(2, *input_shape, device="meta"),))
    except (RuntimeError, ValueError, TypeError, IndexError, AssertionError, NotImplementedError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise ConfigError(f"model.name: {name} cannot take inputs of {given}: {reason}") from error
    shape = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
    if shape != (2, classes):
        raise ConfigError(f"model.name: {name} must give (2, {classes}) for two inputs of {given}, gives {shape}")


def on_meta(module: nn.Module) -> dict[str, Tensor]:
    """Return stand-ins without data for all parameters, which require gradients, and buffers, by name."""
    stand_ins: dict[str, Tensor] = {}
    for name, value in (*module.named_parameters(), *module.named_buffers()):
        trains = isinstance(value, nn.Parameter)
        stand_ins[name] = torch.empty_like(value, device="meta", requires_grad=trains)
    return stand_ins


def bundle_of(module: nn.Module) -> dict[str, dict[str, Tensor]]:
    """Return copies of what travels: {"params": by name, "buffers": by name}.

    Buffers are floating-point only. Integer ones (batch counters) are constants of the network and stay behind.
    """
    floats = {name: value for name, value in module.named_buffers() if value.is_floating_point()}
    return {
        "params": {name: value.detach().clone() for name, value in module.named_parameters()},
        "buffers": {name: value.detach().clone() for name, value in floats.items()},
    }


def _call(part: Foreign) -> nn.Module:
    try:
        module = part.cls(**part.args)
    except TypeError as error:
        raise ConfigError(f"model: cannot make {part.cls.__name__}: {error}") from error
    if not isinstance(module, nn.Module):
        raise ConfigError(f"model.name: {part.cls.__name__} is not a torch.nn.Module")
    return module


def _load(module: nn.Module, path: Path) -> None:
    check_regular(path, ConfigError)
    with reading(f"model.init_from: {path}", "safetensors file", ConfigError):
        found = load_file(path)
    travelling = {name: value for name, value in module.state_dict().items() if value.is_floating_point()}
    differences = _differences(found, {**travelling, **{n: v for n, v in module.state_dict().items() if n in found}})
    if differences:
        more = f" and {len(differences) - _SHOWN} more" if len(differences) > _SHOWN else ""
        raise ConfigError(f"model.init_from: {path} does not fit: {'; '.join(differences[:_SHOWN])}{more}")
    module.load_state_dict(found, strict=False)  # only batch counters may be absent


def _differences(found: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> list[str]:
    missing = [f"{name} is missing" for name in wanted if name not in found]
    unknown = [f"{name} is not in the model" for name in sorted(found) if name not in wanted]
    both = [name for name in wanted if name in found]
    shapes = [(name, tuple(found[name].shape), tuple(wanted[name].shape)) for name in both]
    wrong = [f"{name} is {have}, the model has {want}" for name, have, want in shapes if have != want]
    return missing + unknown + wrong
