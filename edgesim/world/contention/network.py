"""The shared links of a scenario: the devices' access, the topology beyond it, and the discipline that they follow."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf

import numpy as np

from edgesim.config.plugin_fields import built
from edgesim.config.scenario import Scenario
from edgesim.core.rng import Key, Purpose
from edgesim.core.selection import CellState
from edgesim.world.contention.base import SharedLinks
from edgesim.world.contention.fair import FairLinks
from edgesim.world.fleet import Fleet
from edgesim.world.spectrum.cells import Air, CellLinks, Radios
from edgesim.world.topology.base import SERVER_NODE, Access, Hop, Paths, Tier, TreePaths, Wire


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

    def cell_of(self, ids: np.ndarray, transmit_w: np.ndarray) -> CellState | None:
        """Return the radios of some devices as they are now, None without cells. `transmit_w`: of all devices."""
        if not isinstance(self.links, CellLinks):
            return None
        up = [self.paths.path(1 + device, SERVER_NODE)[0] for device in ids.tolist()]
        down = [(base, device) for device, base in up]
        base = np.array([link[1] for link in up], dtype=np.int64)
        snr_hz = self.links.next_snr_hz(up, True), self.links.next_snr_hz(down, False)
        return CellState(self.links.band, base, *snr_hz, transmit_w[ids])


def shared_network(scenario: Scenario, fleet: Fleet) -> SharedNetwork | None:
    """Return the shared links of a scenario, or None if every device has links of its own.

    Raises ConfigError if a device cannot reach the server.
    """
    discipline = scenario.disciplines[0]
    if discipline is None:
        return None
    access = Access(fleet.up_bps, fleet.down_bps, fleet.latency_s)
    key = Key(scenario.seed).at(Purpose.CHANNEL)
    paths = built(scenario.topology, "topology", Paths, scenario.topology.value.paths, access, key)
    if scenario.edges is not None and scenario.edges.above and isinstance(paths, TreePaths):
        paths = paths.with_tiers(
            [Tier(each.servers, Wire(each.up, each.down, each.latency)) for each in scenario.edges.above]
        )
    links = built(discipline, "network.discipline", SharedLinks, discipline.value.links, paths.capacity_bps)
    return SharedNetwork(_in_cells(links, fleet, Key(scenario.seed).at(Purpose.CELL)), paths)


def _in_cells(links: SharedLinks, fleet: Fleet, key: Key) -> SharedLinks:
    """Return links on which the devices share the hertz of cells, if they do; `key`: of fading."""
    airs = [block.links.air for block in fleet.blocks if block.links.air is not None]
    if not airs:
        return links
    assert isinstance(links, FairLinks)  # as cells have no other discipline
    columns = [
        (a.up_snr_hz, a.down_snr_hz, a.weights, a.power_w, a.efficiency, a.target_hz, a.least_fading, a.outage)
        + (a.drawn_w,)
        for a in airs
    ]
    air = Air(airs[0].spectrum, *(np.concatenate(column) for column in zip(*columns, strict=True)))
    # where the energy model has a power of its own, the radio draws that, whatever it radiates
    links_w = [np.zeros(b.count) if b.links.transmit_w is None else b.links.transmit_w for b in fleet.blocks]
    own = fleet.transmit_w != np.concatenate(links_w)
    air = replace(air, drawn_w=np.where(own, 0.0, air.drawn_w))
    return CellLinks(links, Radios(air, fleet.transmit_w, fleet.receive_w, key))
