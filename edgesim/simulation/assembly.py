"""From a scenario to the parts of a run: fleet, data, model, cost profile, setting. Nothing is trained here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from edgesim.config.plugin_fields import built
from edgesim.config.scenario import Foreign, Scenario
from edgesim.core.arrays import Arr, Ids
from edgesim.core.errors import ConfigError
from edgesim.core.limits import MOST_STEPS, check_steps
from edgesim.core.rng import Key, Purpose
from edgesim.core.task import Payload, Submodel, Task
from edgesim.core.update import SERVER
from edgesim.core.view import Setting
from edgesim.cost.profile import CostProfile
from edgesim.engine.finite import check_finite
from edgesim.engine.pricing import Pricer
from edgesim.learning.data.dataset import Dataset
from edgesim.learning.data.split import Split
from edgesim.learning.models.base import ModelPlugin
from edgesim.learning.server_rows import ServerRows
from edgesim.learning.train.torch_settings import plain_where_loaded
from edgesim.simulation.dealing import for_others, label_counts, members_of, partition, server_set_of
from edgesim.simulation.network import Network, charged_profile, network_of
from edgesim.world.availability.base import Availability, all_of
from edgesim.world.contention.network import SharedNetwork, shared_network
from edgesim.world.failures.base import Failure, combine
from edgesim.world.fleet import Fleet, build_fleet
from edgesim.world.prices.market import Market, market_of
from edgesim.world.processes.on_off import LAST_CELL, OnOff

if TYPE_CHECKING:
    from torch import nn

    from edgesim.learning.server import ServerTools
    from edgesim.learning.train.trainer import Trainer

_MOST_SHARED_OUTAGES = MOST_STEPS // 10  # in a round: each of them takes a transfer off its links, and puts it back

Load: TypeAlias = Callable[[Scenario], Dataset | None]
Build: TypeAlias = Callable[[Scenario, Dataset | None], Network]


@dataclass(frozen=True)
class Assembly:
    """All that a run is made of."""

    scenario: Scenario
    fleet: Fleet
    data: Dataset | None
    split: Split | None
    network: Network
    setting: Setting
    shared: SharedNetwork | None  # links that jobs share; None: every device has its own
    availability: Availability
    failures: Failure | None
    server_set: ServerRows | None  # samples that the method's server has; None: it has none
    market: Market | None  # what everything costs; None: there are no prices

    @property
    def session_word(self) -> int:
        """What tells the draws of sessions apart; 0 of a scenario without sessions."""
        return self.scenario.session[0].word if self.scenario.session else 0

    @property
    def session_key(self) -> Key:
        """The random streams of the training."""
        return session_key(self.scenario)

    @property
    def module(self) -> nn.Module:
        """The network with its starting weights, built when it is first asked for."""
        return self.network.module

    def make_trainer(self, device: str) -> Trainer:
        """Return what trains, with its network on a torch device such as "cpu"."""
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
        )

    def make_tools(self) -> ServerTools | None:
        """Return what the method's server computes with; None without a data set."""
        import torch

        from edgesim.learning.server import ServerTools

        if self.data is None:
            return None
        held = self.server_set
        if held is None:
            return ServerTools(self.module, self.data, self.setting.cost_profile)
        return ServerTools(
            self.module, self.data, self.setting.cost_profile, held.wanted.split, torch.from_numpy(held.rows)
        )


def session_key(scenario: Scenario) -> Key:
    """Return the random streams of a training: those of its scenario, or of the session if it has any."""
    key = Key(scenario.seed)
    return key.at(Purpose.SESSION, scenario.session[0].word) if scenario.session else key


def load_data(scenario: Scenario) -> Dataset | None:
    """Return the data set of a scenario; None without one. Raises DataError if it is missing or damaged."""
    return None if scenario.data is None else scenario.data.value.load()


def build_network(scenario: Scenario, data: Dataset | None, known: CostProfile | None = None) -> Network:
    """Return the network of a scenario, and its cost profile, which is measured if nobody knows it.

    `known`: the profile of a network of the same structure. Raises ConfigError unless data fit.
    """
    key = Key(scenario.seed).at(Purpose.INIT, 0)
    shape, classes = (data.input_shape, data.classes) if data else (None, None)
    return network_of(scenario.model, shape, classes, key, known)


@plain_where_loaded()
def assemble(
    scenario: Scenario,
    load: Load = load_data,
    build: Build = build_network,
) -> Assembly:
    """Build and check everything that a scenario names. Raises ConfigError or DataError where it does not fit.

    Who looks at many scenarios gives a `load` and a `build` that remember.
    """
    if not isinstance(scenario.model.value, ModelPlugin | Foreign):
        raise ConfigError(f"model.name: {scenario.model.name} must be a torch.nn.Module or a dataclass of ModelPlugin")
    if hasattr(scenario.backend.value, "check"):
        scenario.backend.value.check()
    with np.errstate(all="ignore"):  # what is not finite is refused below
        fleet = build_fleet(scenario)
    members = members_of(scenario, fleet)
    _check_pairs(scenario)
    _check_protocol(scenario, fleet, members)
    _check_end(scenario, fleet)
    shared = shared_network(scenario, fleet)
    data = load(scenario)
    server_set = server_set_of(scenario, data)
    split, samples = partition(scenario, data, len(fleet), server_set, members)
    network = build(scenario, data)
    cost_profile = charged_profile(scenario, network.cost_profile, data)
    cost_profile.check_batch("training.batch", scenario.training.batch)
    _check_rates(scenario.training.lr, scenario.training.lr_floor)
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
        deadline_s=scenario.protocol.value.deadline_s,
        labels=label_counts(scenario, data, split),
        encoding_up=scenario.encoding.up,
        encoding_down=scenario.encoding.down,
        speeds=fleet.full_speed_s if fleet.itemised else None,
        members=members,
    )
    check_finite(scenario, fleet, setting, shared)
    availability, failures = _churn(scenario, fleet)
    if shared is not None and failures is not None and failures.links is not None:
        _check_shared_outages(scenario, fleet, failures.links, setting, shared)
    _check_outages(fleet, setting, failures)
    return Assembly(
        scenario, fleet, data, split, network, setting, shared, availability, failures, server_set,
        market_of(scenario, fleet),
    )  # fmt: skip


def _check_rates(lr: float, floor: float) -> None:
    """Raise ConfigError if a learning rate ends above where it begins."""
    if floor > lr:
        raise ConfigError(f"training.lr_floor: must be at most training.lr, {lr:g}, got {floor:g}")


def _churn(scenario: Scenario, fleet: Fleet) -> tuple[Availability, Failure | None]:
    """Return when devices can be reached and what fails. Raises ConfigError or DataError if that cannot be."""
    n, key = len(fleet), Key(scenario.seed)
    there = [
        built(plugin, "availability", ("until_s", "on_from_s"), n, key.at(Purpose.AVAILABILITY, i), "availability")
        for i, plugin in enumerate(scenario.availability)
    ]
    broken = [
        built(plugin, f"failures.{i}", ("strikes",), n, key.at(Purpose.FAILURE, i), f"failures.{i}")
        for i, plugin in enumerate(scenario.failures)
    ]
    return all_of(there), combine(broken) if broken else None


def _check_outages(fleet: Fleet, setting: Setting, failures: Failure | None) -> None:
    """Raise ConfigError if the whole model takes some device more outages or changes of load than can be gone through.

    Whoever prices a job refuses the latter.
    """
    whole_model = Task(local_sgd=(setting.training.local_sgd(0),))
    prices = Pricer(fleet, setting).of_devices(whole_model, np.arange(len(fleet)))
    if failures is None or failures.links is None:
        return
    _check_told_apart(failures.links.mean_off_s, prices.down_s + prices.compute_s + prices.up_s)
    air_s = np.maximum(prices.down_s - prices.down_latency_s, prices.up_s - prices.up_latency_s)
    up_s = failures.links.mean_on_s
    device = int(np.argmax(air_s / up_s))
    link = f"the link of device {device}, up for {up_s[device]:g} s at a time,"
    check_steps(
        "failures.up", float(air_s[device] / up_s[device]), f"a model that takes {air_s[device]:g} s over {link}"
    )


def _check_told_apart(down_s: Arr, job_s: Arr) -> None:
    """Raise ConfigError if an outage is too short to end: at the end of a job floats cannot tell it from nothing."""
    if (late := job_s > LAST_CELL * down_s).any():
        device = int(late.argmax())
        raise ConfigError(
            f"failures.down: {down_s[device]:g} s is too short to be told from nothing at the end of a job of "
            f"{job_s[device]:g} s, as device {device} has"
        )


def _check_shared_outages(
    scenario: Scenario, fleet: Fleet, links: OnOff, setting: Setting, shared: SharedNetwork
) -> None:
    """Raise ConfigError if a round has more outages than can be gone through, one by one for every job.

    A model takes as long as the slowest link of its path lets it if it has the link to itself. Of each fleet block
    those devices are asked whose links go down most often or for the shortest time, and the first and last.
    """
    model_bits = 8.0 * setting.cost_profile.nbytes(Payload(), Submodel())
    asked = len(scenario.selection.value.choose(np.arange(len(fleet)), fleet.level, Key(scenario.seed)))
    latency_s = np.zeros(len(fleet))
    for block in fleet.blocks:
        own = slice(block.first, block.first + block.count)
        worst = np.array([0, links.mean_on_s[own].argmin(), links.mean_off_s[own].argmin(), block.count - 1])
        for device in (block.first + np.unique(worst)).tolist():
            down, up = (SERVER, 1 + device), (1 + device, SERVER)
            latency_s[device] = shared.paths.latency_s(*down) + shared.paths.latency_s(*up)
            slowest_bps = min(shared.alone_bps(*down), shared.alone_bps(*up))
            steps = asked * model_bits / slowest_bps / float(links.mean_on_s[device])
            what = f"a round in which {asked} devices have outages as device {device}"
            check_steps("failures.up", steps, what, most=_MOST_SHARED_OUTAGES)
    _check_told_apart(links.mean_off_s, latency_s)


def _check_protocol(scenario: Scenario, fleet: Fleet, members: Ids | None) -> None:
    """Raise ConfigError if the protocol cannot work with so many devices, or peers lack what they need."""
    everybody = np.arange(len(fleet)) if members is None else members
    n = len(everybody)
    scenario.selection.value.check(fleet.level if members is None else fleet.level[members])
    asked = len(scenario.selection.value.choose(everybody, fleet.level, Key(scenario.seed)))
    if hasattr(scenario.protocol.value, "check"):
        scenario.protocol.value.check(n, asked)
    among_peers = scenario.method.value.needs.peers is not None
    if among_peers and scenario.peers is None:
        raise ConfigError(f"peers: {scenario.method.name} needs to know who hears whom, such as peers = 'ring'")
    if not among_peers and scenario.peers is not None:
        raise ConfigError(f"peers: {scenario.method.name} has a server, its devices exchange nothing among themselves")
    if scenario.peers is not None:
        _check_peers(scenario, n)
    if all(block.new_batteries is None for block in fleet.blocks):
        return
    if among_peers:
        raise ConfigError("fleet.battery: batteries work in protocols with a server, not among peers")
    if (fleet.sleep_w != fleet.idle_w).any():
        raise ConfigError("energy.sleep: a device with a battery draws idle power while it is on; leave sleep out")


def _check_peers(scenario: Scenario, n: int) -> None:
    """Raise ConfigError if n devices cannot be peers in this way, or something fails that they do not have."""
    assert scenario.peers is not None
    peers, method = scenario.peers.value, scenario.method.value
    peers.check(n)
    if peers.redrawn and method.needs.peers == "fixed":
        raise ConfigError(
            f"peers.name: {scenario.peers.name} is drawn anew every round, a graph that {scenario.method.name} "
            "cannot use: its devices keep something of each neighbour's; use a fixed one, such as ring or expander"
        )
    key = session_key(scenario).at(Purpose.PEERS)
    method.check_peers(peers.graph(np.ones(n, dtype=bool), 0, key.at(0) if peers.redrawn else key))
    for i, plugin in enumerate(scenario.failures):
        if not getattr(plugin.value, "among_peers", True):
            raise ConfigError(f"failures.{i}.name: {plugin.name} needs a server, found peers")


def _check_end(scenario: Scenario, fleet: Fleet) -> None:
    """Raise ConfigError if no stop rule can ever be met."""
    stop, server = scenario.stop, scenario.server
    powers_w: list[Any] = [fleet.idle_w, fleet.sleep_w, fleet.transmit_w, fleet.receive_w, fleet.j_per_bit]
    powers_w += [server.idle, server.busy]
    powers_w += [power for block in fleet.blocks for power in (block.cpu.capacitance, block.cpu.static_w)]
    by_accuracy = stop.accuracy is not None and scenario.backend.value.trains
    by_energy = stop.energy is not None and any(np.any(power_w) for power_w in powers_w)
    if stop.rounds is None and stop.sim_time is None and not (by_accuracy or by_energy):
        raise ConfigError(
            "stop: would never end, as the null backend has no accuracy and energy 'none' spends nothing; "
            "add rounds or sim_time"
        )


def _check_pairs(scenario: Scenario) -> None:
    """Raise ConfigError if method, protocol and backend cannot work together."""
    needs, protocol = scenario.method.value.needs, scenario.protocol.value.protocol
    if protocol not in needs.protocols:
        raise ConfigError(
            f"protocol.name: {scenario.method.name} runs on {', '.join(sorted(needs.protocols))}, found {protocol}"
        )
    if scenario.backend.value.trains:
        return
    if needs.feedback:
        raise ConfigError(f"backend.name: {scenario.method.name} plans from training results, which null does not have")
