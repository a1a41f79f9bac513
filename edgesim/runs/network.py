"""The network of each device of a scenario, and its price list: built and measured once, unless known or cached."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import ValidationError

from edgesim.config.plugin_fields import Chosen, PartOf
from edgesim.config.plugins import is_outside, plugins_of
from edgesim.config.scenario import Foreign, Scenario
from edgesim.config.units import reason
from edgesim.core.errors import ConfigError
from edgesim.core.limits import memory_bytes
from edgesim.core.networks import Networks, labels_of
from edgesim.core.price_list import F32_BYTES, CostProfile, side_by_side
from edgesim.core.rng import Key, Purpose
from edgesim.files.code_identity import identity
from edgesim.files.code_walk import settings_of
from edgesim.files.loaded_code import Unidentified
from edgesim.files.user_cache import PROFILES, keep_table, kept_table
from edgesim.learning.cost_models.measured import Measured
from edgesim.learning.cost_models.priced_as import As, charged
from edgesim.learning.data.dataset import Dataset
from edgesim.learning.models.base import ModelPlugin
from edgesim.learning.objectives.base import Objective
from edgesim.learning.objectives.classification import CLASSIFICATION
from edgesim.learning.train.torch_settings import plain_torch

if TYPE_CHECKING:
    from torch import nn


_CODE = ("core", "learning")  # folders of the package that make networks and measure them


@dataclass(frozen=True, eq=False)
class Network:
    """What a network costs, and how it is made."""

    cost_profile: CostProfile
    make: Callable[[], nn.Module]

    @cached_property
    def module(self) -> nn.Module:
        """The network with its starting weights, built when it is first asked for."""
        return self.make()


def network_of(
    model: Chosen,
    shape: tuple[int, ...] | None,
    classes: int | None,
    key: Key,
    known: CostProfile | None = None,
    objective: Objective | None = None,
    remedy: str = "give a data set",
) -> Network:
    """Return a network with the cost profile that is `known`, kept, or else measured, and then kept.

    Shape, classes and objective default to those that the model is known for; `remedy`: what to do where it has none.
    Raises ConfigError if it cannot be built or priced.
    """
    objective = _objective_of(model.value, objective)
    shape, classes = _input_of(model.value, model.name, shape, classes, remedy)
    make = partial(_built, model.value, shape, classes, key, objective)
    outside = is_outside("model", model.name)
    # of code, or of a file, only building it tells if it fits
    ready = make() if outside or model.value.init_from is not None else None
    own = "" if ready is None or not outside else _structure_of(ready)
    follows_from = _identity(model, shape, classes, objective, own)
    cost_profile = known or _kept(follows_from)
    if cost_profile is None:
        ready = make() if ready is None else ready
        cost_profile = measured(ready, model.name, shape, classes, objective)
        if follows_from is not None and follows_from == _identity(model, shape, classes, objective, own):
            keep_table(PROFILES, follows_from, json.loads(cost_profile.to_json()))
    elif ready is None and not _has_room(cost_profile):
        make()  # says why
    return Network(cost_profile, partial(make, priced=True) if ready is None else lambda: ready)


def charged_profile(scenario: Scenario, own: CostProfile, data: Dataset | None) -> CostProfile:
    """Return the network's cost profile, or that of another one where `cost` names one. Raises ConfigError."""
    cost = scenario.cost.value
    if not isinstance(cost, As):
        return own
    key = Key(scenario.seed).at(Purpose.INIT, 0)
    found: list[CostProfile] = []
    for name, given in ("model", cost.model), ("payload_of", cost.payload_of):
        if given is None:
            found.append(found[0])
            continue
        try:
            model = PartOf("model").read(given)
        except ValidationError as error:
            raise ConfigError(f"cost.{name}: {reason(error)}") from error
        shape, classes = cost.input_shape, cost.classes
        if not hasattr(model.value, "native_input_shape") and data is not None:
            shape, classes = shape or data.input_shape, classes or data.classes
        found.append(network_of(model, shape, classes, key, objective=scenario.objective.value).cost_profile)
    return charged(own, found[0], found[1], scenario.training.batch)


def cost_profile_of(
    model: Any,
    name: str,
    data_shape: tuple[int, ...] | None,
    classes: int | None,
    key: Key,
    objective: Objective | None = None,
) -> tuple[nn.Module, CostProfile]:
    """Return a network and its cost profile, measured here and now.

    Shape, classes and objective default to those that the model is known for.
    """
    objective = _objective_of(model, objective)
    shape, classes = _input_of(model, name, data_shape, classes)
    module = _built(model, shape, classes, key, objective)
    return module, measured(module, name, shape, classes, objective)


@plain_torch()
def measured(
    module: nn.Module, name: str, shape: Sequence[int], classes: int, objective: Objective = CLASSIFICATION
) -> CostProfile:
    """Return the cost profile of a network; see `edgesim.learning.measure.step.measure`."""
    from edgesim.learning.measure.step import measure

    return measure(module, name, shape, classes, objective=objective)


def _input_of(
    model: Any, name: str, shape: tuple[int, ...] | None, classes: int | None, remedy: str = "give a data set"
) -> tuple[tuple[int, ...], int]:
    shape = shape or getattr(model, "native_input_shape", None)
    classes = classes or getattr(model, "native_classes", None)
    if shape is None or classes is None:
        raise ConfigError(f"model.name: {name} has no input shape or classes of its own; {remedy}")
    return shape, classes


def _objective_of(model: Any, objective: Objective | None) -> Objective:
    found: Objective = getattr(model, "native_objective", CLASSIFICATION) if objective is None else objective
    return found


@plain_torch()
def _built(
    model: Any, shape: tuple[int, ...], classes: int, key: Key, objective: Objective, priced: bool = False
) -> nn.Module:
    from edgesim.learning.models.build import build_model

    return build_model(model, shape, classes, key, priced, objective)


def _has_room(cost_profile: CostProfile) -> bool:
    """Return whether memory holds a network and one copy of its weights, as `build_model` asks."""
    numbers = sum(layer.params + layer.buffers for layer in cost_profile.layers)
    return 2.0 * (F32_BYTES * numbers + cost_profile.integer_buffer_bytes) <= memory_bytes()


# --- what is kept ---------------------------------------------------------------------------------------------


def _kept(follows_from: Any) -> CostProfile | None:
    """Return the cost profile that was kept for an identity; None if there is none."""
    found = None if follows_from is None else kept_table(PROFILES, follows_from)
    try:
        return None if found is None else CostProfile.from_json(json.dumps(found))
    except ConfigError:
        return None


def _identity(
    model: Chosen, shape: tuple[int, ...], classes: int, objective: Objective, own: str
) -> dict[str, Any] | None:
    """Return all that decides a cost profile; None if that cannot be told."""
    keys = {key: value for key, value in model.args.items() if key != "init_from"}
    try:
        follows_from = identity({"name": model.name, **keys}, *_CODE)
    except Unidentified:
        return None
    return {
        "model": model.name,
        "keys": keys,
        "class": repr(settings_of(type(model.value))),
        "input_shape": list(shape),
        "classes": classes,
        "objective": [type(objective).__qualname__, repr(objective)],
        "own": own,
        "follows_from": follows_from,
    }


def _structure_of(module: nn.Module) -> str:
    """Return the layers and tensors of a network that others' code made, as text."""
    first: dict[int, str] = {}  # a tensor that several layers share has one name
    tensors = (*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False))
    held = [
        f"{name} {first.setdefault(id(each), name)} {tuple(each.shape)} {each.dtype} {each.requires_grad}"
        for name, each in tensors
    ]
    return "\n".join([repr(module), *held])


def models_of(scenario: Scenario) -> list[Chosen]:
    """Return the models that devices have, each once, in the order of the fleet's blocks."""
    found: list[Chosen] = []
    for model in _of_blocks(scenario):
        if model not in found:
            found.append(model)
    return found


def networks_of_devices(scenario: Scenario) -> Networks | None:
    """Return which network each device has; None if all have the same."""
    models = models_of(scenario)
    if len(models) == 1:
        return None
    places = [models.index(model) for model in _of_blocks(scenario)]
    of_devices = np.repeat(np.array(places), [block.count for block in scenario.fleet])
    of_devices.setflags(write=False)
    return Networks(tuple(labels_of([model.name for model in models])), of_devices)


def together(networks: Mapping[str, Network]) -> Network:
    """Return several networks as one. Raises ConfigError if they take other inputs or give other outputs."""
    profiles = {name: network.cost_profile for name, network in networks.items()}
    return Network(side_by_side(profiles), lambda: _side_by_side(networks))


def check_networks(scenario: Scenario) -> None:
    """Raise ConfigError if a model is none, or there are several and something works with one alone."""
    models = models_of(scenario)
    for model in models:
        if not isinstance(model.value, ModelPlugin | Foreign):
            raise ConfigError(f"model.name: {model.name} must be a torch.nn.Module or a dataclass of ModelPlugin")
    if len(models) == 1:
        return
    key = next(f"fleet.{place}.model" for place, block in enumerate(scenario.fleet) if block.model is not None)
    found = " and ".join(model.name for model in models)
    method = scenario.method
    if not method.value.needs.networks:
        others = ", ".join(_methods_for_several())
        raise ConfigError(
            f"{key}: {method.name} trains one network for all devices, found {found}; methods for several: {others}"
        )
    for what, there in (
        ("peers", scenario.peers is not None),
        ("edges", scenario.edges is not None),
        (f"backend.name: {scenario.backend.name}", not getattr(scenario.backend.value, "networks", True)),
        (f"cost.name: {scenario.cost.name}", not isinstance(scenario.cost.value, Measured)),
    ):
        if there:
            raise ConfigError(f"{key}: several networks ({found}) do not go with {what}; leave one of both out")


def _methods_for_several() -> list[str]:
    methods: Mapping[str, Any] = plugins_of("method")
    return sorted(name for name, cls in methods.items() if cls.needs.networks)


def _of_blocks(scenario: Scenario) -> list[Chosen]:
    return [scenario.model if block.model is None else block.model for block in scenario.fleet]


@plain_torch()
def _side_by_side(networks: Mapping[str, Network]) -> nn.Module:
    from edgesim.learning.models.side_by_side import SideBySide

    return SideBySide({name: network.module for name, network in networks.items()})
