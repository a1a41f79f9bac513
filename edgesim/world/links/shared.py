"""Links that transfers share; their rates change whenever one starts or ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from edgesim.config.plugin_fields import Chosen, PartOf
from edgesim.config.units import BitsPerSecond, PerDevice, draw
from edgesim.core.rng import Key
from edgesim.world.links.analytic import Impaired
from edgesim.world.links.base import Links, SteadyLinks

_FAIR: Any = "fair"  # is read like a value that a scenario gives


@dataclass(frozen=True, kw_only=True)
class Shared(Impaired):
    """Each device's own access rates and latency; the links beyond, the server's among them, are the topology's.

    `discipline`: how transfers share links, the same for all devices; "fair" shares every link max-min fairly over
    whole paths, "fifo" serves transfers in the order in which they came. A packet that gets lost on a device's access
    is sent again over the whole path.
    """

    up: PerDevice[BitsPerSecond]  # rate of a device's access, from it
    down: PerDevice[BitsPerSecond]  # rate of a device's access, towards it
    discipline: Annotated[Chosen, PartOf("discipline"), Field(validate_default=True)] = _FAIR

    def build(self, n: int, key: Key, path: str) -> Links:
        """Return the devices' access links, drawn as `fixed` draws them."""
        return SteadyLinks(
            up_bps=draw(self.up, n, key.at(0).numpy(), f"{path}.up"),
            down_bps=draw(self.down, n, key.at(1).numpy(), f"{path}.down"),
            **self.impairments(n, key, path),
        )


PLUGINS = {"shared": Shared}
