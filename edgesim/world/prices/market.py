"""Prices of a scenario for its fleet: the prices of joules, bytes, hours and jobs of each device over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from edgesim.config.plugin_fields import Chosen, built
from edgesim.config.prices import ANY, Band
from edgesim.config.scenario import Scenario
from edgesim.core.arrays import Arr, Ids
from edgesim.core.errors import ConfigError
from edgesim.world.fleet import Fleet
from edgesim.world.prices.base import Steps

NOTHING = np.zeros(3)
FREE = Steps(np.zeros(1), np.zeros((1, 3)))

# Money and grams of CO2 equivalent, each low, typical and high: how every cost is held, shape (6,) or (k, 6).
Cost: TypeAlias = Arr
COLUMNS = ("cost_low", "cost", "cost_high", "co2e_low_g", "co2e_g", "co2e_high_g")


@dataclass(frozen=True, slots=True, eq=False)
class Zone:
    """Price of a joule of electricity at a place over time, in money and carbon."""

    money: Steps
    carbon: Steps

    @property
    def steady(self) -> bool:
        """True if neither ever changes."""
        return len(self.money.values) == len(self.carbon.values) == 1

    def mean(self, from_s: Arr | float, to_s: Arr | float) -> Cost:
        """Return the mean price of a joule over [from_s, to_s], shape (..., 6)."""
        return np.concatenate([self.money.mean(from_s, to_s), self.carbon.mean(from_s, to_s)], axis=-1)

    def next_change_s(self, now_s: float) -> float:
        """Return the first instant after `now_s` at which either changes; inf: never."""
        return min(self.money.next_change_s(now_s), self.carbon.next_change_s(now_s))


@dataclass(frozen=True, slots=True, eq=False)
class Market:
    """All prices. `zone`, `link` and `kind` of each device, shape (devices,), are indices into the other fields."""

    zones: Sequence[Zone]
    zone: Ids
    server_zone: Zone
    link: Ids
    kind: Ids
    per_byte: Cost  # shape (links, 6), as those below
    per_busy_s: Cost  # of kinds: device-hours and what is embodied
    per_job: Cost  # of kinds
    server_per_s: Cost  # shape (6,)


def market_of(scenario: Scenario, fleet: Fleet) -> Market | None:
    """Return all prices of a scenario, None if it gives no prices.

    Raises ConfigError that names the key if a zone, a kind of link or of device has no price where others have one or
    a price is of something that no block has, and ConfigError or DataError if a tariff cannot be.
    """
    prices = scenario.prices
    if prices is None:
        return None
    blocks = scenario.fleet
    of_zones = [block.zone or ANY for block in blocks]
    of_links = [block.link or (block.network or scenario.network).name for block in blocks]
    kinds = [block.name for block in blocks]
    zones = list(dict.fromkeys(of_zones))
    if prices.server_zone is None and len(zones) > 1:
        raise ConfigError(f"prices.server_zone: is missing; the fleet is in several zones, {', '.join(zones)}")
    server = zones[0] if prices.server_zone is None else prices.server_zone
    zones = list(dict.fromkeys([*zones, server]))
    money = _tariffs(prices.electricity, zones, "electricity")
    carbon = _tariffs(prices.carbon, zones, "carbon")
    links = list(dict.fromkeys(of_links))
    found = [Zone(*pair) for pair in zip(money, carbon, strict=True)]
    return Market(
        zones=found,
        zone=_by_block([zones.index(zone) for zone in of_zones], fleet),
        server_zone=found[zones.index(server)],
        link=_by_block([links.index(link) for link in of_links], fleet),
        kind=fleet.kind,
        per_byte=_costs(prices.data, {}, links, "prices.data", what="kind of link"),
        per_busy_s=_costs(prices.device_hours, prices.embodied, kinds, "prices.device_hours", "prices.embodied"),
        per_job=_costs(prices.payments, {}, kinds, "prices.payments"),
        server_per_s=np.concatenate([_values(prices.server_hours), _values(prices.server_embodied)]),
    )


def _tariffs(given: Mapping[str, Chosen], zones: Sequence[str], key: str) -> list[Steps]:
    """Return the tariff of each zone over time."""
    _check_labels(given, zones, f"prices.{key}", "zone")
    found: list[Steps] = []
    for zone in zones:
        label = zone if zone in given else ANY
        if label not in given:
            found.append(FREE)
            continue
        path = f"prices.{key}" if label == ANY else f"prices.{key}.{label}"
        found.append(built(given[label], path, Steps, given[label].value.steps, path))
    return found


def _costs(
    money: Mapping[str, Band],
    carbon: Mapping[str, Band],
    labels: Sequence[str],
    key: str,
    carbon_key: str = "",
    what: str = "fleet block",
) -> Cost:
    """Return the price of a unit for each label, shape (labels, 6)."""
    _check_labels(money, labels, key, what)
    _check_labels(carbon, labels, carbon_key, what)
    both = [[_values(given.get(label, given.get(ANY))) for given in (money, carbon)] for label in labels]
    return np.array([np.concatenate(pair) for pair in both])


def _check_labels(given: Mapping[str, object], labels: Sequence[str], key: str, what: str) -> None:
    """Raise ConfigError unless every price is of a label that there is, and every label has one if any has."""
    if not given:
        return
    known = [label for label in labels if label != ANY]
    for label in given:
        if label not in (ANY, *known):
            raise ConfigError(f"{key}.{label}: no {what} has this; there are {', '.join(known) or 'none with a name'}")
    for label in labels:
        if label not in given and ANY not in given:
            missing = f"{label!r}" if label != ANY else "fleet blocks without one"
            raise ConfigError(f'{key}: has no price for {missing}; give one, or one for all others as "*"')


def _values(band: Band | None) -> Arr:
    return NOTHING if band is None else np.array(band.values)


def _by_block(places: Sequence[int], fleet: Fleet) -> Ids:
    """Return the place of each device's block, shape (devices,)."""
    of_device: Ids = np.array(places, dtype=np.int64)[fleet.kind]
    return of_device
