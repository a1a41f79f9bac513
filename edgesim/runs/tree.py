"""Edge servers of a run: built from a scenario, started, and stopped."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from edgesim.config.plugin_fields import built
from edgesim.config.sections import ServerTier
from edgesim.core.arrays import Ids
from edgesim.core.errors import ConfigError
from edgesim.core.rng import Key, Purpose
from edgesim.core.view import Setting
from edgesim.engine.dispatcher import JobCounter
from edgesim.engine.edges.edge_server import CloudLearning, EdgeServer
from edgesim.engine.edges.edge_servers import EdgeServers, OrderPrices
from edgesim.engine.edges.moving import Moving
from edgesim.engine.pricing import TrainedModels
from edgesim.engine.session import Edge, Session, dispatcher_of
from edgesim.engine.world import World
from edgesim.execution.hierarchical import CloudLearner, EdgeLearner, LearnerBelow, TierLearner
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
    edges, key = scenario.topology.value.edge_servers, stream(scenario).at(_ASSIGNED)
    everyone = np.zeros(len(setting.samples), dtype=np.int64)
    check_tiers(scenario, tiers_of(scenario, shared.paths, everyone), setting.level)
    edge_of = assigned(scenario, edges, setting.samples, labels, key)
    shared.paths.assign(edge_of)
    check_protocol(scenario, tiers_of(scenario, shared.paths, edge_of)[0], scenario.selection.value, setting.level)
    return edge_of


@dataclass(frozen=True, eq=False)
class TierOfServers:
    """Servers of one tier between devices and server, and who hangs on them."""

    key: str  # of its section in the scenario
    given: ServerTier
    number: int  # 1: edge servers, 2: the servers above them, ...
    first: int  # number of its first server among those of all tiers
    nodes: range  # of the topology
    place: Ids  # of each device, or server of the tier below: the server of this tier that asks it


def tiers_of(scenario: Scenario, paths: TreePaths, edge_of: Ids) -> list[TierOfServers]:
    """Return the tiers of a scenario, from below; none without edge servers.

    `edge_of`: the edge server of each device, kept as it is, so that devices move when it changes.
    """
    found: list[TierOfServers] = []
    given = () if scenario.edges is None else scenario.edges.tiers
    for number, (key, tier) in enumerate(given, start=1):
        from_top = number - 1 - len(given)  # a topology may have nodes that forward between the first two tiers
        nodes, place, first = paths.tier_nodes(from_top if found else 0), edge_of, 0
        if found:
            place = np.array([paths.place_above(node, from_top) for node in found[-1].nodes], dtype=np.int64)
            first = found[-1].first + len(found[-1].nodes)
        found.append(TierOfServers(key, tier, number, first, nodes, place))
    return found


def edge_kinds(scenario: Scenario) -> list[str]:
    """Return the kind of each edge server in the devices table, tier by tier from below."""
    counts = _server_counts(scenario)
    return [f"tier{place + 1}" if place else "edge" for place, count in enumerate(counts) for _ in range(count)]


def edge_power(scenario: Scenario) -> EdgePower | None:
    """Return the power of the edge servers of a scenario, tier by tier from below; None if there are none."""
    if scenario.edges is None:
        return None
    counts, watts = _server_counts(scenario), [(tier.idle, tier.busy) for _, tier in scenario.edges.tiers]
    return EdgePower(*np.repeat(np.array(watts), counts, axis=0).T)


def _server_counts(scenario: Scenario) -> list[int]:
    given = scenario.edges
    return [] if given is None else [scenario.topology.value.edge_servers, *(tier.servers for tier in given.above)]


class Tree:
    """The edge servers of a run, of all tiers, and the session of the server above them."""

    def __init__(self, parts: Assembly, world: World, learner: CloudLearner, tables: Mapping[str, Table]) -> None:
        scenario, setting = parts.scenario, parts.setting
        assert scenario.edges is not None and parts.edge_of is not None and world.shared is not None
        self._given = scenario.edges
        self._key = stream(scenario)
        self._world = world
        self._place = parts.edge_of.copy()
        paths: Any = world.shared.paths
        paths.assign(self._place)
        tiers = tiers_of(scenario, paths, self._place)
        self._edge_servers = len(tiers[0].nodes)
        of_edges, of_others = _learners(scenario, tiers, learner, setting)
        self.sessions: list[Session] = []  # of the servers of all tiers, from below
        self._servers: list[EdgeServer] = []
        self._below: list[EdgeServers] = []  # the servers of each tier
        self._moving = Moving(world, self.sessions, self._place, self._given.handover)
        self._rounds: Rounds | None = None
        trained, orders = TrainedModels(setting), JobCounter(tiers[-1].first + len(tiers[-1].nodes))
        presence = world.devices.new_presence(None)
        asks: dict[str, Any] = {
            "setting": setting, "selection": scenario.selection.value, "dispatcher": dispatcher_of(world, setting),
            "tables": tables, "peers": None, "key": Key(scenario.seed), "below": None,
        }  # fmt: skip
        own: list[Sequence[LearnerBelow]] = [of_edges, *of_others]
        uppers: list[Sequence[CloudLearning]] = [*of_others, [learner]]
        for tier, learners, learners_above in zip(tiers, own, uppers, strict=True):
            servers = []
            above = tiers[tier.number].place if tier.number < len(tiers) else np.zeros(len(tier.nodes), dtype=np.int64)
            for place, node in enumerate(tier.nodes):
                edge = Edge(
                    index=tier.first + place,
                    node=node,
                    members=tier.place == place,
                    trained=trained,
                    presence=presence,
                    failures=restarts(scenario, tier, place),
                    cloud_round=lambda: self.session.round,
                    hand_over=self._moving.hand_over,
                )
                session = Session(world, learner=learners[place], edge=edge, **asks)
                self.sessions.append(session)
                servers.append(
                    EdgeServer(
                        session,
                        learners_above[above[place]],
                        tier.given,
                        tier.key,
                        stopped=lambda: self._rounds is not None and self._rounds.stopped,
                        gives_up=partial(self._give_up, tier.number - 1, place),
                    )
                )
            self._servers += servers
            below = EdgeServers(world, servers, tier.given.energy_per_bit, tier.number, tier.first, orders)
            self._below.append(below)
            presence = below.new_presence(None)
            asks |= {
                "setting": replace(setting, level=np.ones(len(servers), dtype=np.int64)), "below": below,
                "selection": tier.given.asked.value, "dispatcher": OrderPrices(setting, below),
            }  # fmt: skip
        self.session = Session(world, learner=learner, **asks)
        self.session.trained = trained

    def _give_up(self, tier: int, place: int) -> None:
        self._below[tier].give_up(place)

    def start(self, rounds: Rounds) -> list[Any]:
        """Start edge servers and movements; return their processes. `rounds`: of the server."""
        self._rounds = rounds
        processes = [self._world.env.process(server.run()) for server in self._servers]
        if self._given.mobility is not None:
            moves = self._given.mobility.value.moves(self._place.copy(), self._edge_servers, self._key.at(_MOVES))
            processes.append(self._world.env.process(self._moving.run(moves)))
        return processes

    def stop(self) -> None:
        """Stop the jobs of edge servers, from below, and their work at the end of the run."""
        for session in self.sessions:
            session.abort(list(session.running.values()), "stopped")
        for server in self._servers:
            server.settle()


def _learners(
    scenario: Scenario, tiers: Sequence[TierOfServers], cloud: CloudLearner, setting: Setting
) -> tuple[list[EdgeLearner], list[list[TierLearner]]]:
    """Return the learners of edge servers and of the tiers above, which can merge what comes from below, as `cloud`."""
    held = np.bincount(tiers[0].place, weights=setting.samples, minlength=len(tiers[0].nodes)).astype(np.int64)
    protocols = [*(tier.given.protocol.value for tier in tiers), scenario.protocol.value]
    absolute = [protocol.protocol != "buffered" for protocol in protocols]
    of_edges, of_others = [cloud.edge(place, node) for place, node in enumerate(tiers[0].nodes)], []
    for tier in tiers[1:]:
        own = [cloud.above_edges(tier.first + place, node) for place, node in enumerate(tier.nodes)]
        for place, learner in enumerate(own):
            learner.merge_as(absolute[tier.number - 1], held[tier.place == place].tolist())
        held = np.bincount(tier.place, weights=held, minlength=len(own)).astype(np.int64)
        of_others.append(own)
    cloud.merge_as(absolute[-1], held.tolist())
    return of_edges, of_others


def stream(scenario: Scenario) -> Key:
    """Return the random stream of draws about edge servers, apart from the streams of the edge servers themselves."""
    return Key(scenario.seed).at(Purpose.EDGES, _APART)


def restarts(scenario: Scenario, tier: TierOfServers, place: int) -> Failure | None:
    """Return the restarts of a server of a tier; None: it never restarts. Raises ConfigError for other failures."""
    found = []
    for nth, plugin in enumerate(tier.given.failures):
        path = f"{tier.key}.failures.{nth}"
        key = stream(scenario).at(_RESTARTS, tier.first + place, nth)
        failure = built(plugin, path, Failure, plugin.value.build, 1, key, path)
        if type(failure).next_restart_s is Failure.next_restart_s:
            raise ConfigError(f"{path}.name: {plugin.name} has to do with devices; edge servers have server_restart")
        found.append(failure)
    return combine(found) if found else None


def check_tiers(scenario: Scenario, tiers: Sequence[TierOfServers], level: Ids) -> None:
    """Raise ConfigError if selection, protocol or failures of those above edge servers do not fit their number."""
    for tier in tiers:
        level, rule = np.ones(len(tier.nodes), dtype=np.int64), tier.given.asked.value
        _named(f"{tier.key}.asked", "selection", partial(rule.check, level))
        restarts(scenario, tier, 0)
        if tier.number < len(tiers):
            check_protocol(scenario, tiers[tier.number], rule, level)
        else:
            scenario.protocol.value.check(len(level), rule.most(np.arange(len(level)), level, Key(scenario.seed)))


def check_protocol(scenario: Scenario, tier: TierOfServers, rule: Any, level: Ids) -> None:
    """Raise ConfigError if the protocol of a tier does not fit those below one of its servers.

    `rule`: the selection among those below; `level`: of all of them.
    """
    for place in range(len(tier.nodes)):
        members = np.flatnonzero(tier.place == place)
        asked = rule.most(members, level, Key(scenario.seed))
        _named(f"{tier.key}.protocol", "protocol", partial(tier.given.protocol.value.check, len(members), asked))


def _named(path: str, key: str, check: Callable[[], None]) -> None:
    """Call a check; in its error replace `key` by `path`."""
    try:
        check()
    except ConfigError as error:
        raise ConfigError(
            str(error).replace(f"{key}", path, 1) if str(error).startswith(key) else str(error)
        ) from error
