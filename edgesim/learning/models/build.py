"""Building of networks with their initial weights, and the model state of a network."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, get_type_hints

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.func import functional_call
from torch.overrides import TorchFunctionMode

from edgesim.config.plugin_fields import Foreign
from edgesim.core.errors import ConfigError
from edgesim.core.limits import check_memory
from edgesim.core.rng import Key
from edgesim.files.reading import check_regular, in_short, quoted, reading
from edgesim.learning.models.base import ModelPlugin
from edgesim.learning.models.seeding import seeded
from edgesim.learning.objectives.base import Objective
from edgesim.learning.objectives.classification import CLASSIFICATION

_QUICK = 1_000_000  # numbers of a network up to which a trial run is faster than loading torch's compiler, a second
_SHOWN = 3  # differences named in an error line


def build_model(
    plugin: ModelPlugin | Foreign,
    input_shape: Sequence[int],
    classes: int,
    key: Key,
    priced: bool = False,
    objective: Objective = CLASSIFICATION,
) -> nn.Module:
    """Return a new network in channels-last layout. Equal keys give equal weights.

    `input_shape`: shape of one sample, without the batch. Raises ConfigError if the inputs do not fit the network, if
    its output does not fit the objective, (batch, classes) in classification, if it has no parameters to train or not
    in float32, or if `init_from` cannot be loaded into it. Parameters that their author froze become buffers, which are
    sent but never trained. `priced`: the network already has a price and is not tried, because a trial takes longer
    than building it.
    """
    if isinstance(plugin, ModelPlugin) and not priced:
        _check_room(plugin, input_shape, classes)
    with seeded(key):
        module = plugin.build(input_shape, classes) if isinstance(plugin, ModelPlugin) else users_network(plugin)
    _keep_frozen(module)
    if not priced:
        check_fits(module, input_shape, classes, objective)
        for name, value in module.named_parameters():
            if value.dtype != torch.float32:
                raise ConfigError(
                    f"model.name: parameters of {type(module).__name__} must be of torch.float32, "
                    f"{name} is of {value.dtype}"
                )
    if isinstance(plugin, ModelPlugin) and plugin.init_from is not None:
        _load(module, plugin.init_from)
    for tensor in (*module.parameters(), *module.buffers()):
        if tensor.dim() == 4:  # PyTorch's own conversion of a module fails at tensors of five dimensions
            tensor.data = tensor.data.to(memory_format=torch.channels_last)
    return module


def _keep_frozen(module: nn.Module) -> None:
    """Turn parameters that their author froze into buffers."""
    frozen = {id(value): value.detach() for value in module.parameters() if not value.requires_grad}
    owned = [(inner, name, own) for inner in module.modules() for name, own in own_tensors(inner)]
    for inner, name, own in owned:
        if id(own) in frozen:
            delattr(inner, name)
            inner.register_buffer(name, frozen[id(own)])
            setattr(inner, name, frozen[id(own)])  # recurrent layers update a list of their own here


def bare_copy(module: nn.Module) -> nn.Module:
    """Return a copy of a network in training mode without numbers, in which frozen parameters are buffers.

    The network itself is neither changed nor copied.
    """
    tensors = (*module.parameters(), *module.buffers())
    instead: dict[int, Any] = {id(value): torch.empty_like(value, device="meta") for value in tensors}
    for value in module.parameters():
        instead[id(value)] = nn.Parameter(instead[id(value)], requires_grad=value.requires_grad)
    bare = copy.deepcopy(module, instead).train()
    _keep_frozen(bare)
    return bare


def output_shape(module: nn.Module, input_shape: Sequence[int]) -> tuple[int, ...]:
    """Return the shape of a network's output for one sample. Raises ConfigError if it cannot take the input."""
    given = "x".join(map(str, input_shape))
    try:
        output = applied(module, on_meta(module), torch.empty(2, *input_shape, device="meta"))
    except Exception as error:  # any error of a user's own network
        raise ConfigError(f"{type(module).__name__} cannot take inputs of {given}: {reason_of(error)}") from error
    if not isinstance(output, Tensor):
        raise ConfigError(f"{type(module).__name__} must give a tensor, gives {type(output).__name__}")
    return tuple(output.shape[1:])


def _check_room(plugin: ModelPlugin, input_shape: Sequence[int], classes: int) -> None:
    """Raise ConfigError if a network and one copy of its weights would not fit into memory. None is allocated."""
    try:
        try:
            with torch.device("meta"):
                module = plugin.build(input_shape, classes)
        except NotImplementedError:  # it computes sizes of layers with tensors, which must have numbers
            with _WithoutNumbers():
                module = plugin.build(input_shape, classes)
    except RuntimeError as error:  # a tensor of more bytes than 64 bits count
        raise ConfigError(f"model: cannot make {type(plugin).__name__}: {reason_of(error)}") from error
    tensors = (*module.parameters(), *module.buffers())
    numbers, nbytes = sum(each.numel() for each in tensors), sum(each.nbytes for each in tensors)
    check_memory("model", 2.0 * nbytes, f"{type(plugin).__name__} with {numbers:.3g} numbers, beside a copy of them,")


class _WithoutNumbers(TorchFunctionMode):
    """Makes new tensors without numbers if they are not filled, as those of weights are, and leaves all others."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function of torch, `torch.empty` with its result on the meta device."""
        return func(*args, **{**(kwargs or {}), **({"device": "meta"} if func is torch.empty else {})})


def check_fits(
    module: nn.Module, input_shape: Sequence[int], classes: int, objective: Objective = CLASSIFICATION
) -> None:
    """Raise ConfigError unless the network maps (2, *input_shape) to outputs that the objective takes for two samples.

    In classification these are (2, classes). No weight changes.
    """
    wanted = (2, *objective.shapes(classes, input_shape))
    name, given = type(module).__name__, "x".join(map(str, input_shape))
    if next(module.parameters(), None) is None:
        raise ConfigError(f"model.name: {name} has no parameters to train; one at least must not be frozen")
    try:
        output = _tried(module, input_shape)
    except Exception as error:  # any error of a user's own network
        raise ConfigError(f"model.name: {name} cannot take inputs of {given}: {reason_of(error)}") from error
    if not isinstance(output, Tensor):
        raise ConfigError(
            f"model.name: {name} must give {wanted} for two inputs of {given}, gives {type(output).__name__}; "
            "in training too it has to give its main output alone, without auxiliary ones"
        )
    if tuple(output.shape) != wanted:
        shape = tuple(output.shape)
        raise ConfigError(f"model.name: {name} must give {wanted} for two inputs of {given}, gives {shape}")


def _tried(module: nn.Module, input_shape: Sequence[int]) -> Any:
    """Run a network on two inputs. A large one only computes shapes, which loads torch's compiler."""
    named = (*module.named_parameters(), *module.named_buffers())
    numbers = max(sum(value.numel() for _, value in named), math.prod(input_shape))
    if numbers > _QUICK or any(value.device.type != "cpu" for _, value in named):
        return applied(module, on_meta(module), torch.empty(2, *input_shape, device="meta"))
    with seeded(Key(0)), torch.no_grad():
        return applied(module, {name: value.clone() for name, value in named}, torch.zeros(2, *input_shape))


def applied(module: nn.Module, weights: Mapping[str, Tensor], *x: Tensor) -> Any:
    """Return the output of a network for `x` with other parameters and buffers, by name. Others are its own.

    A tensor that the network has in several places is replaced in all of them.
    """
    named = (*module.named_parameters(), *module.named_buffers())
    instead = {id(own): weights[name] for name, own in named if name in weights}
    places: dict[str, Tensor] = {}
    for path, inner in module.named_modules():  # each module once: a tensor replaced twice would not be restored
        for name, own in own_tensors(inner):
            if id(own) in instead:
                places[f"{path}.{name}" if path else name] = instead[id(own)]
    without_numbers = any(value.is_meta for value in x)
    with _autocast_without_numbers() if without_numbers else nullcontext():
        return functional_call(module, places, x, tie_weights=False)


@contextmanager
def _autocast_without_numbers() -> Iterator[None]:
    """Let `torch.autocast` take tensors without numbers, of which it changes nothing. torch knows no such device."""
    begin = torch.autocast.__init__

    def begin_here(self: torch.autocast, device_type: str, *args: Any, **kwargs: Any) -> None:
        begin(self, "cpu" if device_type == "meta" else device_type, *args, **kwargs)

    torch.autocast.__init__ = begin_here  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.autocast.__init__ = begin  # type: ignore[method-assign]


def on_meta(module: nn.Module) -> dict[str, Tensor]:
    """Return tensors without data for all parameters, which require gradients, and all buffers, by name."""
    stand_ins: dict[str, Tensor] = {}
    for name, value in (*module.named_parameters(), *module.named_buffers()):
        trains = isinstance(value, nn.Parameter)
        stand_ins[name] = torch.empty_like(value, device="meta", requires_grad=trains)
    return stand_ins


def model_state_of(module: nn.Module) -> dict[str, dict[str, Tensor]]:
    """Return copies of the tensors that are sent: {"params": by name, "buffers": by name}.

    Buffers are floating-point only. Integer ones (batch counters) are constants of the network and are not sent.
    """
    floats = {name: value for name, value in module.named_buffers() if value.is_floating_point()}
    return {
        "params": {name: value.detach().clone() for name, value in module.named_parameters()},
        "buffers": {name: value.detach().clone() for name, value in floats.items()},
    }


def own_tensors(layer: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the parameters and buffers of a module itself, under each of their names."""
    yield from layer.named_parameters(recurse=False, remove_duplicate=False)
    yield from layer.named_buffers(recurse=False, remove_duplicate=False)


def users_network(plugin: Foreign) -> nn.Module:
    """Return the network of a user's own class, or of a function that declares that it returns one."""
    made: Any = plugin.cls
    if not isinstance(made, type):
        try:
            made = get_type_hints(made).get("return")
        except Exception:  # hints may use names that only their author knows
            made = None
    if not isinstance(made, type) or not issubclass(made, nn.Module):  # before the call: it may be anything
        raise ConfigError(
            f"model.name: {plugin.cls.__name__} is not a torch.nn.Module, nor a function with the annotation "
            "-> nn.Module"
        )
    try:
        module = plugin.cls(**plugin.args)
    except Exception as error:  # any error of a user's own class
        raise ConfigError(f"model: cannot make {plugin.cls.__name__}: {reason_of(error)}") from error
    if not isinstance(module, nn.Module):
        raise ConfigError(f"model.name: {plugin.cls.__name__} gives no torch.nn.Module but {quoted(module)}")
    return module


def reason_of(error: Exception) -> str:
    """Return the first line of an error's message, shortened, or its type if it has no message."""
    line = next(iter(str(error).splitlines()), "")
    line = in_short(line) if line else ""
    return f"{type(error).__name__} {line}".rstrip() if not line or isinstance(error, KeyError) else line


def _load(module: nn.Module, path: Path) -> None:
    check_regular(path, ConfigError)
    with reading(f"model.init_from: {path}", "safetensors file", ConfigError):
        found = load_file(path)
    state, once = module.state_dict(), {name for collection in model_state_of(module).values() for name in collection}
    wanted = {n: v for n, v in state.items() if n in once or n in found}
    missing = [f"{name} is missing" for name in wanted if name not in found]
    unknown = [f"{name} is not in the model" for name in sorted(found) if name not in wanted]
    both = [name for name in wanted if name in found]
    shapes = [(name, tuple(found[name].shape), tuple(wanted[name].shape)) for name in both]
    wrong = [f"{name} is {have}, the model has {want}" for name, have, want in shapes if have != want]
    if differences := missing + unknown + wrong:
        more = f" and {len(differences) - _SHOWN} more" if len(differences) > _SHOWN else ""
        raise ConfigError(f"model.init_from: {path} does not fit: {'; '.join(differences[:_SHOWN])}{more}")
    module.load_state_dict(found, strict=False)  # only batch counters and second names of a tensor may be absent
