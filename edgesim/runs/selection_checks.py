"""Checks that the selection rule of a scenario fits its fleet, method, protocol and backend."""

from __future__ import annotations

from typing import Any

import numpy as np

from edgesim.config.scenario import Scenario
from edgesim.core.arrays import Ids
from edgesim.core.errors import ConfigError
from edgesim.core.rng import Key
from edgesim.core.selection import Informed, Want, check_wants
from edgesim.core.view import Asked


def wants_of(scenario: Scenario) -> frozenset[Want]:
    """Return the facts that the selection rule needs beside the idle devices and the history of jobs."""
    rule = scenario.selection.value
    return rule.needs if isinstance(rule, Informed) else frozenset()


def asked_at_most(scenario: Scenario, level: Ids, members: Ids | None) -> int:
    """Return the number of devices that a round asks if all are idle.

    `level`: of all devices; `members`: the devices that may be asked, None: all.
    """
    own = level if members is None else level[members]
    return asked_among(scenario, np.arange(len(own)), own)


def asked_among(scenario: Scenario, idle: Ids, level: Ids) -> int:
    """Return the number of devices that a round asks if only `idle` are idle; `level`: of all devices."""
    return most_asked(scenario.selection.value, idle, level, Key(scenario.seed))


def most_asked(rule: Any, idle: Ids, level: Ids, key: Key) -> int:
    """Return the number of devices that a rule asks if only `idle` are idle, its largest value if it is random."""
    return rule.most(len(idle)) if hasattr(rule, "most") else len(rule.choose(idle, level, key))


def how_asked(scenario: Scenario, level: Ids, members: Ids | None) -> Asked | None:
    """Return the share of devices that a round asks, and whether all have the same chance; None with edge servers.

    The arguments are those of `asked_at_most`.
    """
    rule, devices = scenario.selection.value, len(level) if members is None else len(members)
    if scenario.edges is not None:
        return None
    if hasattr(rule, "asked_share"):
        return Asked(rule.asked_share(devices), alike=True)
    return Asked(asked_at_most(scenario, level, members) / devices, alike=False)


def check_selection(scenario: Scenario, level: Ids) -> None:
    """Raise ConfigError if the rule does not fit devices of these levels, or the facts that it needs do not exist."""
    rule, name = scenario.selection.value, scenario.selection.name
    rule.check(level)
    if not isinstance(rule, Informed):
        return
    if type(rule).choose is Informed.choose:
        raise ConfigError(f"selection.name: {name} must have a choose() of its own, has that of Informed")
    check_wants(rule)
    protocol = (scenario.protocol if scenario.edges is None else scenario.edges.protocol).value.protocol
    if rule.protocols and protocol not in rule.protocols:
        raise ConfigError(
            f"selection.name: {name} works with the protocols {', '.join(sorted(rule.protocols))}, found {protocol}"
        )
    if scenario.method.value.needs.peers is not None:
        raise ConfigError(
            f"selection.name: {name} looks at what a server knows; {scenario.method.name} has peers, use 'all'"
        )
    if "reports" in rule.needs and not scenario.backend.value.trains:
        raise ConfigError(
            f"backend.name: selection {name} chooses by training results, which {scenario.backend.name} does not have"
        )
    if "labels" in rule.needs and scenario.data is None:
        raise ConfigError(f"data: the selection {name} looks at labels, which need a data set")
