"""Topologies: links between nodes, their speeds, and the path from one node to another.

Node 0 is the server and node 1 + i is device i. Nodes that only forward (hub, edge servers) have higher numbers. A link
is the pair of its nodes in the direction of the transfer: (3, 0) carries data of node 3 straight to the server.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeAlias

from pydantic import TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from edgesim.config.units import BitsPerSecondOrInf, Delay, reason
from edgesim.core.arrays import Arr, Ids
from edgesim.core.errors import ConfigError
from edgesim.core.limits import CountOrZero
from edgesim.core.rng import Key
from edgesim.files.reading import csv_records, in_short, quoted

Hop: TypeAlias = tuple[int, int]  # from node, to node

SERVER_NODE = 0
_TREES_KEPT = 64  # each as large as the graph; those of the server and of a few nodes serve most questions
_DRAWS = 100  # a random regular graph of degree 3 or more is connected almost surely, one of degree 2 now and then


class Access(NamedTuple):
    """The connection of every device, shape (devices,) each: what it sends, what it receives, the delay of one way."""

    up_bps: Arr
    down_bps: Arr
    latency_s: Arr


class Wire(NamedTuple):
    """The connection of one node, in both directions as the node sees them."""

    up_bps: float = math.inf
    down_bps: float = math.inf
    latency_s: float = 0.0


class Tier(NamedTuple):
    """Edge servers alike, and the connection of each to the tier above."""

    servers: int
    wire: Wire


_ENDLESS = Wire()


class Paths(ABC):
    """The links of a network and the way between two of its nodes."""

    capacity_bps: Mapping[Any, float]  # bits per second of every link; one of inf delays nobody

    @abstractmethod
    def path(self, source: int, target: int) -> tuple[Hop, ...]:
        """Return the links of the way with the fewest. Raises ConfigError if there is none."""

    @abstractmethod
    def latency_s(self, source: int, target: int) -> float:
        """Return the seconds of delay that the links of this way add up to."""


class TopologyPart(ABC):
    """A topology as a scenario names it: a frozen dataclass."""

    is_tree: ClassVar[bool] = False  # True: each device hangs on one node, and `paths` gives TreePaths
    has_edge_servers: ClassVar[bool] = False  # True: a tree, and `edge_servers` is their number

    @property
    def only_access(self) -> bool:
        """True if the devices' own access is the only limit."""
        return False

    @abstractmethod
    def paths(self, access: Access, key: Key) -> Paths:
        """Return the links and paths between server and devices. Raises ConfigError if there is no such topology."""


def no_path(key: str, source: int, target: int, devices: int) -> ConfigError:
    """Return the error that says, with the key of the scenario, which two nodes have no path."""
    ends = (f"{_name(source, devices)} (node {source})", f"{_name(target, devices)} (node {target})")
    return ConfigError(f"{key}: no path of links leads from {ends[0]} to {ends[1]}")


def _name(node: int, devices: int) -> str:
    if node == SERVER_NODE:
        return "the server"
    return f"device {node - 1}" if 0 < node <= devices else "a node that is no device"


class TreePaths(Paths):
    """Devices below tiers of edge servers below one hub, to which the server is wired too; without tiers, a star.

    Neighbours share a parent: child j of m hangs on parent j * n // m of n. All is computed when asked for, so that a
    million devices that do not talk cost nothing. The hub is node 1 + devices; the tiers follow, from below.
    """

    def __init__(
        self, devices: Access, server: Wire = _ENDLESS, tiers: Sequence[Tier] = (), key: str = "topology"
    ) -> None:
        self._devices = devices
        self._server = server
        self._tiers = tiers
        self._key = key
        self._count = len(devices.up_bps)
        self.hub = self._count + 1
        self._levels = [(1, self._count)]  # first node and number of nodes, from the devices upwards
        self.nodes = self.hub + 1
        for tier in tiers:
            self._levels.append((self.nodes, tier.servers))
            self.nodes += tier.servers
        self._levels.append((self.hub, 1))
        self.capacity_bps = _TreeSpeeds(self)
        self._place: Ids | None = None  # of each device among the nodes above it; None: neighbours share one

    def assign(self, place: Ids) -> None:
        """Hang each device on one of the nodes above the devices, by its place among them, shape (devices,).

        The array is read whenever a path is asked for, so that devices move when it changes.
        """
        self._place = place

    def with_tiers(self, tiers: Sequence[Tier]) -> TreePaths:
        """Return the same tree with further tiers between its highest one and the hub, from below."""
        return TreePaths(self._devices, self._server, [*self._tiers, *tiers], self._key)

    def tier_nodes(self, tier: int) -> range:
        """Return the nodes of a tier of edge servers; 0: the lowest, -1: the highest."""
        first, count = self._levels[1:-1][tier]
        return range(first, first + count)

    def place_above(self, node: int, tier: int) -> int:
        """Return the server of a tier that a node hangs on, directly or over the nodes between."""
        above = self.tier_nodes(tier)
        return above.index(next(each for each in self._ancestry(node) if each in above))

    def path(self, source: int, target: int) -> tuple[Hop, ...]:
        """Return the links up to the first common parent and down again. Raises ConfigError for an unknown node."""
        if not (0 <= source < self.nodes and 0 <= target < self.nodes):
            raise no_path(self._key, source, target, self._count)
        up, down = self._ancestry(source), self._ancestry(target)
        while len(up) > 1 and len(down) > 1 and up[-2] == down[-2]:
            del up[-1], down[-1]
        return tuple(pairwise(up + down[-2::-1]))

    def latency_s(self, source: int, target: int) -> float:
        """Return the seconds of delay that the links of a path add up to."""
        # the lower node of a link is the one whose parent is the other
        return sum(self.wire(a if self.parent(a) == b else b).latency_s for a, b in self.path(source, target))

    def parent(self, node: int) -> int | None:
        """Return the node above; None above the hub."""
        if node == self.hub:
            return None
        if node == SERVER_NODE:
            return self.hub
        level = self._level(node)
        (first, count), (above, parents) = self._levels[level : level + 2]
        if level == 0 and self._place is not None:
            return above + int(self._place[node - 1])
        return above + (node - first) * parents // count

    def hung(self, node: int, above: int) -> bool:
        """Return True if a node is a device that may hang, or have hung, on the edge server `above`."""
        return self._place is not None and 0 < node <= self._count and above in self.tier_nodes(0)

    def wire(self, node: int) -> Wire:
        """Return the connection of a node to its parent."""
        if node == SERVER_NODE:
            return self._server
        level = self._level(node)
        if level > 0:
            return self._tiers[level - 1].wire
        return Wire(*(float(column[node - 1]) for column in self._devices))

    def _level(self, node: int) -> int:
        return next(i for i, (first, count) in enumerate(self._levels) if first <= node < first + count)

    def _ancestry(self, node: int) -> list[int]:
        nodes = [node]
        while (above := self.parent(nodes[-1])) is not None:
            nodes.append(above)
        return nodes


class _TreeSpeeds(Mapping[Any, float]):
    """Bits per second of the links of a tree, computed when asked for.

    A device that has moved keeps its link to the edge server that it hung on, for the transfers that still cross it.
    """

    def __init__(self, tree: TreePaths) -> None:
        self._tree = tree

    def __getitem__(self, link: Any) -> float:
        a, b = link
        if not (0 <= a < self._tree.nodes and 0 <= b < self._tree.nodes):
            raise KeyError(link)
        if self._tree.parent(a) == b or self._tree.hung(a, b):
            return self._tree.wire(a).up_bps
        if self._tree.parent(b) == a or self._tree.hung(b, a):
            return self._tree.wire(b).down_bps
        raise KeyError(link)

    def __len__(self) -> int:
        return 2 * (self._tree.nodes - 1)

    def __iter__(self) -> Iterator[Hop]:
        for node in range(self._tree.nodes):
            above = self._tree.parent(node)
            if above is not None:
                yield (node, above)
                yield (above, node)


class GraphPaths(Paths):
    """The paths of a `networkx.DiGraph` whose edges bear `bps` and `latency_s`.

    Of several shortest ways the one is taken that breadth-first search from the lower of the two nodes finds first
    when it visits neighbours in ascending order.
    """

    def __init__(self, graph: Any, devices: int, key: str = "topology") -> None:
        self._graph = graph
        self._count = devices
        self._key = key
        self._known: dict[Hop, tuple[Hop, ...]] = {}
        self._tree = lru_cache(_TREES_KEPT)(self._search)
        self.capacity_bps = {(a, b): bps for a, b, bps in graph.edges(data="bps")}

    def path(self, source: int, target: int) -> tuple[Hop, ...]:
        """Return the links of the way with the fewest. Raises ConfigError if there is none."""
        if (source, target) not in self._known:
            self._known[source, target] = self._find(source, target)
        return self._known[source, target]

    def latency_s(self, source: int, target: int) -> float:
        """Return the seconds of delay that the links of a path add up to."""
        return float(sum(self._graph.edges[hop]["latency_s"] for hop in self.path(source, target)))

    def _find(self, source: int, target: int) -> tuple[Hop, ...]:
        if self._graph.has_edge(source, target):  # gossip asks for nothing else and needs no search
            return ((source, target),)
        backward = target < source
        root, end = min(source, target), max(source, target)
        came_from = self._tree(root, backward) if root in self._graph and end in self._graph else {}
        nodes = [end]
        while nodes[-1] != root:
            if nodes[-1] not in came_from:
                raise no_path(self._key, source, target, self._count)
            nodes.append(came_from[nodes[-1]])
        return tuple(pairwise(nodes if backward else nodes[::-1]))

    def _search(self, root: int, backward: bool) -> Mapping[int, int]:
        """Return of every node that a search from `root` reaches the node it was reached from."""
        import networkx

        edges = networkx.bfs_edges(self._graph, root, reverse=backward, sort_neighbors=sorted)
        return {found: before for before, found in edges}


def ring(devices: Access, server: Wire | None = None, key: str = "topology") -> GraphPaths:
    """Return devices in a circle in the order of their ids, with the server between last and first unless it is None.

    A link is as fast as its sender sends and its receiver receives, and has the delays of both.
    """
    import networkx

    members = len(devices.up_bps) + (server is not None)
    return _among(networkx.cycle_graph(members).edges, devices, server, key)


def random_regular(
    devices: Access, degree: int, stream: Key, server: Wire | None = None, key: str = "topology"
) -> GraphPaths:
    """Return a random connected graph in which every node has `degree` neighbours; links as in `ring`.

    The server is one of the nodes unless it is None. Raises ConfigError if there is no such graph.
    """
    import networkx

    members = len(devices.up_bps) + (server is not None)
    if not 0 < degree < members or degree * members % 2:
        allowed = f"must be above 0, below the number of nodes ({members}) and, if that is odd, even"
        raise ConfigError(f"{key}.degree: {allowed}, got {degree}")
    for attempt in range(_DRAWS):
        drawn = networkx.random_regular_graph(degree, members, seed=stream.at(attempt).numpy())
        if networkx.is_connected(drawn):
            return _among(drawn.edges, devices, server, key)
    raise ConfigError(f"{key}.degree: no connected graph of {members} nodes in {_DRAWS} draws, got {degree}")


def _among(pairs: Iterable[Hop], devices: Access, server: Wire | None, key: str) -> GraphPaths:
    """Return paths over direct links between members: the server, if there is one, then the devices."""
    import networkx

    columns = [column.tolist() for column in devices]
    wires = ([] if server is None else [server]) + [Wire(*row) for row in zip(*columns, strict=True)]
    first = SERVER_NODE if server is not None else SERVER_NODE + 1
    graph: Any = networkx.DiGraph()
    for a, b in ((a, b) for pair in pairs for a, b in (pair, pair[::-1]) if a != b):
        bps = min(wires[a].up_bps, wires[b].down_bps)
        graph.add_edge(first + a, first + b, bps=bps, latency_s=wires[a].latency_s + wires[b].latency_s)
    return GraphPaths(graph, len(columns[0]), key)


@dataclass(frozen=True)
class _Edge:
    """A line of a file of links: two nodes, the speed each way and the delay of one way."""

    a: CountOrZero
    b: CountOrZero
    bps_ab: BitsPerSecondOrInf
    bps_ba: BitsPerSecondOrInf
    latency_s: Delay


_COLUMNS = tuple(_Edge.__dataclass_fields__)
_EDGE = TypeAdapter(_Edge)


def read_graph(file: Path, devices: int, key: str = "topology") -> GraphPaths:
    """Return the paths of a CSV file with the header a,b,bps_ab,bps_ba,latency_s: a line for two wired nodes.

    Speeds and delays are in SI or with their unit ("20 Mbit/s"). Raises ConfigError with file and line.
    """
    import networkx

    graph: Any = networkx.DiGraph()
    header, records = csv_records(file, ConfigError)
    if tuple(header) != _COLUMNS:
        found = quoted(",".join(header))
        raise ConfigError(f"{file}, line 1: the header must be {','.join(_COLUMNS)}, got {found}")
    for line, record in records:
        try:
            edge = _EDGE.validate_python({name: _number(text) for name, text in record.items()})
        except ValidationError as error:
            fault = in_short(reason(error))
            raise ConfigError(f"{file}, line {line}: {error.errors()[0]['loc'][0]} {fault}") from error
        if edge.a == edge.b or graph.has_edge(edge.a, edge.b):
            fault = "are one node" if edge.a == edge.b else "are wired already"
            raise ConfigError(f"{file}, line {line}: a and b {fault}, got {edge.a} and {edge.b}")
        graph.add_edge(edge.a, edge.b, bps=edge.bps_ab, latency_s=edge.latency_s)
        graph.add_edge(edge.b, edge.a, bps=edge.bps_ba, latency_s=edge.latency_s)
    return GraphPaths(graph, devices, key)


def _number(text: str) -> float | str:
    """Return a number without a unit as a float, other texts unchanged."""
    try:
        return float(text)
    except ValueError:
        return text
