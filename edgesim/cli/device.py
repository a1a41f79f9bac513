"""The views of the device catalogue: one row a device, or every number of one device with its source."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgesim.cli.show import print_json, print_table
from edgesim.config import device_profiles
from edgesim.config.device_profiles import Profile, Quantity
from edgesim.reports.format import text

_ASKED = 'A block has a battery if it asks for one: battery = "rechargeable", or { charge = "5 W", windows = [...] }.'
_SHOWN = ("memory", "idle", "busy", "battery", "up", "down")


def print_devices(as_json: bool = False) -> None:
    """Print the catalogue: name, speed, memory, powers, battery and link of every device."""
    found = device_profiles.all()
    if as_json:
        print_json({profile.name: describe(profile) for profile in found})
        return
    rows = []
    for profile in found:
        shown = {key: profile.quantities[key].text if key in profile.quantities else None for key in _SHOWN}
        speed = f"{text('flops', profile.flops_per_s)}/s"
        rows.append({"name": profile.name, "title": profile.title, "speed": speed, **shown})
    print_table(rows, {"name": "device", "title": "what it is", "speed": "attained", **{key: key for key in _SHOWN}})
    print(_ASKED)


def print_device(name: str, as_json: bool = False) -> None:
    """Print every number of one device, by its name or the path of a profile file.

    Raises ConfigError if there is none.
    """
    profile = device_profiles.find(name)
    print_quantities(profile.name, describe(profile), as_json)
    if "battery" in profile.quantities and not as_json:
        print(_ASKED)


def print_quantities(name: str, described: Mapping[str, Any], as_json: bool) -> None:
    """Print every number of an entry of a catalogue, with its source; `described`: the entry as plain values."""
    if as_json:
        print_json(described)
        return
    rows = [{"quantity": key, **row} for key, row in described["quantities"].items()]
    headings = ("quantity", "value", "year", "source", "estimate")
    print_table(rows, {heading: heading for heading in headings}, f"{name}: {described['title']}")


def describe(profile: Profile) -> dict[str, Any]:
    """Return a profile as plain values: title, and by quantity its value with unit, SI number, source, year, estimate.

    `estimate` says what the number was derived from; it is empty for a number that the source gives.
    """
    quantities = rows_of(profile.quantities, profile.si)
    return {"title": profile.title, "flops_per_s": profile.flops_per_s, "quantities": quantities}


def rows_of(quantities: Mapping[str, Quantity], si: Mapping[str, float]) -> dict[str, dict[str, Any]]:
    """Return quantities of a catalogue as plain values, by their names."""
    return {
        key: {
            "value": str(quantity.text),
            "si": si[key],
            "year": str(quantity.year),
            "source": quantity.source,
            "estimate": quantity.derived,
        }
        for key, quantity in quantities.items()
    }
