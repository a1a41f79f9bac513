"""Build the parts of a run from its scenario: fleet, data, model, price list, method and setting. Train nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from edgesim.config.plugin_fields import built
from edgesim.config.scenario import Scenario
from edgesim.core.arrays import Ids
from edgesim.core.attack import Attack
from edgesim.core.errors import ConfigError
from edgesim.core.method import Method
from edgesim.core.peer_graph import PeerGraph
from edgesim.core.price_list import CostProfile
from edgesim.core.rng import Key, Purpose
from edgesim.core.view import Setting
from edgesim.engine.limit_checks import check_finite
from edgesim.learning.data.dataset import Dataset
from edgesim.learning.data.split import Split
from edgesim.learning.server_rows import ServerRows
from edgesim.learning.train.torch_settings import plain_where_loaded
from edgesim.methods.encoded import Encoded
from edgesim.methods.optimised import Optimised
from edgesim.runs.network import (
    Network,
    charged_profile,
    check_networks,
    models_of,
    network_of,
    networks_of_devices,
    together,
)
from edgesim.runs.objectives import check_objective, with_fitting_labels, written_metrics
from edgesim.runs.outages import check_outages, check_prices
from edgesim.runs.partitioning import counts_of, for_others, label_counts, members_of, partition, server_set_of
from edgesim.runs.selection_checks import asked_at_most, check_selection, how_asked, wants_of
from edgesim.runs.tree import edge_servers, protocol_of_devices
from edgesim.world.availability.base import Availability, all_of
from edgesim.world.contention.network import SharedNetwork, shared_network
from edgesim.world.failures.base import Failure, combine
from edgesim.world.fleet import Fleet, build_fleet
from edgesim.world.prices.market import Market, market_of

if TYPE_CHECKING:
    from torch import nn

    from edgesim.learning.server import TorchServerTools
    from edgesim.learning.train.trainer import Trainer


def method_of_server(scenario: Scenario) -> Method:
    """Return the scenario's method, wrapped in its encoding of updates and its server optimiser if it has them."""
    method: Method = scenario.method.value
    if scenario.encoding.up.of_update:
        method = Encoded(method=method, encoding=scenario.encoding.up)
    chosen = scenario.server_optimizer
    if chosen is None or chosen.value.is_identity:
        return method
    return Optimised(method=method, optimizer=chosen.value)


def check_server_step(scenario: Scenario) -> None:
    """Raise ConfigError if server optimiser or encoding of updates do not fit method, edge servers or local steps."""
    method, chosen, encoding = scenario.method, scenario.server_optimizer, scenario.encoding
    if chosen is not None:
        why = ""
        if method.value.needs.peers is not None:
            why = f"{method.name} has no server, its devices exchange models among themselves"
        elif scenario.edges is not None:
            why = "the server above edge servers takes the mean of their models and nothing else"
        elif method.value.no_server_optimizer:
            why = f"{method.name} {method.value.no_server_optimizer}"
        if why:
            raise ConfigError(f"server_optimizer: {why}; leave it out, found {chosen.name}")
    if encoding.down.of_update:
        raise ConfigError("encoding.down: the server sends whole models, an update goes up alone; use encoding.up")
    if encoding.up.of_update:
        why = ""
        if method.value.needs.peers is not None:
            why = f"{method.name} has no server, its devices exchange whole models among themselves"
        elif scenario.edges is not None:
            why = "edge servers send whole models to the server above them"
        elif method.value.no_update_encoding:
            why = f"{method.name} {method.value.no_update_encoding}"
        if why:
            raise ConfigError(f"encoding.up: {why}; it can encode values, not updates")
    if encoding.up.momentum:  # of updates: the local steps that make them must have none
        training = scenario.training
        why = f"as encoding.up.momentum, {encoding.up.momentum:g}, adds up steps that have none; found"
        if training.optimizer != "sgd":
            raise ConfigError(f"training.optimizer: must be 'sgd', {why} '{training.optimizer}'")
        if training.momentum:
            raise ConfigError(f"training.momentum: must be 0, {why} {training.momentum:g}")


Load: TypeAlias = Callable[[Scenario], Dataset | None]
Build: TypeAlias = Callable[[Scenario, Dataset | None], Network]

_OF_DATA = ("kind", "classes", "input_shape", "labels")  # attributes that the result of `load` must have


@dataclass(frozen=True)
class Assembly:
    """The parts of a run."""

    scenario: Scenario
    fleet: Fleet
    data: Dataset | None
    split: Split | None
    network: Network
    setting: Setting
    shared: SharedNetwork | None  # links that jobs share; None: each device has links of its own
    availability: Availability
    failures: Failure | None
    server_set: ServerRows | None  # samples of the method's server; None: it has none
    market: Market | None  # prices of energy, traffic and time; None: the scenario has none
    edge_of: Ids | None = None  # edge server of each device, shape (devices,); None: no edge servers
    of_all: Scenario | None = None  # the scenario with all sessions; None: this training is the only one
    named_files: str | None = None  # digest of the files that `of_all` names, taken before they were read

    @property
    def session_word(self) -> int:
        """Word of the session in keys of random streams; 0 without sessions."""
        return self.scenario.session[0].word if self.scenario.session else 0

    @property
    def session_key(self) -> Key:
        """The random streams of the training."""
        return session_key(self.scenario)

    @property
    def attacks(self) -> Mapping[int, Attack]:
        """Attack of each malicious device, by device."""
        return {} if self.failures is None else self.failures.attacks()

    @property
    def module(self) -> nn.Module:
        """The network with its starting weights, built at the first access."""
        return self.network.module

    def make_trainer(self, device: str) -> Trainer:
        """Return a trainer with its network on a torch device such as "cpu"."""
        import torch

        from edgesim.learning.train.context import PublicRows
        from edgesim.learning.train.trainer import Trainer

        if self.data is None or self.split is None:
            raise ConfigError("data: training needs a data set; without one use backend = { name = 'null' }")
        rows, held = for_others(self.server_set, "test", len(self.data.labels("test"))), self.server_set
        public = PublicRows(held.wanted.split, torch.from_numpy(held.rows)) if held and held.wanted.public else None
        return Trainer(
            module=self.module.to(device),
            data=self.data,
            shards=[torch.from_numpy(shard) for shard in self.split.train],
            method=self.scenario.method.value,
            cost_profile=self.network.cost_profile,
            test_rows=torch.from_numpy(rows),
            encoding_up=self.setting.encoding_up,
            encoding_down=self.setting.encoding_down,
            personal_rows=[torch.from_numpy(own) for own in self.split.test or ()],
            public=public,
            reports=self.setting.reports,
            attacks=self.attacks,
            networks=self.setting.networks,
            objective=self.scenario.objective.value,
            metrics=written_metrics(self.scenario),
        )

    def make_tools(self) -> TorchServerTools | None:
        """Return the network, data and rows with which the method's server computes; None without a data set."""
        import torch

        from edgesim.learning.server import TorchServerTools

        if self.data is None:
            return None
        held, objective = self.server_set, self.scenario.objective.value
        tools = TorchServerTools(self.module, self.data, self.setting.cost_profile, objective=objective)
        return tools if held is None else replace(tools, split=held.wanted.split, rows=torch.from_numpy(held.rows))


def session_key(scenario: Scenario) -> Key:
    """Return the key of a training's random streams, which follows from the seed and, if there is one, the session."""
    key = Key(scenario.seed)
    return key.at(Purpose.SESSION, scenario.session[0].word) if scenario.session else key


def load_data(scenario: Scenario) -> Dataset | None:
    """Return the data set of a scenario; None without one. Raises DataError if it is missing or damaged."""
    found: Dataset | None = None if scenario.data is None else built(scenario.data, "data", _OF_DATA, by="load")
    return found


def build_network(scenario: Scenario, data: Dataset | None, known: CostProfile | None = None) -> Network:
    """Return the network of a scenario with its cost profile, measured unless it is known or cached.

    Several networks become one network that holds them side by side. `known`: the profile of a network of the same
    structure, used if there is only one network. Raises ConfigError if the data do not fit.
    """
    key = Key(scenario.seed).at(Purpose.INIT, 0)
    shape, classes = (data.input_shape, data.classes) if data else (None, None)
    networks, models, objective = networks_of_devices(scenario), models_of(scenario), scenario.objective.value
    if networks is None:
        return network_of(models[0], shape, classes, key, known, objective)
    named = zip(networks.names, models, strict=True)
    return together({name: network_of(model, shape, classes, key, None, objective) for name, model in named})


@plain_where_loaded()
def assemble(
    scenario: Scenario,
    load: Load = load_data,
    build: Build = build_network,
) -> Assembly:
    """Build and check everything that a scenario names. Raises ConfigError or DataError where it does not fit.

    Callers with many scenarios pass a `load` and a `build` that remember their results.
    """
    check_networks(scenario)
    scenario.training.check()
    if hasattr(scenario.backend.value, "check"):
        scenario.backend.value.check()
    with np.errstate(all="ignore"):  # `check_finite` refuses overflows below
        fleet = build_fleet(scenario)
    members = members_of(scenario, fleet)
    check_selection(scenario, fleet.level if members is None else fleet.level[members])
    _check_pairs(scenario)
    check_server_step(scenario)
    _check_protocol(scenario, fleet, members)
    _check_end(scenario, fleet)
    shared = shared_network(scenario, fleet)
    data = with_fitting_labels(scenario, load(scenario))
    server_set = server_set_of(scenario, data)
    split, samples = partition(scenario, data, len(fleet), server_set, members)
    network = build(scenario, data)
    cost_profile = charged_profile(scenario, network.cost_profile, data)
    cost_profile.check_batch("training.batch", scenario.training.batch)
    setting = Setting(
        cost_profile=cost_profile,
        cost=scenario.cost.value,
        training=scenario.training,
        samples=samples,
        level=fleet.level,
        flops_per_s=fleet.flops_per_s,
        up_bps=fleet.up_bps,
        down_bps=fleet.down_bps,
        latency_s=fleet.latency_s,
        memory_bytes=fleet.memory_bytes,
        deadline_s=protocol_of_devices(scenario)[1].value.deadline_s,
        labels=label_counts(scenario, data, split),
        encoding_up=scenario.encoding.up,
        encoding_down=scenario.encoding.down,
        speeds=fleet.full_speed_s if fleet.itemised else None,
        reports="reports" in wants_of(scenario),
        members=members,
        networks=networks_of_devices(scenario),
        asked=how_asked(scenario, fleet.level, members),
    )
    check_finite(scenario, fleet, setting, shared)
    n, key = len(fleet), Key(scenario.seed)
    there = [
        built(plugin, "availability", ("until_s", "on_from_s"), n, key.at(Purpose.AVAILABILITY, i), "availability")
        for i, plugin in enumerate(scenario.availability)
    ]
    broken = [
        built(plugin, f"failures.{i}", ("strikes",), n, key.at(Purpose.FAILURE, i), f"failures.{i}")
        for i, plugin in enumerate(scenario.failures)
    ]
    availability, failures = all_of(there), combine(broken) if broken else None
    check_prices(fleet, setting)
    if failures is not None and failures.links is not None:
        peers = None if scenario.peers is None else _peer_graph(scenario, setting.devices)
        if peers is not None and members is not None:
            peers = peers.placed(members, n)
        check_outages(scenario, fleet, failures.links, setting, shared, peers)
    return Assembly(
        scenario, fleet, data, split, network, setting, shared, availability, failures, server_set,
        market_of(scenario, fleet), edge_servers(scenario, shared, setting, counts_of(data, split)),
    )  # fmt: skip


def _check_protocol(scenario: Scenario, fleet: Fleet, members: Ids | None) -> None:
    """Raise ConfigError if protocol, peers, failures and batteries do not fit the fleet or one another."""
    protocol, method = scenario.protocol, scenario.method
    n, asked = len(fleet) if members is None else len(members), asked_at_most(scenario, fleet.level, members)
    if hasattr(protocol.value, "check") and scenario.edges is None:  # with edge servers it does not ask devices
        protocol.value.check(n, asked)
    among_peers = method.value.needs.peers is not None
    if among_peers and scenario.peers is None:
        raise ConfigError(f"peers: {method.name} needs to know who hears whom, such as peers = 'ring'")
    if not among_peers and scenario.peers is not None:
        raise ConfigError(f"peers: {method.name} has a server, its devices exchange nothing among themselves")
    peers, has_batteries = scenario.peers, any(block.new_batteries is not None for block in fleet.blocks)
    if peers is not None:
        peers.value.check(n)
        if peers.value.redrawn and method.value.needs.peers == "fixed":
            raise ConfigError(
                f"peers.name: {peers.name} is drawn anew every round, a graph that {method.name} "
                "cannot use: its devices keep something of each neighbour's; use a fixed one, such as ring or expander"
            )
        method.value.check_peers(_peer_graph(scenario, n))
        for i, plugin in enumerate(scenario.failures):
            if not getattr(plugin.value, "among_peers", True):
                raise ConfigError(f"failures.{i}.name: {plugin.name} needs a server, found peers")
    if has_batteries and (fleet.sleep_w != fleet.idle_w).any():
        raise ConfigError("energy.sleep: a device with a battery draws idle power while it is on; leave sleep out")


def _peer_graph(scenario: Scenario, n: int) -> PeerGraph:
    """Return the peer graph of the first round if all n devices are reachable."""
    assert scenario.peers is not None
    key, online = session_key(scenario).at(Purpose.PEERS), np.ones(n, dtype=bool)
    of_round = key.at(0) if scenario.peers.value.redrawn else key
    graph: PeerGraph = built(scenario.peers, "peers", ("first", "sources"), online, 0, of_round, by="graph")
    return graph


def _check_end(scenario: Scenario, fleet: Fleet) -> None:
    """Raise ConfigError if no stop rule can ever be met."""
    stop, server = scenario.stop, scenario.server
    powers_w: list[Any] = [fleet.idle_w, fleet.sleep_w, fleet.transmit_w, fleet.receive_w, fleet.j_per_bit]
    powers_w += [server.idle, server.busy]
    powers_w += [power for block in fleet.blocks for power in (block.cpu.capacitance, block.cpu.static_w)]
    by_accuracy = (stop.accuracy is not None or bool(stop.metric)) and scenario.backend.value.trains
    by_energy = stop.energy is not None and any(np.any(power_w) for power_w in powers_w)
    if stop.rounds is None and stop.sim_time is None and not (by_accuracy or by_energy):
        raise ConfigError(
            "stop: would never end, as the null backend has no accuracy and energy 'none' spends nothing; "
            "add rounds or sim_time"
        )


def _check_pairs(scenario: Scenario) -> None:
    """Raise ConfigError if method, objective, protocol and backend cannot work together."""
    check_objective(scenario)
    key, chosen = protocol_of_devices(scenario)
    needs, protocol = scenario.method.value.needs, chosen.value.protocol
    if protocol not in needs.protocols:
        raise ConfigError(
            f"{key}.name: {scenario.method.name} runs on {', '.join(sorted(needs.protocols))}, found {protocol}"
        )
    if scenario.backend.value.trains:
        return
    if needs.feedback:
        raise ConfigError(f"backend.name: {scenario.method.name} plans from training results, which null does not have")
