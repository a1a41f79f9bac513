"""The network of a scenario and what it costs: built when it is asked for, measured unless that is known or kept.

So what trains nothing loads no torch. What others wrote is built at once, as only then it is known to be a network.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from edgesim.config.plugin_fields import Chosen, PartOf
from edgesim.config.plugins import is_outside
from edgesim.config.scenario import Scenario
from edgesim.config.units import reason
from edgesim.core.errors import ConfigError
from edgesim.core.limits import memory_bytes
from edgesim.core.rng import Key, Purpose
from edgesim.cost.models.priced_as import As, charged
from edgesim.cost.profile import F32_BYTES, CostProfile
from edgesim.files.code_identity import identity
from edgesim.files.code_walk import settings_of
from edgesim.files.kept import PROFILES, keep_table, kept_table
from edgesim.files.loaded_code import Unidentified
from edgesim.learning.data.dataset import Dataset
from edgesim.learning.objectives.base import Objective
from edgesim.learning.objectives.classification import CLASSIFICATION
from edgesim.learning.train.torch_settings import plain_torch

if TYPE_CHECKING:
    from torch import nn

_CODE = ("core", "cost", "learning")  # folders of the package that make networks and measure them


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
    """Return the cost profile of a network; see `edgesim.cost.measure.step.measure`."""
    from edgesim.cost.measure.step import measure

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
