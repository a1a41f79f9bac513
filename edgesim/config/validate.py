"""Rules about parts of a scenario that do not go together.

A rule stands here if it compares parts or sections with each other. What a part needs by itself it checks in its own
`check`, and a value alone is checked by its type. Each rule yields the key at fault and the words of the error.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeAlias

from edgesim.config.plugins import plugins_of
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


def check_parts(s: Scenario) -> None:
    """Raise ConfigError if parts of a scenario do not go together."""
    rules = (_networks, _objective, _selection, _method, _server_step, _peers, _links, _edges, _samples)
    _refuse(chain.from_iterable(rule(s) for rule in rules))


def check_powers(s: Scenario, *, sleeps: bool, draws_power: bool) -> None:
    """Raise ConfigError if the powers of the fleet do not fit batteries or stop rules.

    `sleeps`: some device draws another power while it cannot be reached; `draws_power`: something draws power.
    """
    _refuse(_powers(s, sleeps, draws_power))


def check_labels(s: Scenario, data: str, kind: LabelKind) -> None:
    """Raise ConfigError if the labels of the data set `data` do not fit objective or partition."""
    _refuse(_labels(s, data, kind))


def protocol_of_devices(s: Scenario) -> tuple[str, Chosen]:
    """Return the key and the protocol of the servers that ask devices: edge servers if there are any, or the server."""
    return ("protocol", s.protocol) if s.edges is None else ("edges.protocol", s.edges.protocol)


def _refuse(broken: Broken) -> None:
    for key, words in broken:
        raise ConfigError(f"{key}: {words}")


def _among_peers(s: Scenario) -> bool:
    """Return True if devices exchange models among themselves, without a server."""
    return s.method.value.needs.peers is not None


# --- when a file is read ------------------------------------------------------------------------------------------


def sections(s: Scenario) -> Broken:
    """Yield the key and the words of each rule about sections without parts that a scenario breaks."""
    currency = s.prices and s.prices.currency
    known = f"the prices are in {currency}" if currency else "the section prices names none"
    costs = [("stop", s.stop.cost)]
    costs += [(f"session.{i}.stop", each.stop.cost) for i, each in enumerate(s.session) if each.stop is not None]
    for key, limit in costs:
        if limit is not None and currency != limit.unit:
            yield key, f"cost is {limit.values[1]:g} {limit.unit}, but {known}"
    if s.session and s.edges is not None:
        yield "edges", "edge servers train for a scenario without [[session]]; leave one of both out"
    for i, each in enumerate(s.session):
        ends_s = (each.stop or s.stop).sim_time
        if ends_s is not None and each.start >= ends_s:
            yield f"session.{i}.start", f"must be before stop.sim_time, {ends_s:g} s, got {each.start:g} s"


# --- before anything is built -------------------------------------------------------------------------------------


def _networks(s: Scenario) -> Broken:
    if len(s.models) == 1:
        return
    key = next(f"fleet.{i}.model" for i, block in enumerate(s.fleet) if block.model is not None)
    found = " and ".join(model.name for model in s.models)
    if not s.method.value.needs.networks:
        methods: Mapping[str, Any] = plugins_of("method")
        others = ", ".join(sorted(name for name, cls in methods.items() if cls.needs.networks))
        words = f"trains one network for all devices, found {found}; methods for several: {others}"
        yield key, f"{s.method.name} {words}"
    for what, there in (
        ("peers", s.peers is not None),
        ("edges", s.edges is not None),
        (f"backend.name: {s.backend.name}", not s.backend.value.networks),
        (f"cost.name: {s.cost.name}", not s.cost.value.networks),
    ):
        if there:
            yield key, f"several networks ({found}) do not go with {what}; leave one of both out"


def _objective(s: Scenario) -> Broken:
    name, labels, known = s.objective.name, s.objective.value.labels, {*s.objective.value.metrics, "loss"}
    method, rest = s.method, f"it needs classes, objective {name} has {labels}"
    if labels != "classes":
        if method.value.needs_classes:
            yield "method.name", f"{method.name} {method.value.needs_classes}; {rest}"
        if method.value.server_set is not None and method.value.server_set.draw == "balanced":
            yield "method.name", f"{method.name} gives its server equally many samples of each class; {rest}"
        if "labels" in s.selection.value.needs:
            yield "selection.name", f"{s.selection.name} looks at the devices' classes; {rest}"
        for i, failure in enumerate(s.failures):
            if failure.value.flips_labels:
                yield f"failures.{i}.labels", f"a flipped label is that of another class; {rest}"
    for key, metrics in (
        ("evaluation.metrics", s.evaluation.metrics or ()),
        ("evaluation.targets", s.evaluation.targets_by_metric),
        ("stop.metric", s.stop.metric or ()),
        ("stop.accuracy", (ACCURACY,) if s.stop.accuracy is not None else ()),
        ("stop.milestones", (ACCURACY,) if s.stop.milestones else ()),
    ):
        for metric in metrics:
            if metric not in known:
                yield key, f"objective {name} has no {metric} (it has {', '.join(sorted(known))})"


def _selection(s: Scenario) -> Broken:
    rule, name = s.selection.value, s.selection.name
    protocol = protocol_of_devices(s)[1].value.protocol
    if rule.protocols and protocol not in rule.protocols:
        yield "selection.name", f"{name} works with the protocols {', '.join(sorted(rule.protocols))}, found {protocol}"
    if isinstance(rule, Informed) and _among_peers(s):
        yield "selection.name", f"{name} looks at what a server knows; {s.method.name} has peers, use 'all'"
    if "reports" in rule.needs and not s.backend.value.trains:
        words = f"selection {name} chooses by training results, which {s.backend.name} does not have"
        yield "backend.name", words
    if "labels" in rule.needs and s.data is None:
        yield "data", f"the selection {name} looks at labels, which need a data set"


def _method(s: Scenario) -> Broken:
    needs, (key, protocol) = s.method.value.needs, protocol_of_devices(s)
    if protocol.value.protocol not in needs.protocols:
        runs_on = ", ".join(sorted(needs.protocols))
        yield f"{key}.name", f"{s.method.name} runs on {runs_on}, found {protocol.value.protocol}"
    if needs.feedback and not s.backend.value.trains:
        yield "backend.name", f"{s.method.name} plans from training results, which null does not have"


def _server_step(s: Scenario) -> Broken:
    method, chosen, up = s.method, s.server_optimizer, s.encoding.up
    if chosen is not None:
        rest = f"; leave it out, found {chosen.name}"
        if _among_peers(s):
            words = f"{method.name} has no server, its devices exchange models among themselves"
            yield "server_optimizer", words + rest
        if s.edges is not None:
            yield (
                "server_optimizer",
                "the server above edge servers takes the mean of their models and nothing else" + rest,
            )
        if method.value.no_server_optimizer:
            yield "server_optimizer", f"{method.name} {method.value.no_server_optimizer}{rest}"
    if s.encoding.down.of_update:
        yield "encoding.down", "the server sends whole models, an update goes up alone; use encoding.up"
    if up.of_update:
        rest = "; it can encode values, not updates"
        if _among_peers(s):
            yield (
                "encoding.up",
                f"{method.name} has no server, its devices exchange whole models among themselves{rest}",
            )
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
    method, peers = s.method, s.peers
    if _among_peers(s) and peers is None:
        yield "peers", f"{method.name} needs to know who hears whom, such as peers = 'ring'"
    if not _among_peers(s) and peers is not None:
        yield "peers", f"{method.name} has a server, its devices exchange nothing among themselves"
    if peers is not None:
        if peers.value.redrawn and method.value.needs.peers == "fixed":
            yield (
                "peers.name",
                (
                    f"{peers.name} is drawn anew every round, a graph that {method.name} cannot use: its devices keep "
                    "something of each neighbour's; use a fixed one, such as ring or expander"
                ),
            )
        for i, failure in enumerate(s.failures):
            if not failure.value.among_peers:
                yield f"failures.{i}.name", f"{failure.name} needs a server, found peers"


def _has_batteries(s: Scenario) -> bool:
    return any(block.battery is not None and not block.battery.value.plugged_in for block in s.fleet)


def _links(s: Scenario) -> Broken:
    networks = [block.network or s.network for block in s.fleet]
    discipline = networks[0].value.discipline
    if any(network.value.discipline != discipline for network in networks):
        yield "fleet.network", "blocks must all have shared links of one discipline, or none"
    if discipline is None and not s.topology.value.only_access:
        yield "topology.name", "links beyond the devices' own need network.name = 'shared'"


def _edges(s: Scenario) -> Broken:
    given, topology, devices = s.edges, s.topology, sum(block.count for block in s.fleet)
    if given is None:
        return
    shared = (s.fleet[0].network or s.network).value.discipline is not None
    if not (shared and topology.value.has_edge_servers):
        words = f"found topology {topology.name!r}, network {s.network.name!r}"
        yield "edges", f"need topology.name = 'tree' and network.name = 'shared', {words}"
    if _among_peers(s):
        yield "edges", f"{s.method.name} works among peers, who have no edge servers"
    if (count := topology.value.edge_servers) > devices:
        yield "topology.edge_servers", f"must be at most the {devices} devices of the fleet, got {count}"
    if isinstance(given.asked.value, Informed):
        words = "looks at devices; edge servers have all, uniform, poisson or stratified"
        yield "edges.asked.name", f"{given.asked.name} {words}"


def _samples(s: Scenario) -> Broken:
    name, has_samples = s.partition.name, s.partition.value.has_samples
    if s.data is None and has_samples:
        yield "data", f"partition {name} needs a data set"
    if s.backend.value.trains and not has_samples:
        yield (
            "backend.name",
            (
                f"{s.backend.name} trains, but partition {name} gives sizes without samples; "
                "use the null backend or another partition"
            ),
        )


# --- when the fleet is drawn, and the data are loaded -------------------------------------------------------------


def _powers(s: Scenario, sleeps: bool, draws_power: bool) -> Broken:
    if sleeps and _has_batteries(s):
        yield "energy.sleep", "a device with a battery draws idle power while it is on; leave sleep out"
    by_accuracy = (s.stop.accuracy is not None or bool(s.stop.metric)) and s.backend.value.trains
    by_energy = s.stop.energy is not None and draws_power
    if s.stop.rounds is None and s.stop.sim_time is None and not (by_accuracy or by_energy):
        yield (
            "stop",
            (
                "would never end, as the null backend has no accuracy and energy 'none' spends nothing; "
                "add rounds or sim_time"
            ),
        )


def _labels(s: Scenario, data: str, kind: LabelKind) -> Broken:
    labels, those = s.objective.value.labels, f"those of data {data} are {kind}; use"
    if kind != labels:
        yield "objective.name", f"{s.objective.name} is for {labels} as labels, {those} {_OBJECTIVES[kind]}"
    if kind != "classes" and s.partition.value.has_samples and s.partition.value.by_classes:
        yield "partition.name", f"{s.partition.name} divides samples by their classes, {those} iid or by_column"
