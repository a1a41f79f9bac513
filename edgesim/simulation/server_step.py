"""The method of a scenario as its server runs it, with the server optimiser if there is one."""

from __future__ import annotations

from edgesim.config.scenario import Scenario
from edgesim.core.errors import ConfigError
from edgesim.core.method import Method
from edgesim.methods.optimised import Optimised


def method_of_server(scenario: Scenario) -> Method:
    """Return the scenario's method; where a server optimiser changes something, with it."""
    method: Method = scenario.method.value
    chosen = scenario.server_optimizer
    if chosen is None or chosen.value.is_identity:
        return method
    return Optimised(method=method, optimizer=chosen.value)


def check_server_optimizer(scenario: Scenario) -> None:
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
