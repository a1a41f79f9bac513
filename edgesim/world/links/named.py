"""Links people know, by their names: fixed links whose keys have the numbers of the catalogue as defaults.

The numbers and their sources stand in edgesim/config/links, a file a link.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar, get_type_hints

from edgesim.config.link_profiles import find
from edgesim.world.links.analytic import Fixed

_Link = TypeVar("_Link", bound=Fixed)


def _of_catalogue(name: str) -> Callable[[type[_Link]], type[_Link]]:
    """Return a decorator that makes a link a dataclass whose defaults are what the catalogue knows of `name`, in SI."""

    def with_defaults(cls: type[_Link]) -> type[_Link]:
        numbers, types = find(name).si, get_type_hints(Fixed, include_extras=True)
        cls.__annotations__ = {key: types[key] for key in numbers}
        for key, number in numbers.items():
            setattr(cls, key, number)
        return dataclass(frozen=True, kw_only=True)(cls)

    return with_defaults


@_of_catalogue("lte")
class Lte(Fixed):
    """LTE (4G) of a phone; `edgesim link lte` has the source of each number."""


@_of_catalogue("5g")
class FifthGeneration(Fixed):
    """5G of a phone, below 6 GHz; `edgesim link 5g` has the source of each number."""


@_of_catalogue("wifi")
class Wifi(Fixed):
    """Wi-Fi at home, and the fixed access behind it; `edgesim link wifi` has the source of each number."""


@_of_catalogue("nb_iot")
class NbIot(Fixed):
    """NB-IoT (LTE Cat-NB1) of a sensor; `edgesim link nb_iot` has the source of each number."""


@_of_catalogue("lora")
class Lora(Fixed):
    """LoRaWAN of a sensor, 868 MHz, spreading factor 7; `edgesim link lora` has the source of each number.

    The duty cycle that regulators demand is not modelled.
    """


@_of_catalogue("ethernet")
class Ethernet(Fixed):
    """Gigabit Ethernet of a local network; `edgesim link ethernet` has the source of each number."""


@_of_catalogue("starlink")
class Starlink(Fixed):
    """Starlink, satellites in low orbit; `edgesim link starlink` has the source of each number."""


PLUGINS = {
    "lte": Lte,
    "5g": FifthGeneration,
    "wifi": Wifi,
    "nb_iot": NbIot,
    "lora": Lora,
    "ethernet": Ethernet,
    "starlink": Starlink,
}
