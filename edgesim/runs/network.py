"""Networks of a scenario's devices and their price lists, built and measured once unless known or cached."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import ValidationError
from pydantic_core import PydanticCustomError

from edgesim.config.plugin_fields import Chosen, PartOf
from edgesim.config.plugins import is_outside
from edgesim.config.scenario import Foreign, Scenario
from edgesim.config.toml_file import toml_of
from edgesim.config.units import reason
from edgesim.core.errors import ConfigError
from edgesim.core.garbage import seldom_collecting
from edgesim.core.limits import memory_bytes
from edgesim.core.networks import Networks, labels_of
from edgesim.core.price_list import F32_BYTES, CostProfile, side_by_side
from edgesim.core.rng import Key, Purpose
from edgesim.files.code_identity import identity
from edgesim.files.code_walk import settings_of
from edgesim.files.loaded_code import Unidentified
from edgesim.files.user_cache import PROFILES, keep_table, kept_table
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
    """A network: its price list, and the function that builds it."""

    cost_profile: CostProfile
    make: Callable[[], nn.Module]

    @cached_property
    def module(self) -> nn.Module:
        """The network with its starting weights, built at the first access."""
        return self.make()


@seldom_collecting()
def network_of(
    model: Chosen,
    shape: tuple[int, ...] | None,
    classes: int | None,
    key: Key,
    known: CostProfile | None = None,
    objective: Objective | None = None,
    remedy: str = "give a data set",
    kinds: bool = False,
    vocabulary: int | None = None,
    weights: bool = True,
) -> Network:
    """Return a network with its cost profile: `known`, cached, or else measured and then cached.

    Shape, classes and objective default to the model's own. `remedy`: advice in the error if it has none. `kinds`:
    with the kinds of work beside FLOPs, so that a profile without them does not count as known or cached.
    `vocabulary`: number of different tokens, if the inputs are tokens. `weights`: whether training will need them.
    Without it a large network is priced without numbers, and is not refused where it would not fit into memory. Raises
    ConfigError if the network cannot be built or priced.
    """
    objective = _objective_of(model.value, objective)
    shape, classes = _input_of(model.value, model.name, shape, classes, remedy)
    make = partial(_built, model.value, shape, classes, key, objective, vocabulary)
    outside = is_outside("model", model.name)
    # a model of the user's code, or weights of a file, must be built to know that it fits
    ready = None
    if outside or model.value.loads_weights:
        try:
            ready = make(weights=weights)
        except ConfigError:
            if weights or not outside:
                raise
            ready = make()  # it may compute with numbers of its own
    own = ""
    if ready is not None and outside:  # the layers and tensors that the user's code made, as text
        from edgesim.learning.models.build import base_of  # loads torch

        first: dict[int, str] = {}  # a tensor that several layers share has one name
        base = {id(each) for each in base_of(ready).values()}
        tensors = (*ready.named_parameters(remove_duplicate=False), *ready.named_buffers(remove_duplicate=False))
        held = [
            f"{name} {first.setdefault(id(each), name)} {tuple(each.shape)} {each.dtype} {each.requires_grad}"
            f"{' base' * (id(each) in base)}"
            for name, each in tensors
        ]
        own = "\n".join([repr(ready), *held])
    follows_from = _identity(model, shape, classes, objective, own, kinds, vocabulary)
    cost_profile = None if known is None or (kinds and known.work is None) else known
    if cost_profile is None and follows_from is not None and (table := kept_table(PROFILES, follows_from)) is not None:
        with suppress(ConfigError):  # of a profile in another format
            cost_profile = CostProfile.from_json(json.dumps(table))
    if cost_profile is None:
        ready = make(weights=weights) if ready is None else ready
        try:
            cost_profile = measured(ready, model.name, shape, classes, objective, kinds, vocabulary is not None)
        except ConfigError:
            if not _is_without_numbers(ready):
                raise
            ready = make()
            cost_profile = measured(ready, model.name, shape, classes, objective, kinds, vocabulary is not None)
        if follows_from is not None and follows_from == _identity(
            model, shape, classes, objective, own, kinds, vocabulary
        ):
            keep_table(PROFILES, follows_from, json.loads(cost_profile.to_json()))
    elif ready is None and weights:
        numbers = sum(layer.params + layer.buffers for layer in cost_profile.layers)
        base_bytes = sum(layer.base_bytes for layer in cost_profile.layers)
        # memory must hold the network and a copy of its weights without the base, as `build_model` checks
        if 2.0 * (F32_BYTES * numbers + cost_profile.integer_buffer_bytes) + base_bytes > memory_bytes():
            make()  # raises the error
    if ready is None or _is_without_numbers(ready):
        return Network(cost_profile, partial(make, priced=weights))
    return Network(cost_profile, lambda: ready)


def model_named(name: str) -> Chosen:
    """Return the model of a name in scenarios, or of a table with its keys as TOML has it.

    Raises ConfigError if there is none.
    """
    given: Any = name
    if name.lstrip().startswith("{"):
        given = toml_of(f"model = {name}", "model")["model"]
    try:
        return PartOf("model").read(given)
    except ValidationError as error:
        where = ".".join(["model", *map(str, error.errors()[0]["loc"])])
        raise ConfigError(f"{where}: {reason(error)}") from error
    except PydanticCustomError as error:
        raise ConfigError(f"model: {error.message()}") from error


def charged_profile(scenario: Scenario, own: CostProfile, data: Dataset | None, kinds: bool = False) -> CostProfile:
    """Return the cost profile of the model that `cost` names, or else of the network itself. Raises ConfigError.

    `kinds`: with the kinds of work beside FLOPs.
    """
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
        shape, classes, vocabulary = cost.input_shape, cost.classes, None
        if model.value.native_input_shape is None and data is not None:
            vocabulary = data.vocabulary if shape is None else None
            shape, classes = shape or data.input_shape, classes or data.classes
        objective = scenario.objective.value
        network = network_of(
            model, shape, classes, key, objective=objective, kinds=kinds, vocabulary=vocabulary, weights=False
        )
        found.append(network.cost_profile)
    return charged(own, found[0], found[1], scenario.training.batch)


def cost_profile_of(
    model: Any,
    name: str,
    data_shape: tuple[int, ...] | None,
    classes: int | None,
    key: Key,
    objective: Objective | None = None,
    kinds: bool = False,
) -> tuple[nn.Module, CostProfile]:
    """Build a network and measure its cost profile, without the cache.

    Shape, classes and objective default to the model's own. `kinds`: with the kinds of work beside FLOPs.
    """
    objective = _objective_of(model, objective)
    shape, classes = _input_of(model, name, data_shape, classes)
    module = _built(model, shape, classes, key, objective)
    return module, measured(module, name, shape, classes, objective, kinds)


@plain_torch()
def measured(
    module: nn.Module,
    name: str,
    shape: Sequence[int],
    classes: int,
    objective: Objective = CLASSIFICATION,
    kinds: bool = False,
    tokens: bool = False,
) -> CostProfile:
    """Measure the cost profile of a network, as `edgesim.learning.measure.step.measure` does."""
    from edgesim.learning.measure.step import measure

    return measure(module, name, shape, classes, objective=objective, kinds=kinds, tokens=tokens)


def _input_of(
    model: Any, name: str, shape: tuple[int, ...] | None, classes: int | None, remedy: str = "give a data set"
) -> tuple[tuple[int, ...], int]:
    shape = shape or model.native_input_shape
    classes = classes or model.native_classes
    if shape is None or classes is None:
        raise ConfigError(f"model.name: {name} has no input shape or classes of its own; {remedy}")
    return shape, classes


def _objective_of(model: Any, objective: Objective | None) -> Objective:
    found: Objective = objective or model.native_objective or CLASSIFICATION
    return found


@plain_torch()
def _built(
    model: Any,
    shape: tuple[int, ...],
    classes: int,
    key: Key,
    objective: Objective,
    vocabulary: int | None = None,
    priced: bool = False,
    weights: bool = True,
) -> nn.Module:
    from edgesim.learning.models.build import build_model

    return build_model(model, shape, classes, key, priced, objective, vocabulary, weights)


def _is_without_numbers(module: nn.Module) -> bool:
    return any(value.is_meta for value in module.parameters())


def _identity(
    model: Chosen,
    shape: tuple[int, ...],
    classes: int,
    objective: Objective,
    own: str,
    kinds: bool,
    vocabulary: int | None,
) -> dict[str, Any] | None:
    """Return everything that decides a cost profile; None if it cannot be identified."""
    keys = model.value.priced_by(model.args) if isinstance(model.value, ModelPlugin) else dict(model.args)
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
        "kinds": kinds,
        "vocabulary": vocabulary,
        "follows_from": follows_from,
    }


def networks_of_devices(scenario: Scenario) -> Networks | None:
    """Return the network of each device; None if all devices have the same."""
    models = scenario.models
    if len(models) == 1:
        return None
    places = [models.index(block.model or scenario.model) for block in scenario.fleet]
    of_devices = np.repeat(np.array(places), [block.count for block in scenario.fleet])
    of_devices.setflags(write=False)
    return Networks(tuple(labels_of([model.name for model in models])), of_devices)


def together(networks: Mapping[str, Network]) -> Network:
    """Return several networks as one. Raises ConfigError if their inputs or outputs differ in shape."""

    @plain_torch()
    def make() -> nn.Module:
        from edgesim.learning.models.side_by_side import SideBySide

        return SideBySide({name: network.module for name, network in networks.items()})

    return Network(side_by_side({name: network.cost_profile for name, network in networks.items()}), make)


def check_models(scenario: Scenario) -> None:
    """Raise ConfigError if a model is no model."""
    for model in scenario.models:
        if not isinstance(model.value, ModelPlugin | Foreign):
            raise ConfigError(f"model.name: {model.name} must be a torch.nn.Module or a dataclass of ModelPlugin")
