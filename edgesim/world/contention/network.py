"""The shared links of a scenario: the devices' access, the topology beyond it, and the discipline that they follow."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from edgesim.config.plugin_fields import built
from edgesim.config.scenario import Scenario
from edgesim.core.errors import ConfigError
from edgesim.core.rng import Key, Purpose
from edgesim.world.contention.base import SharedLinks
from edgesim.world.fleet import Fleet
from edgesim.world.topology.base import Access, Hop, Paths

_PATHS = ("capacity_bps", "path", "latency_s")  # what a part of the kind "topology" gives
_OFFERS = ("admit", "drop", "next_done", "finish", "moved_bytes")  # what the event loop asks of shared links


@dataclass(frozen=True)
class SharedNetwork:
    """The links that jobs share, and who reaches whom over which of them."""

    links: SharedLinks
    paths: Paths

    def limits(self, source: int, target: int) -> tuple[Hop, ...]:
        """Return the links of a path that can delay a transfer: those of finite speed."""
        return tuple(hop for hop in self.paths.path(source, target) if self.paths.capacity_bps[hop] < inf)

    def alone_bps(self, source: int, target: int) -> float:
        """Return the rate of a transfer that has its path to itself."""
        return min((self.paths.capacity_bps[hop] for hop in self.limits(source, target)), default=inf)


def shared_network(scenario: Scenario, fleet: Fleet) -> SharedNetwork | None:
    """Return the shared links of a scenario, or None if every device has links of its own.

    Raises ConfigError if the fleet mixes both, if the topology has links that nobody would use, or if a device
    cannot reach the server.
    """
    networks = [block.network or scenario.network for block in scenario.fleet]
    discipline = getattr(networks[0].value, "discipline", None)
    if any(getattr(network.value, "discipline", None) != discipline for network in networks):
        raise ConfigError("fleet.network: blocks must all have shared links of one discipline, or none")
    if discipline is None:
        if not scenario.topology.value.only_access:
            raise ConfigError("topology.name: links beyond the devices' own need network.name = 'shared'")
        return None
    access = Access(fleet.up_bps, fleet.down_bps, fleet.latency_s)
    key = Key(scenario.seed).at(Purpose.CHANNEL)
    paths: Paths = built(scenario.topology, "topology", _PATHS, access, key, by="paths")
    links = built(discipline, "network.discipline", _OFFERS, paths.capacity_bps, by="links")
    return SharedNetwork(links, paths)
