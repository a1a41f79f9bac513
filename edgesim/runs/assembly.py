"""Build the parts of a run from its scenario: fleet, data, model, price list, method and setting. Train nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from edgesim.config import validate
from edgesim.config.plugin_fields import Foreign, built
from edgesim.config.scenario import Scenario
from edgesim.core.arrays import Arr, Ids
from edgesim.core.attack import Attack
from edgesim.core.cost_model import CostModel
from edgesim.core.errors import ConfigError
from edgesim.core.limits import PROCESS_BYTES, memory_bytes
from edgesim.core.method import Method
from edgesim.core.peer_graph import PeerGraph
from edgesim.core.price_list import CostProfile
from edgesim.core.rng import Key, Purpose
from edgesim.core.selection import check_wants
from edgesim.core.task import Submodel, Task
from edgesim.core.view import Setting
from edgesim.engine.history import expected_of
from edgesim.engine.limit_checks import check_finite
from edgesim.learning.data.dataset import Dataset
from edgesim.learning.data.split import Split
from edgesim.learning.server_rows import ServerRows
from edgesim.learning.train.torch_settings import plain_torch, plain_where_loaded
from edgesim.methods.encoded import Encoded
from edgesim.methods.estimated import Estimated
from edgesim.methods.optimised import Optimised
from edgesim.methods.polled import Polled
from edgesim.runs.app_parts import NO_NETWORK
from edgesim.runs.host_memory import needed_bytes
from edgesim.runs.network import (
    Network,
    charged_profile,
    check_models,
    network_of,
    networks_of_devices,
    together,
)
from edgesim.runs.objectives import written_metrics
from edgesim.runs.outages import check_outages, check_prices
from edgesim.runs.partitioning import (
    arrivals_of,
    counts_of,
    for_others,
    label_counts,
    members_of,
    partition,
    server_set_of,
)
from edgesim.runs.selection_checks import asked_at_most, how_asked
from edgesim.runs.tree import edge_servers
from edgesim.world.availability.base import Availability, all_of
from edgesim.world.contention.network import SharedNetwork, shared_network
from edgesim.world.failures.base import Failure, combine
from edgesim.world.fleet import Fleet, build_fleet
from edgesim.world.prices.market import Market, market_of

if TYPE_CHECKING:
    from torch import nn

    from edgesim.learning.server import TorchServerTools
    from edgesim.learning.train.trainer import Trainer


def method_of_devices(scenario: Scenario) -> Method:
    """Return the scenario's method, with the estimates that its controller needs."""
    method: Method = scenario.method.value
    wanted = frozenset() if scenario.controller is None else scenario.controller.value.needs
    return Estimated(method=method) if "estimates" in wanted else method


def method_of_server(scenario: Scenario) -> Method:
    """Return the scenario's method, with its encoding of updates, server optimiser and poll if it has them."""
    method = method_of_devices(scenario)
    if scenario.encoding.up.of_update:
        method = Encoded(method=method, encoding=scenario.encoding.up)
    chosen = scenario.server_optimizer
    if chosen is not None and not chosen.value.is_identity:
        method = Optimised(method=method, optimizer=chosen.value)
    return with_poll(method, scenario)


def with_poll(method: Method, scenario: Scenario) -> Method:
    """Return a method, with the poll of the scenario's selection if it has one."""
    poll = scenario.selection.value.poll
    return method if poll is None else Polled(method=method, poll=poll)


Load: TypeAlias = Callable[[Scenario], Dataset | None]
Build: TypeAlias = Callable[[Scenario, Dataset | None], Network]


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
    method: Method  # that of the scenario; a user's training loop with its price
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

    @property
    def lacks_memory(self) -> bool:
        """True if training on CPUs takes more memory than this machine has, even with one job a round."""
        backend = self.scenario.backend.value
        if not backend.trains or backend.device != "cpu":
            return False
        return PROCESS_BYTES + needed_bytes(self, 1) > memory_bytes()

    def make_trainer(self, device: str) -> Trainer:
        """Return a trainer with its network on a torch device such as "cpu".

        If memory is short, the network's blocks run again in backward, as with `model.gradient_checkpointing`, but
        without its price.
        """
        import torch

        from edgesim.learning.models.build import base_of
        from edgesim.learning.train.context import PublicRows
        from edgesim.learning.train.trainer import Trainer

        if self.data is None or self.split is None:
            raise ConfigError("data: training needs a data set; without one use backend = { name = 'null' }")
        precision = self.scenario.training.precision
        if precision == "bfloat16" and any(each.dtype == torch.float16 for each in base_of(self.module).values()):
            raise ConfigError(
                "training.precision: bfloat16 does not go with frozen weights in float16; hold them in bfloat16"
            )
        rows, held = for_others(self.server_set, "test", len(self.data.labels("test"))), self.server_set
        public = PublicRows(held.wanted.split, torch.from_numpy(held.rows)) if held and held.wanted.public else None
        for model in self.scenario.models if self.lacks_memory else ():
            if not isinstance(model.value, Foreign):
                model.value.keep_less(self.module)
        return Trainer(
            module=self.module.to(device),
            data=self.data,
            shards=[torch.from_numpy(shard) for shard in self.split.train],
            method=with_poll(self.method, self.scenario),
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
            precision=precision,
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
    chosen = scenario.data
    return None if chosen is None else built(chosen, "data", Dataset, chosen.value.load)


def build_network(scenario: Scenario, data: Dataset | None, known: CostProfile | None = None) -> Network:
    """Return the network of a scenario with its cost profile, measured unless it is known or cached.

    Several networks become one network that holds them side by side. `known`: the profile of a network of the same
    structure, used if there is only one network. Raises ConfigError if the data do not fit.
    """
    key = Key(scenario.seed).at(Purpose.INIT, 0)
    shape, classes, vocabulary = (data.input_shape, data.classes, data.vocabulary) if data else (None, None, None)
    networks, models, objective = networks_of_devices(scenario), scenario.models, scenario.objective.value
    kinds = scenario.needs_kinds
    make = partial(
        network_of, shape=shape, classes=classes, key=key, objective=objective, kinds=kinds, vocabulary=vocabulary,
        weights=scenario.backend.value.trains,
    )  # fmt: skip
    if networks is None:
        return make(models[0], known=known)
    named = zip(networks.names, models, strict=True)
    each = {name: make(model) for name, model in named}
    return together(each)


@plain_where_loaded()
def assemble(
    scenario: Scenario,
    load: Load = load_data,
    build: Build = build_network,
) -> Assembly:
    """Build and check everything that a scenario names. Raises ConfigError or DataError where it does not fit.

    Callers with many scenarios pass a `load` and a `build` that remember their results.
    """
    if scenario.app is not None:
        scenario.app.value.check()
    else:
        check_models(scenario)
    validate.refuse(validate.parts(scenario))
    scenario.training.check()
    scenario.backend.value.check()
    with np.errstate(all="ignore"):  # `check_finite` refuses overflows below
        fleet = build_fleet(scenario)
    members = members_of(scenario, fleet)
    _check_choice(scenario, fleet, members)
    _check_powers(scenario, fleet)
    shared = shared_network(scenario, fleet)
    data = load(scenario)
    if data is not None:
        validate.refuse(validate.labels_of_data(scenario, data.name, data.kind))
    server_set = server_set_of(scenario, data)
    if scenario.app is None:
        split, samples = partition(scenario, data, len(fleet), server_set, members)
        arrivals, split = arrivals_of(scenario, data, split, samples)
        network = build(scenario, data)
    else:
        split, samples, network = None, np.ones(len(fleet), dtype=np.int64), NO_NETWORK
        arrivals = None
    cost_profile = charged_profile(scenario, network.cost_profile, data, kinds=scenario.needs_kinds)
    cost_profile.check_batch("training.batch", scenario.training.batch)
    method, cost = method_of_devices(scenario), scenario.cost.value
    if method.loop:
        assert data is not None and split is not None  # by the rules of `validate`
        method, cost, cost_profile = priced_loop(scenario, data, split, network)
    setting = Setting(
        cost_profile=cost_profile,
        cost=cost,
        training=scenario.training,
        samples=samples,
        level=fleet.level,
        flops_per_s=fleet.flops_per_s,
        up_bps=fleet.up_bps,
        down_bps=fleet.down_bps,
        latency_s=fleet.latency_s,
        memory_bytes=fleet.memory_bytes,
        deadline_s=validate.protocol_of_devices(scenario)[1].value.deadline_s,
        labels=label_counts(scenario, data, split),
        encoding_up=scenario.encoding.up,
        encoding_down=scenario.encoding.down,
        speeds=fleet.full_speed_s if scenario.needs_kinds or fleet.per_byte else None,
        kinds=scenario.needs_kinds,
        per_byte=fleet.per_byte,
        reports="reports" in scenario.selection.value.needs,
        members=members,
        networks=networks_of_devices(scenario),
        arrivals=arrivals,
        asked=how_asked(scenario, fleet.level, members),
        base=scenario.encoding.base,
        bfloat16_speedup=_bfloat16_speedup(scenario),
    )
    check_finite(scenario, fleet, setting, shared)
    if tiers := scenario.protocol.value.tiers:
        expected = expected_of(fleet, setting.of_members(), setting.ids)
        tier = setting.by_device(expected.tiers(tiers))
        tier.setflags(write=False)
        setting = replace(setting, tier=tier)
    if scenario.controller is not None:
        scenario.controller.value.check(setting, scenario.stop.budgets)
    n, key = len(fleet), Key(scenario.seed)
    there = [
        built(plugin, path, Availability, plugin.value.build, n, key.at(Purpose.AVAILABILITY, i), path)
        for i, plugin in enumerate(scenario.availability)
        for path in ("availability",)
    ]
    broken = [
        built(plugin, path, Failure, plugin.value.build, n, key.at(Purpose.FAILURE, i), path)
        for i, plugin in enumerate(scenario.failures)
        for path in (f"failures.{i}",)
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
        method, market_of(scenario, fleet), edge_servers(scenario, shared, setting, counts_of(data, split)),
    )  # fmt: skip


def priced_loop(
    scenario: Scenario, data: Dataset, split: Split, network: Network
) -> tuple[Method, CostModel, CostProfile]:
    """Return the method of a scenario with the price of its loop, and the cost model and profile that charge it.

    The samples are those of the device with the most, repeated where the measurement needs more. Raises ConfigError if
    the loop has no price, and EdgesimError if it fails.
    """
    import torch

    from edgesim.core.backend import Assignment
    from edgesim.foreign.loop_calls import measured
    from edgesim.foreign.loops import LoopCost, OwnLoop
    from edgesim.learning.models.build import copy_of, model_state_of
    from edgesim.learning.train.context import Context

    method: OwnLoop = scenario.method.value
    local_sgd, task = scenario.training.local_sgd(0), Task(local_sgd=(scenario.training.local_sgd(0),))
    device = max(range(len(split.train)), key=lambda each: len(split.train[each]))
    key = Key(scenario.seed).at(Purpose.LOCAL, device, 0)  # as in its first job
    module = copy_of(network.module)  # a context binds other weights to it
    given = Assignment(0, device, task, key, model_state_of(module), None)

    def context_of(samples: int) -> Context:
        rows = torch.from_numpy(np.resize(split.train[device], samples))
        return Context(module, data, rows, given, False, objective=scenario.objective.value)

    with plain_torch():
        price = measured(method, context_of, local_sgd, key, scenario.needs_kinds)
    # a loop has no batch that edgesim could leave out
    profile = replace(network.cost_profile, drop_single=False)
    if price.memory_bytes:
        formula = profile.memory_bytes(Submodel(), local_sgd.batch, local_sgd.moments, local_sgd.scratch).total
        profile = replace(profile, memory_scale=price.memory_bytes / formula)
    return replace(method, price=price), LoopCost(price=price), profile


def _bfloat16_speedup(scenario: Scenario) -> Arr | None:
    """Return `cpu.bfloat16_speedup` of each device, 1 where it is not given; None if no device trains faster by it."""
    if scenario.training.precision != "bfloat16":
        return None
    given: Arr = np.concatenate([np.full(each.count, each.cpu.bfloat16_speedup or 1.0) for each in scenario.fleet])
    given.setflags(write=False)
    return given if (given != 1.0).any() else None


def _check_choice(scenario: Scenario, fleet: Fleet, members: Ids | None) -> None:
    """Raise ConfigError if selection, protocol or peers do not fit the devices."""
    selection, peers = scenario.selection.value, scenario.peers
    check_wants(selection)
    selection.check(fleet.level if members is None else fleet.level[members])
    n = len(fleet) if members is None else len(members)
    if scenario.edges is None:  # with edge servers the protocol does not ask devices
        scenario.protocol.value.check(n, asked_at_most(scenario, fleet.level, members))
    if peers is not None:
        peers.value.check(n)
        scenario.method.value.check_peers(_peer_graph(scenario, n))


def _peer_graph(scenario: Scenario, n: int) -> PeerGraph:
    """Return the peer graph of the first round if all n devices are reachable."""
    assert scenario.peers is not None
    key, online = session_key(scenario).at(Purpose.PEERS), np.ones(n, dtype=bool)
    of_round = key.at(0) if scenario.peers.value.redrawn else key
    return built(scenario.peers, "peers", PeerGraph, scenario.peers.value.graph, online, 0, of_round)


def _check_powers(scenario: Scenario, fleet: Fleet) -> None:
    """Raise ConfigError if the powers of the fleet do not fit batteries, or no stop rule can ever be met."""
    server = scenario.server
    powers_w: list[Any] = [fleet.idle_w, fleet.sleep_w, fleet.transmit_w, fleet.receive_w, fleet.j_per_bit]
    powers_w += [server.idle, server.busy]
    powers_w += [power for block in fleet.blocks for power in (block.cpu.capacitance, block.cpu.static_w)]
    sleeps = bool((fleet.sleep_w != fleet.idle_w).any())
    draws_power = any(np.any(power_w) for power_w in powers_w)
    validate.refuse(validate.powers(scenario, sleeps=sleeps, draws_power=draws_power))
    cpus, radios_w = [block.cpu for block in fleet.blocks], [block.links.transmit_w for block in fleet.blocks]
    by_square = all(cpu.curve is None and bool((cpu.capacitance > 0).all()) for cpu in cpus)
    own_radio = any(
        each_w is not None and bool((fleet.transmit_w[block.first : block.first + block.count] != each_w).any())
        for block, each_w in zip(fleet.blocks, radios_w, strict=True)
    )
    validate.refuse(validate.chosen_powers(scenario, by_square=by_square, own_radio=own_radio))
