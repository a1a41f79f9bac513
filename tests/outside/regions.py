"""A topology of its own: a tree of three tiers, devices below edge servers below regions below the server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from edgesim.config.units import BitsPerSecondOrInf, Delay
from edgesim.core.errors import ConfigError
from edgesim.core.rng import Key
from edgesim.world.topology.base import Access, Paths, Tier, TopologyPart, TreePaths, Wire


@dataclass(frozen=True, kw_only=True)
class Regions(TopologyPart):
    """Neighbouring edge servers share the link of their region towards the server."""

    has_edge_servers: ClassVar[bool] = True
    regions: int
    edge_servers: int
    region_rate: BitsPerSecondOrInf = float("inf")  # of a region's link, in each direction
    region_latency: Delay = 0.0

    def paths(self, access: Access, key: Key) -> Paths:
        """Return the links and paths of this topology. Raises ConfigError if a region has no edge server."""
        if not 1 <= self.regions <= self.edge_servers:
            raise ConfigError(
                f"topology.regions: must be from 1 to the {self.edge_servers} edge servers, got {self.regions}"
            )
        region = Wire(self.region_rate, self.region_rate, self.region_latency)
        return TreePaths(access, tiers=[Tier(self.edge_servers, Wire()), Tier(self.regions, region)])
