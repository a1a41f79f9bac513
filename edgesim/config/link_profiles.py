"""Named links: rates, latency, loss and energy of common links, each number with its source and year."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Annotated, Any

from annotated_types import MinLen
from pydantic import BaseModel, ConfigDict, ValidationError

from edgesim.config.device_profiles import Quantity, si_number
from edgesim.config.plugin_fields import check_keys
from edgesim.config.plugins import known_names, meant
from edgesim.config.toml_file import read_toml
from edgesim.config.units import BitsPerSecond, Delay, JoulesPerBit, LossRate, Watts, reason
from edgesim.core.errors import ConfigError
from edgesim.files.reading import quoted

QUANTITIES: Mapping[str, Any] = {
    "up": BitsPerSecond,  # from a device to the server
    "down": BitsPerSecond,  # from the server to a device
    "latency": Delay,  # of a transfer in either direction
    "jitter": Delay,  # standard deviation of the latency
    "loss": LossRate,
    "energy_per_bit": JoulesPerBit,  # spent by the network, not by the device
    "transmit": Watts,  # of the device's radio, added to its idle power
    "receive": Watts,  # of the radio while it receives, added to its idle power
}


class LinkProfile(BaseModel):
    """A link. `quantities` are some of QUANTITIES; `si` has the same keys and plain SI numbers."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    title: Annotated[str, MinLen(1)]
    quantities: Mapping[str, Quantity]

    @property
    def si(self) -> dict[str, float]:
        """The numbers in SI units. Raises ValidationError, which names the quantity, for one that cannot be."""
        return {key: si_number(QUANTITIES[key], key, quantity) for key, quantity in self.quantities.items()}


def names() -> tuple[str, ...]:
    """Return the names of the catalogue's links, sorted."""
    return tuple(sorted(_files()))


def all() -> tuple[LinkProfile, ...]:
    """Return every link of the catalogue, sorted by name."""
    return tuple(find(name) for name in names())


def find(name: str) -> LinkProfile:
    """Return the link of a name. Raises ConfigError that offers the nearest if none fits, or names a bad key."""
    files = _files()
    if name not in files:
        hint = meant(name, files, cutoff=0.4)
        raise ConfigError(f"unknown link {quoted(name)}{hint} ({known_names(sorted(files), 'edgesim list links')})")
    table = read_toml(files[name])
    try:
        check_keys(table, ("title", *QUANTITIES))
        quantities = {key: value for key, value in table.items() if key != "title"}
        profile = LinkProfile.model_validate({"name": name, "title": table.get("title"), "quantities": quantities})
        profile.si  # noqa: B018, evaluated so that impossible numbers are found
    except ValidationError as error:
        where = ".".join(str(key) for key in error.errors()[0]["loc"] if key != "quantities")
        raise ConfigError(f"{name}.toml: {where}: {reason(error)}") from error
    return profile


def _files() -> dict[str, Traversable]:
    files = (file for file in resources.files("edgesim.config.links").iterdir() if file.name.endswith(".toml"))
    return {file.name.removesuffix(".toml"): file for file in files}
