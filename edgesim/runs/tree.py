"""Edge servers of a run: built from a scenario, started, and stopped."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from edgesim.config.plugin_fields import built
from edgesim.core.arrays import Ids
from edgesim.core.errors import ConfigError
from edgesim.core.rng import Key, Purpose
from edgesim.core.view import Setting
from edgesim.engine.edges.edge_server import EdgeServer
from edgesim.engine.edges.edge_servers import EdgeServers, OrderPrices
from edgesim.engine.edges.moving import Moving
from edgesim.engine.pricing import TrainedModels
from edgesim.engine.session import Edge, Session, dispatcher_of
from edgesim.engine.world import World
from edgesim.execution.hierarchical import CloudLearner
from edgesim.records.table import Table
from edgesim.world.contention.network import SharedNetwork
from edgesim.world.energy.ledger import EdgePower
from edgesim.world.failures.base import Failure, combine
from edgesim.world.topology.assignment import assigned
from edgesim.world.topology.base import TreePaths

if TYPE_CHECKING:
    from edgesim.config.scenario import Scenario
    from edgesim.engine.rounds import Rounds
    from edgesim.runs.assembly import Assembly

_ASSIGNED, _RESTARTS, _MOVES = 1, 2, 3  # streams below `stream`; never renumber
_APART = 2**31  # the first of these streams: indices below are edge servers


def edge_servers(
    scenario: Scenario, shared: SharedNetwork | None, setting: Setting, labels: np.ndarray | None
) -> Ids | None:
    """Return the edge server of each device, shape (devices,); None without edge servers.

    `labels`: label counts, shape (devices, classes); None: not known. Raises ConfigError if the scenario does not fit.
    """
    if scenario.edges is None:
        return None
    assert shared is not None and isinstance(shared.paths, TreePaths)
    paths = shared.paths
    check_cloud(scenario)
    edges, key = scenario.topology.value.edge_servers, stream(scenario).at(_ASSIGNED)
    edge_of = assigned(scenario, edges, setting.samples, labels, key)
    paths.assign(edge_of)
    check_edge_protocol(scenario, edge_of, setting.level)
    return edge_of


def edge_power(scenario: Scenario) -> EdgePower | None:
    """Return the power of the edge servers of a scenario; None if there are none."""
    if scenario.edges is None:
        return None
    return EdgePower(scenario.topology.value.edge_servers, scenario.edges.idle, scenario.edges.busy)


class Tree:
    """The edge servers of a run and the session of the server above them."""

    def __init__(self, parts: Assembly, world: World, learner: CloudLearner, tables: Mapping[str, Table]) -> None:
        scenario, setting = parts.scenario, parts.setting
        assert scenario.edges is not None and parts.edge_of is not None and world.shared is not None
        self._given = scenario.edges
        self._key = stream(scenario)
        self._world = world
        count, self._place = scenario.topology.value.edge_servers, parts.edge_of.copy()
        paths: Any = world.shared.paths
        paths.assign(self._place)
        dispatcher, trained = dispatcher_of(world, setting), TrainedModels(setting)
        held: list[int] = np.bincount(self._place, weights=setting.samples, minlength=count).astype(np.int64).tolist()
        learner.set_up(scenario.protocol.value.protocol != "buffered", held)
        self.sessions: list[Session] = []
        presence = world.devices.new_presence(None)
        self._moving = Moving(world, self.sessions, self._place, self._given.handover)
        for index in range(count):
            edge = Edge(
                index=index,
                node=paths.tier_node(index),
                members=self._place == index,
                trained=trained,
                presence=presence,
                failures=restarts(scenario, index),
                cloud_round=lambda: self.session.round,
                hand_over=self._moving.hand_over,
            )
            self.sessions.append(
                Session(
                    world, learner=learner.edge(index, edge.node), setting=setting, tables=tables,
                    selection=scenario.selection.value, peers=None, key=Key(scenario.seed), edge=edge,
                    dispatcher=dispatcher,
                )
            )  # fmt: skip
        self._servers = [
            EdgeServer(
                session,
                learner,
                protocol=self._given.protocol.value,
                rounds=self._given.rounds,
                flops_per_s=self._given.flops_per_s,
                workers=self._given.workers,
                stopped=lambda: self._rounds is not None and self._rounds.stopped,
                gives_up=lambda index: self._below.give_up(index),
            )
            for session in self.sessions
        ]
        self._below = EdgeServers(world, [*self._servers], self._given.energy_per_bit)
        of_edges = replace(setting, level=np.ones(count, dtype=np.int64))
        self.session = Session(
            world, learner=learner, setting=of_edges, tables=tables, selection=self._given.asked.value, peers=None,
            key=Key(scenario.seed), dispatcher=OrderPrices(setting, self._below.counter), below=self._below,
        )  # fmt: skip
        self.session.trained = trained
        self._rounds: Rounds | None = None

    def start(self, rounds: Rounds) -> list[Any]:
        """Start edge servers and movements; return their processes. `rounds`: of the server."""
        self._rounds = rounds
        processes = [self._world.env.process(server.run()) for server in self._servers]
        if self._given.mobility is not None:
            moves = self._given.mobility.value.moves(self._place.copy(), len(self._servers), self._key.at(_MOVES))
            processes.append(self._world.env.process(self._moving.run(moves)))
        return processes

    def stop(self) -> None:
        """Stop the jobs of devices and the work of edge servers at the end of the run."""
        for session in self.sessions:
            session.abort(list(session.running.values()), "stopped")
        for server in self._servers:
            server.settle()

    @property
    def first_row(self) -> int | None:
        """The first row of the jobs table that may still change; None: no row can."""
        rows = [row for each in self.sessions if (row := each.server_buffer.first_row) is not None]
        return min(rows, default=None)


def stream(scenario: Scenario) -> Key:
    """Return the random stream of draws about edge servers, apart from the streams of the edge servers themselves."""
    return Key(scenario.seed).at(Purpose.EDGES, _APART)


def restarts(scenario: Scenario, index: int) -> Failure | None:
    """Return the restarts of an edge server; None: it never restarts. Raises ConfigError for other failures."""
    assert scenario.edges is not None
    found = []
    for place, plugin in enumerate(scenario.edges.failures):
        path = f"edges.failures.{place}"
        key = stream(scenario).at(_RESTARTS, index, place)
        failure = built(plugin, path, Failure, plugin.value.build, 1, key, path)
        if type(failure).next_restart_s is Failure.next_restart_s:
            raise ConfigError(f"{path}.name: {plugin.name} has to do with devices; edge servers have server_restart")
        found.append(failure)
    return combine(found) if found else None


def check_cloud(scenario: Scenario) -> None:
    """Raise ConfigError if selection, protocol or failures do not fit the number of edge servers."""
    given, count = scenario.edges, scenario.topology.value.edge_servers
    assert given is not None
    everybody, level, rule = np.arange(count), np.ones(count, dtype=np.int64), given.asked.value
    _named("edges.asked", "selection", lambda: rule.check(level))
    scenario.protocol.value.check(count, rule.most(everybody, level, Key(scenario.seed)))
    restarts(scenario, 0)


def check_edge_protocol(scenario: Scenario, edge_of: Ids, level: Ids) -> None:
    """Raise ConfigError if the protocol of edge servers does not fit the devices of one of them."""
    given = scenario.edges
    assert given is not None
    for index in range(scenario.topology.value.edge_servers):
        members = np.flatnonzero(edge_of == index)
        asked = scenario.selection.value.most(members, level, Key(scenario.seed))
        _named("edges.protocol", "protocol", partial(given.protocol.value.check, len(members), asked))


def _named(path: str, key: str, check: Callable[[], None]) -> None:
    """Call a check; in its error replace `key` by `path`."""
    try:
        check()
    except ConfigError as error:
        raise ConfigError(
            str(error).replace(f"{key}", path, 1) if str(error).startswith(key) else str(error)
        ) from error
