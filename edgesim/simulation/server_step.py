"""The method of a scenario as its server runs it: with its server optimiser, and with encoded updates."""

from __future__ import annotations

from edgesim.config.scenario import Scenario
from edgesim.core.errors import ConfigError
from edgesim.core.method import Method
from edgesim.methods.encoded import Encoded
from edgesim.methods.optimised import Optimised


def method_of_server(scenario: Scenario) -> Method:
    """Return the scenario's method; where encodings are of updates or a server optimiser changes something, with it."""
    method: Method = scenario.method.value
    if scenario.encoding.up.of_update:
        method = Encoded(method=method, encoding=scenario.encoding.up)
    chosen = scenario.server_optimizer
    if chosen is None or chosen.value.is_identity:
        return method
    return Optimised(method=method, optimizer=chosen.value)


def check_server_step(scenario: Scenario) -> None:
    """Raise ConfigError if the server could not step or read updates as the scenario wants it."""
    _check_server_optimizer(scenario)
    _check_encoding(scenario)
    _check_momentum(scenario)


def _check_server_optimizer(scenario: Scenario) -> None:
    """Raise ConfigError if a server optimiser is asked for where no server could step, or a step makes no sense."""
    method, chosen = scenario.method, scenario.server_optimizer
    if chosen is None:
        return
    if method.value.needs.peers is not None:
        why = f"{method.name} has no server, its devices exchange models among themselves"
    elif scenario.edges is not None:
        why = "the server above edge servers takes the mean of their models and nothing else"
    elif method.value.no_server_optimizer:
        why = f"{method.name} {method.value.no_server_optimizer}"
    else:
        return
    raise ConfigError(f"server_optimizer: {why}; leave it out, found {chosen.name}")


def _check_encoding(scenario: Scenario) -> None:
    """Raise ConfigError if an encoding of updates is asked for where nobody sends an update."""
    method = scenario.method
    if scenario.encoding.down.of_update:
        raise ConfigError("encoding.down: the server sends whole models, an update goes up alone; use encoding.up")
    if not scenario.encoding.up.of_update:
        return
    if method.value.needs.peers is not None:
        why = f"{method.name} has no server, its devices exchange whole models among themselves"
    elif scenario.edges is not None:
        why = "edge servers send whole models to the server above them"
    elif method.value.no_update_encoding:
        why = f"{method.name} {method.value.no_update_encoding}"
    else:
        return
    raise ConfigError(f"encoding.up: {why}; it can encode values, not updates")


def _check_momentum(scenario: Scenario) -> None:
    """Raise ConfigError if updates have momentum, and the steps of which they are made have it too."""
    training, momentum = scenario.training, scenario.encoding.up.momentum
    if not momentum:
        return
    why = f"as encoding.up.momentum, {momentum:g}, adds up steps that have none; found"
    if training.optimizer != "sgd":
        raise ConfigError(f"training.optimizer: must be 'sgd', {why} '{training.optimizer}'")
    if training.momentum:
        raise ConfigError(f"training.momentum: must be 0, {why} {training.momentum:g}")
