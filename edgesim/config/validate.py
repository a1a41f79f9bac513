"""Rules about parts of a scenario that do not go together.

A rule stands here if it compares parts or sections with each other. What a part needs by itself it checks in its own
`check`, and a value alone is checked by its type. A rule yields the key at fault and the words of the error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, combinations
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from edgesim.config.plugin_fields import PartOf
from edgesim.config.plugins import APP, plugins_of
from edgesim.config.sections import REPLACED_BY_APP, UpperTier
from edgesim.core.arrays import Ids
from edgesim.core.errors import ConfigError
from edgesim.core.metrics import ACCURACY, LabelKind
from edgesim.core.selection import Informed

if TYPE_CHECKING:
    from edgesim.config.plugin_fields import Chosen
    from edgesim.config.scenario import Scenario

Broken: TypeAlias = Iterator[tuple[str, str]]

_OBJECTIVES: Mapping[LabelKind, str] = {
    "classes": "classification",
    "numbers": "regression",
    "flags": "multi_label",
    "tokens": "next_token",
}


def refuse(broken: Broken) -> None:
    """Raise ConfigError with the key and the words of the first broken rule, if there is one."""
    for key, words in broken:
        raise ConfigError(f"{key}: {words}")


def protocol_of_devices(s: Scenario) -> tuple[str, Chosen]:
    """Return the key and the protocol of the servers that ask devices: edge servers if there are any, or the server."""
    return ("protocol", s.protocol) if s.edges is None else ("edges.protocol", s.edges.protocol)


def _among_peers(s: Scenario) -> bool:
    """Return True if devices exchange models among themselves, without a server."""
    return s.method.value.needs.peers is not None


def sections(s: Scenario) -> Broken:
    """Yield the broken rules about sections without parts, which are known as soon as a scenario is read."""
    costs = [("stop", s.stop.cost)]
    costs += [(f"session.{i}.stop", each.stop.cost) for i, each in enumerate(s.session) if each.stop is not None]
    currency = s.prices and s.prices.currency
    known = f"the prices are in {currency}" if currency else "the section prices names none"
    for key, limit in costs:
        if limit is not None and currency != limit.unit:
            yield key, f"cost is {limit.values[1]:g} {limit.unit}, but {known}"
    yield from _app(s)
    if s.session and s.edges is not None:
        yield "edges", "edge servers train for a scenario without [[session]]; leave one of both out"
    for i, each in enumerate(s.session):
        ends_s = (each.stop or s.stop).sim_time
        if ends_s is not None and each.start >= ends_s:
            yield f"session.{i}.start", f"must be before stop.sim_time, {ends_s:g} s, got {each.start:g} s"


_NOT_WITH_APP = (
    *("data", "data_seed", "arrival", "training", "cost", "selection", "resources", "objective", "server_optimizer"),
    *("peers", "edges", "encoding", "session", "controller"),
)


def _app(s: Scenario) -> Broken:
    """Yield the broken rules about an app, which brings its own data, model, method and training."""
    given = dict(s)
    if s.app is None:
        for key in REPLACED_BY_APP:
            if given[key].name == APP:
                yield f"{key}.name", "is 'app' only where the section app names a program"
        return
    found = [key for key in REPLACED_BY_APP if given[key].name != APP]
    for key in _NOT_WITH_APP:
        usual = type(s).model_fields[key].get_default()
        if given[key] != (PartOf(key).read(usual) if isinstance(usual, str) else usual):
            found.append(key)
    found += [f"fleet.{i}.model" for i, block in enumerate(s.fleet) if block.model is not None]
    for key in found:
        yield key, f"does not go with app; {s.app.name} brings its own"
    if not s.backend.value.runs_apps:
        known: Mapping[str, Any] = plugins_of("backend")
        others = " or ".join(sorted(name for name, cls in known.items() if cls.runs_apps))
        yield "backend.name", f"{s.backend.name} runs no app; use {others}"
    if s.evaluation.personal or s.evaluation.on_devices is not None:
        yield "evaluation", "an app tests its models itself; leave personal and on_devices out"
    for i, failure in enumerate(s.failures):
        if not failure.value.fits_app:
            yield f"failures.{i}.name", f"{failure.name} cannot reach into an app"


def parts(s: Scenario) -> Broken:
    """Yield the broken rules about parts, before anything is built."""
    if s.app is not None:
        return _links(s)
    rules = (_arrival(s), _learning(s), _own_loop(s), _rounds(s), _overlap(s), _controller(s), _resources(s))
    return chain(*rules, _server_step(s), _peers(s), _links(s), _tiers(s))


def _arrival(s: Scenario) -> Broken:
    """Yield the broken rules about samples that arrive while the run goes on."""
    if s.evaluation.current and (s.arrival is None or s.arrival.class_every is None):
        yield "evaluation.current", "needs classes that appear one after another; set arrival.class_every"
    if s.arrival is None:
        return
    for what, there in (
        ("peers", s.peers is not None),
        ("edges", s.edges is not None),
        ("session", bool(s.session)),
        (f"method.name: {s.method.name}, which runs a loop of its own", s.method.value.loop),
    ):
        if there:
            yield "arrival", f"does not go with {what}; leave one of both out"
    if s.arrival.class_every is not None and (
        not s.partition.value.has_samples or s.objective.value.labels != "classes"
    ):
        yield "arrival.class_every", "needs samples with classes, found none"


def _learning(s: Scenario) -> Broken:
    """Yield the broken rules about networks, objective, metrics and samples."""
    method, trains = s.method, s.backend.value.trains
    if len(s.models) > 1:
        key = next(f"fleet.{i}.model" for i, block in enumerate(s.fleet) if block.model is not None)
        found = " and ".join(model.name for model in s.models)
        if not method.value.needs.networks:
            methods: Mapping[str, Any] = plugins_of("method")
            others = ", ".join(sorted(name for name, cls in methods.items() if cls.needs.networks))
            one = f"{method.name} trains one network for all devices, found {found}"
            yield key, f"{one}; methods for several: {others}"
        for what, there in (
            ("peers", s.peers is not None),
            ("edges", s.edges is not None),
            (f"backend.name: {s.backend.name}", not s.backend.value.networks),
            (f"cost.name: {s.cost.name}", not s.cost.value.networks),
        ):
            if there:
                yield key, f"several networks ({found}) do not go with {what}; leave one of both out"
    name, labels, metrics = s.objective.name, s.objective.value.labels, {*s.objective.value.metrics, "loss"}
    if labels != "classes":
        rest = f"; it needs classes, objective {name} has {labels}"
        if method.value.needs_classes:
            yield "method.name", f"{method.name} {method.value.needs_classes}{rest}"
        if method.value.server_set is not None and method.value.server_set.draw == "balanced":
            yield "method.name", f"{method.name} gives its server equally many samples of each class{rest}"
        if "labels" in s.selection.value.needs:
            yield "selection.name", f"{s.selection.name} looks at the devices' classes{rest}"
        for i, failure in enumerate(s.failures):
            if failure.value.flips_labels:
                yield f"failures.{i}.labels", f"a flipped label is that of another class{rest}"
    for key, wanted in (
        ("evaluation.metrics", s.evaluation.metrics or ()),
        ("evaluation.targets", s.evaluation.targets_by_metric),
        ("stop.metric", s.stop.metric or ()),
        ("stop.accuracy", (ACCURACY,) if s.stop.accuracy is not None else ()),
        ("stop.milestones", (ACCURACY,) if s.stop.milestones else ()),
    ):
        for metric in wanted:
            if metric not in metrics:
                yield key, f"objective {name} has no {metric} (it has {', '.join(sorted(metrics))})"
    if s.data is None and s.partition.value.has_samples:
        yield "data", f"partition {s.partition.name} needs a data set"
    if trains and not s.partition.value.has_samples:
        trained = f"{s.backend.name} trains, but partition {s.partition.name} gives sizes without samples"
        yield "backend.name", f"{trained}; use the null backend or another partition"


def _own_loop(s: Scenario) -> Broken:
    """Yield the broken rules about a user's training loop in the place of the method's local SGD."""
    method, key = s.method.value, "method.local"
    if not method.loop:
        return
    if s.data is None or not s.partition.value.has_samples:
        yield key, f"pricing {method.loop} needs samples: add data, and a partition that divides them"
    if len(s.models) > 1:
        names = " and ".join(model.name for model in s.models)
        yield key, f"a loop trains one network for all devices, found {names}"
    if not s.cost.value.is_counted:
        yield "cost", f"must be 'measured' without other keys, as the work of {method.loop} is counted"
    if "reports" in s.selection.value.needs:
        yield "selection.name", f"{s.selection.name} needs losses of local steps, which {method.loop} does not report"
    for i, failure in enumerate(s.failures):
        if failure.value.shortens_work:
            yield f"failures.{i}.name", f"{failure.name} ends local steps early, and cannot interrupt {method.loop}"
    if s.training.precision != "float32":
        yield "training.precision", f"must be 'float32', as {method.loop} chooses its types itself"


def _rounds(s: Scenario) -> Broken:
    """Yield the broken rules about selection, method, protocol and backend."""
    method, rule, name, (key, protocol) = s.method, s.selection.value, s.selection.name, protocol_of_devices(s)
    needs, found, trains = method.value.needs, protocol.value.protocol, s.backend.value.trains
    if rule.protocols and found not in rule.protocols:
        yield "selection.name", f"{name} works with the protocols {', '.join(sorted(rule.protocols))}, found {found}"
    if isinstance(rule, Informed) and _among_peers(s):
        yield "selection.name", f"{name} looks at what a server knows; {method.name} has peers, use 'all'"
    if rule.poll is not None and s.edges is not None:
        yield "selection.name", f"{name} polls devices in exchanges of a server, leave out edges"
    if ("reports" in rule.needs or rule.poll is not None) and not trains:
        chooses = f"selection {name} chooses by training results"
        yield "backend.name", f"{chooses}, which {s.backend.name} does not have"
    if "labels" in rule.needs and s.data is None:
        yield "data", f"the selection {name} looks at labels, which need a data set"
    if "cell" in rule.needs and (s.fleet[0].network or s.network).value.spectrum is None:
        yield "network.name", f"the selection {name} looks at a cell, must be 'cell', found {s.network.name!r}"
    in_rounds = found in ("sync", "deadline") and s.edges is None and not _among_peers(s)
    if s.evaluation.on_devices is not None and not in_rounds:
        yield "evaluation.on_devices", "needs a server that asks devices in rounds, without edge servers or peers"
    if found not in needs.protocols:
        yield f"{key}.name", f"{method.name} runs on {', '.join(sorted(needs.protocols))}, found {found}"
    if method.value.needs_training and not trains:
        yield "backend.name", f"{method.name} plans from training results, which null does not have"


def _overlap(s: Scenario) -> Broken:
    """Yield the broken rules about methods whose transfers pass while devices compute."""
    name = s.method.name
    if not s.method.value.needs.overlap:
        return
    every = f"{name} needs every device in every round"
    if s.selection.name != "all":
        yield "selection.name", f"{every}, must be 'all', found {s.selection.name!r}"
    for each in s.availability:
        if each.name != "always":
            yield "availability", f"{every}, must be 'always', found {each.name!r}"
    transfers = f"{name} sends and receives while devices compute, which"
    if s.failures:
        yield "failures", f"{transfers} failures do not interrupt; leave them out, found {s.failures[0].name!r}"
    if any(block.battery is not None for block in s.fleet):
        yield "fleet.battery", f"{transfers} batteries do not follow; leave them out"
    for key, found in (("edges", s.edges), ("resources", s.resources)):
        if found is not None:
            yield key, f"{transfers} {key} cannot plan; leave the section out"


def _controller(s: Scenario) -> Broken:
    """Yield the broken rules about a controller."""
    if s.controller is None:
        return
    key, name, rule = "controller.name", s.controller.name, s.controller.value
    if s.edges is not None or _among_peers(s) or s.protocol.value.protocol not in ("sync", "deadline"):
        yield key, f"{name} needs a server that asks devices in rounds, without edge servers or peers"
    if "participants" in rule.sets:
        if s.selection.value.of_count(1) is None:
            yield key, f"{name} sets the number of participants, which selection {s.selection.name} does not have"
        if s.method.value.needs.asked:
            yield key, f"{name} changes the number of participants, which {s.method.name} takes for fixed"
    if "deadline_s" in rule.sets and s.protocol.value.protocol != "deadline":
        yield key, f"{name} sets the deadline of rounds, which protocol {s.protocol.name} does not have"
    if "local_steps" in rule.sets and s.method.value.loop:
        yield key, f"{name} sets local steps, of which {s.method.value.loop} takes none"
    if "estimates" in rule.needs and s.encoding.up.of_update:
        yield "encoding.up", f"{name} has gradients sent beside updates; it can encode values, not updates"
    if "estimates" in rule.needs and len(s.models) > 1:
        yield key, f"{name} compares gradients of one network, found several"
    if rule.needs and not s.backend.value.trains:
        yield "backend.name", f"{name} adapts to training results, which {s.backend.name} does not have"


def _server_step(s: Scenario) -> Broken:
    """Yield the broken rules about the server's step and the encoding of updates."""
    method, chosen, up = s.method, s.server_optimizer, s.encoding.up
    if chosen is not None:
        rest = f"; leave it out, found {chosen.name}"
        if _among_peers(s):
            alone = "has no server, its devices exchange models among themselves"
            yield "server_optimizer", f"{method.name} {alone}{rest}"
        if s.edges is not None:
            mean = "the server above edge servers takes the mean of their models and nothing else"
            yield "server_optimizer", f"{mean}{rest}"
        if method.value.no_server_optimizer:
            yield "server_optimizer", f"{method.name} {method.value.no_server_optimizer}{rest}"
    if s.encoding.down.of_update:
        yield "encoding.down", "the server sends whole models, an update goes up alone; use encoding.up"
    if up.of_update:
        rest = "; it can encode values, not updates"
        if _among_peers(s):
            alone = "has no server, its devices exchange whole models among themselves"
            yield "encoding.up", f"{method.name} {alone}{rest}"
        if s.edges is not None:
            yield "encoding.up", f"edge servers send whole models to the server above them{rest}"
        if method.value.no_update_encoding:
            yield "encoding.up", f"{method.name} {method.value.no_update_encoding}{rest}"
    if up.momentum:  # of updates: the local steps that make them must have none
        why = f"as encoding.up.momentum, {up.momentum:g}, adds up steps that have none; found"
        if s.training.optimizer != "sgd":
            yield "training.optimizer", f"must be 'sgd', {why} '{s.training.optimizer}'"
        if s.training.momentum:
            yield "training.momentum", f"must be 0, {why} {s.training.momentum:g}"


def _peers(s: Scenario) -> Broken:
    """Yield the broken rules about devices that exchange models among themselves."""
    method, peers = s.method, s.peers
    if _among_peers(s) and s.encoding.base == "once":
        why = f"the devices of {method.name} exchange models among themselves"
        yield "encoding.base", f"'once' needs a server that sends the base; {why}, use 'preloaded'"
    if _among_peers(s) and peers is None:
        yield "peers", f"{method.name} needs to know who hears whom, such as peers = 'ring'"
    if not _among_peers(s) and peers is not None:
        yield "peers", f"{method.name} has a server, its devices exchange nothing among themselves"
    if peers is not None:
        redrawn, fixed = f"{peers.name} is drawn anew every round", "use a fixed one, such as ring or expander"
        if peers.value.redrawn and method.value.needs.peers == "fixed":
            why = f"a graph that {method.name} cannot use: its devices keep something of each neighbour's"
            yield "peers.name", f"{redrawn}, {why}; {fixed}"
        for i, failure in enumerate(s.failures):
            if not failure.value.among_peers:
                yield f"failures.{i}.name", f"{failure.name} needs a server, found peers"
        for network in (block.network or s.network for block in s.fleet):
            if (found := network.value.server_only) is not None:
                yield "network", f"{found} needs a server, found peers"


def _links(s: Scenario) -> Broken:
    """Yield the broken rules about shared links, topology and edge servers."""
    disciplines = s.disciplines
    edges, topology, devices = s.edges, s.topology, sum(block.count for block in s.fleet)
    spectra = [(block.network or s.network).value.spectrum for block in s.fleet]
    if any(spectrum != spectra[0] for spectrum in spectra):
        yield "fleet.network", "blocks must all be in cells of one band, access, allocator and fading, or none"
    elif spectra[0] is not None and not topology.value.is_tree:
        yield "topology.name", f"cells need base stations, those of a star or a tree, found {topology.name!r}"
    if any(discipline != disciplines[0] for discipline in disciplines):
        yield "fleet.network", "blocks must all have shared links of one discipline, or none"
    if disciplines[0] is None and not topology.value.only_access:
        yield "topology.name", "links beyond the devices' own need a network of constant rates, such as fixed or shared"
    if edges is not None:
        if disciplines[0] is None or not topology.value.has_edge_servers:
            found = f"found topology {topology.name!r}, network {s.network.name!r}"
            yield "edges", f"need topology.name = 'tree' and network.name = 'shared', {found}"
        if _among_peers(s):
            yield "edges", f"{s.method.name} works among peers, who have no edge servers"
        if (count := topology.value.edge_servers) > devices:
            yield "topology.edge_servers", f"must be at most the {devices} devices of the fleet, got {count}"


def _tiers(s: Scenario) -> Broken:
    """Yield the broken rules about the tiers of edge servers."""
    if s.edges is None:
        return
    for key, protocol in ("protocol", s.protocol), *((f"{key}.protocol", tier.protocol) for key, tier in s.edges.tiers):
        if protocol.value.own_clocks:
            why = "is for devices that exchange models among themselves, found edge servers"
            yield f"{key}.name", f"{protocol.name} {why}"
        if protocol.value.tiers:
            yield f"{key}.name", f"{protocol.name} divides the devices of one server, found edge servers"
    most, below = s.topology.value.edge_servers, "edge servers"
    for key, tier in s.edges.tiers:
        if isinstance(tier.asked.value, Informed):
            choice = "looks at devices; edge servers have all, uniform, poisson or stratified"
            yield f"{key}.asked.name", f"{tier.asked.name} {choice}"
        if isinstance(tier, UpperTier):
            if tier.servers > most:
                yield f"{key}.servers", f"must be at most the {most} {below} below, got {tier.servers}"
            most, below = tier.servers, "servers of the tier"


def _resources(s: Scenario) -> Broken:
    """Yield the broken rules about a policy that chooses frequency, power and bandwidth of a round."""
    if s.resources is None:
        return
    name, protocol = f"resources {s.resources.name}", s.protocol
    if _among_peers(s) or protocol.value.protocol not in ("sync", "deadline"):
        found = f"found {s.method.name}, which has peers" if _among_peers(s) else f"found {protocol.name}"
        yield "resources.name", f"{name} needs a server that asks devices in rounds, such as protocol sync, {found}"
    for there, what in ((s.edges, "edges"), (s.session, "session")):
        if there:
            yield what, f"{name} chooses for one server of one cell; leave one of both out"
    for i, block in enumerate(s.fleet):
        key, network = ("network", s.network) if block.network is None else (f"fleet.{i}.network", block.network)
        if (why := network.value.no_choices) is not None:
            yield f"{key}.{why[0]}", f"{why[1]}; {name} chooses power and bandwidth"
        if block.cpu.governor != PartOf("governor").read("max"):
            yield f"fleet.{i}.cpu.governor", f"{name} chooses the frequency; leave {block.cpu.governor.name} out"
    if s.controller is not None and "frequency" in s.controller.value.sets:
        yield "controller.name", f"{s.controller.name} sets the frequency, which {name} chooses; leave one of both out"
    if s.topology != PartOf("topology").read("star"):
        yield "topology.name", f"{name} divides the band of one cell, must be 'star', found {s.topology.name}"


def chosen_powers(s: Scenario, *, by_square: bool, own_radio: bool) -> Broken:
    """Yield the broken rules about powers that follow from choices of a policy.

    `by_square`: the joules of every CPU's cycle grow with its squared frequency; `own_radio`: an energy model gives the
    power of some radio.
    """
    if s.resources is not None and not by_square:
        why = "must be 'cpu' in every block, by which joules of a cycle grow with the squared frequency"
        yield "energy.name", f"{why}; resources {s.resources.name} weighs them"
    if s.resources is not None and own_radio:
        yield "energy.transmit", f"must be 0; with resources {s.resources.name} a radio draws power by what it radiates"


def powers(s: Scenario, *, sleeps: bool, draws_power: bool) -> Broken:
    """Yield the broken rules about the powers of the fleet.

    `sleeps`: some device draws another power while it cannot be reached; `draws_power`: something draws power.
    """
    batteries = [block.battery.value for block in s.fleet if block.battery is not None]
    if sleeps and not all(battery.plugged_in for battery in batteries):
        yield "energy.sleep", "a device with a battery draws idle power while it is on; leave sleep out"
    by_accuracy = (s.stop.accuracy is not None or bool(s.stop.metric)) and s.backend.value.trains
    by_energy = (s.stop.energy is not None or s.stop.device_energy is not None) and draws_power
    if s.stop.rounds is s.stop.sim_time is s.stop.bytes is None and not (by_accuracy or by_energy):
        why = "as the null backend has no accuracy and energy 'none' spends nothing"
        yield "stop", f"would never end, {why}; add rounds or sim_time"


def labels_of_data(s: Scenario, data: str, kind: LabelKind) -> Broken:
    """Yield the broken rules about the labels of the data set `data`."""
    labels, those = s.objective.value.labels, f"those of data {data} are {kind}; use"
    if kind != labels:
        yield "objective.name", f"{s.objective.name} is for {labels} as labels, {those} {_OBJECTIVES[kind]}"
    if kind != "classes" and s.partition.value.has_samples and s.partition.value.by_classes:
        yield "partition.name", f"{s.partition.name} divides samples by their classes, {those} iid or by_column"


def personal_tests(s: Scenario, data: str, kind: LabelKind) -> Broken:
    """Yield the broken rule about test sets of devices, where the partition divides no test samples."""
    if s.evaluation.personal and kind != "classes":
        why = f"test sets of devices have the classes of their training sets, those of data {data} are {kind}"
        remedy = "use a partition that divides the test samples too, such as by_column"
        yield "evaluation.personal", f"{why}; {remedy}"


def shared_devices(trainings: Sequence[tuple[Scenario, Ids]], has_battery: Callable[[int], bool]) -> Broken:
    """Yield the broken rules about trainings that share devices, of which one exchanges models among peers.

    A device keeps one newest message for its peers, and jobs of a server assume that only they drain its battery.
    `has_battery`: tells whether a device has a battery.
    """
    for (one, ids), (other, others) in combinations(trainings, 2):
        peers = [s.session_name for s in (one, other) if s.peers is not None]
        both = np.intersect1d(ids, others).tolist() if peers else []
        names = f"{one.session_name} and {other.session_name}"
        if both and len(peers) == 2:
            yield "session", f"{names} exchange among peers and share device {both[0]}; give them disjoint devices"
        drained = next((device for device in both if has_battery(device)), None)
        if drained is not None:
            why = f"share device {drained}, which has a battery, and {peers[0]} exchanges among peers"
            yield "session", f"{names} {why}; give them disjoint devices"
