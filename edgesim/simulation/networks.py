"""Which network each device of a scenario has, and several of them as one, where there are several."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from edgesim.config.plugin_fields import Chosen
from edgesim.config.plugins import plugins_of
from edgesim.config.scenario import Foreign, Scenario
from edgesim.core.errors import ConfigError
from edgesim.core.networks import Networks, labels_of
from edgesim.cost.models.measured import Measured
from edgesim.cost.several import side_by_side
from edgesim.learning.models.base import ModelPlugin
from edgesim.learning.train.torch_settings import plain_torch
from edgesim.simulation.network import Network

if TYPE_CHECKING:
    from torch import nn


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
