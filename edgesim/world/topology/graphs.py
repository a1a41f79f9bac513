"""Topologies beyond the devices' own access. Devices with links of their own see only the star."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from edgesim.config.toml_file import ScenarioPath
from edgesim.config.units import BitsPerSecondOrInf, Delay
from edgesim.core.limits import Count
from edgesim.core.rng import Key
from edgesim.world.topology.base import (
    SERVER_NODE,
    Access,
    Paths,
    Tier,
    TopologyPart,
    TreePaths,
    Wire,
    random_regular,
    read_graph,
    ring,
)

_ENDLESS = float("inf")


@dataclass(frozen=True, kw_only=True)
class _WithServer(TopologyPart):
    """The server's own link: all that it sends (`server_up`) and receives (`server_down`) goes over it."""

    server_up: BitsPerSecondOrInf = _ENDLESS
    server_down: BitsPerSecondOrInf = _ENDLESS
    server_latency: Delay = 0.0  # latency of the server's own link, in each direction

    def wire(self) -> Wire:
        """Return the server's connection."""
        return Wire(self.server_up, self.server_down, self.server_latency)


@dataclass(frozen=True, kw_only=True)
class Star(_WithServer):
    """Every device reaches the server over its own access and the server's link."""

    is_tree: ClassVar[bool] = True

    @property
    def only_access(self) -> bool:
        """True if the devices' own access is the only limit."""
        return self.wire() == Wire()

    def paths(self, access: Access, key: Key) -> Paths:
        """Return the links and paths of this topology."""
        return TreePaths(access, self.wire())


@dataclass(frozen=True, kw_only=True)
class TreeTopology(_WithServer):
    """Devices hang on edge servers, neighbours together, and each edge server has a link towards the server."""

    is_tree: ClassVar[bool] = True
    has_edge_servers: ClassVar[bool] = True
    edge_servers: Count  # number of edge servers
    edge_up: BitsPerSecondOrInf = _ENDLESS  # rate of an edge server's link, towards the server
    edge_down: BitsPerSecondOrInf = _ENDLESS  # rate of an edge server's link, from the server
    edge_latency: Delay = 0.0  # latency of an edge server's link, in each direction

    def paths(self, access: Access, key: Key) -> Paths:
        """Return the links and paths of this topology."""
        tier = Tier(self.edge_servers, Wire(self.edge_up, self.edge_down, self.edge_latency))
        return TreePaths(access, self.wire(), [tier])


@dataclass(frozen=True, kw_only=True)
class RingTopology(_WithServer):
    """Devices and server in a circle. Transfers to distant nodes cross the links of the nodes between."""

    def paths(self, access: Access, key: Key) -> Paths:
        """Return the links and paths of this topology."""
        return ring(access, self.wire())


@dataclass(frozen=True, kw_only=True)
class RandomRegular(_WithServer):
    """A random connected graph of devices and server in which every node has `degree` neighbours."""

    degree: Count

    def paths(self, access: Access, key: Key) -> Paths:
        """Return the links and paths of this topology. Raises ConfigError if there is no such graph."""
        return random_regular(access, self.degree, key, self.wire())


@dataclass(frozen=True, kw_only=True)
class FileTopology(TopologyPart):
    """A CSV file of links, columns a,b,bps_ab,bps_ba,latency_s; node 0 is the server and 1 + i device i.

    These are all links that there are: rates and latency of the devices' `network` are told to methods, no more.
    """

    file: ScenarioPath  # the CSV file

    def paths(self, access: Access, key: Key) -> Paths:
        """Return the links and paths of this topology.

        Raises ConfigError with file and line, or if a device cannot reach the server or be reached.
        """
        paths = read_graph(self.file, len(access.up_bps))
        for node in range(1, len(access.up_bps) + 1):
            paths.path(SERVER_NODE, node)
            paths.path(node, SERVER_NODE)
        return paths


PLUGINS = {
    "star": Star,
    "tree": TreeTopology,
    "ring": RingTopology,
    "random_regular": RandomRegular,
    "file": FileTopology,
}
