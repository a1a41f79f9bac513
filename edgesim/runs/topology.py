"""Nodes and links of a scenario as tables for a map, without training and without reading the data set."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from edgesim.config.scenario import Scenario
from edgesim.config.validate import parts, refuse
from edgesim.core.rng import Key, Purpose
from edgesim.world.contention.network import shared_network
from edgesim.world.fleet import build_fleet
from edgesim.world.topology.base import SERVER_NODE

_HUB = "switch"  # a node that forwards and is no device


def topology_of(scenario: Scenario) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the nodes of a scenario and the links between them.

    Nodes: node (0 is the server, 1 + i is device i, higher numbers are switches) and kind, the name of a fleet block,
    server or switch. Links: a, b and bps, the slower direction of each at full speed. Among peers a link connects
    devices of which one hears the other, in the first round if the graph is redrawn. Otherwise it is a wire of the
    topology, or without a topology of each device to the server. Raises ConfigError where a scenario does not fit.
    """
    refuse(parts(scenario))
    fleet = build_fleet(scenario)
    if scenario.peers is not None:
        peers, key = scenario.peers.value, Key(scenario.seed).at(Purpose.PEERS)
        graph = peers.graph(np.ones(len(fleet), dtype=bool), 0, key.at(0) if peers.redrawn else key)
        peer_bps = np.minimum(fleet.up_bps[graph.sources], fleet.down_bps[graph.targets])
        pairs = zip((1 + graph.sources).tolist(), (1 + graph.targets).tolist(), strict=True)
        speeds: Mapping[Any, float] = dict(zip(pairs, peer_bps.tolist(), strict=True))
    elif (shared := shared_network(scenario, fleet)) is not None:
        speeds = shared.paths.capacity_bps
    else:
        speeds = {(SERVER_NODE, 1 + i): bps for i, bps in enumerate(np.minimum(fleet.up_bps, fleet.down_bps).tolist())}
    slower: dict[tuple[int, int], float] = {}
    for (a, b), bps in ((tuple(sorted(link)), speeds[link]) for link in speeds):
        slower[a, b] = min(bps, slower.get((a, b), bps))
    links = pd.DataFrame([(a, b, bps) for (a, b), bps in slower.items()], columns=["a", "b", "bps"])
    kinds = [fleet.kinds[block] for block in fleet.kind.tolist()]
    last = int(links[["a", "b"]].to_numpy().max(initial=len(kinds)))
    forwarding = [(node, _HUB) for node in range(len(kinds) + 1, last + 1)]
    server = [(SERVER_NODE, "server")] if scenario.peers is None else []
    return pd.DataFrame([*server, *enumerate(kinds, 1), *forwarding], columns=["node", "kind"]), links
