"""What DA-DPFL and the methods beside it cannot do is refused in one line that names the key, before a run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from edgesim.config.plugins import plugins_of
from tests.end_to_end.test_bad_input import Bad, check
from tests.end_to_end.test_bad_physics import file_of, settings

# TINY has 4 devices.
METHODS = plugins_of("method")
PEERS = tuple(name for name, cls in METHODS.items() if cls.needs.peers is not None)
REUSING = tuple(name for name in PEERS if "reuse" in METHODS[name].__dataclass_fields__)
CIRCLE = "0,1\n1,2\n2,3\n3,0\n"  # each hears the one before it, which does not hear it


def listed(edges: str) -> Bad:
    """Peers of a file, without a method yet."""
    prepare = file_of("peers.csv", f"source,target\n{edges}")
    return Bad("", ["peers={name='file', file='peers.csv'}"], prepare=prepare)


def of(method: str, bad: Bad, says: str, keys: str = "") -> Bad:
    """The same with a method, and what is said then."""
    protocol = [] if "sync" in METHODS[method].needs.protocols else ["protocol=gossip"]
    return bad._replace(says=says, overrides=[f"method={{name='{method}'{keys}}}", *protocol, *bad.overrides])


def graph(keys: str) -> Bad:
    """Peers of a graph by name."""
    return Bad("", [f"peers={{{keys}}}"])


# M of at least K, whatever M is called, and whoever the peers are.
DEGREES = {
    f"{method}, {keys}": of(method, graph(keys), f"peers.{says}")
    for method in PEERS
    for keys, says in {
        "name='random', degree=4": "degree: must be below the 4 devices, got 4",
        "name='gossip_match', size=5": "size: must be at most the 4 devices, got 5",
        "name='expander', degree=4": "degree: must be below the 4 devices, got 4",
    }.items()
    if "expander" in keys or (METHODS[method].needs.peers == "any" and "sync" in METHODS[method].needs.protocols)
}  # graphs that are drawn anew are refused whatever their degree where methods or protocols cannot use them

# N above M, the most neighbours that a device hears; as many as that are fine.
WAITS = {
    f"{method}, {keys}": of(
        method, bad, f"method.reuse: must be at most the {most} neighbours that a device hears, got {most + 1}",
        f", reuse={most + 1}",
    )
    for method in REUSING
    for keys, most, bad in (
        ("random", 2, graph("name='random', degree=2")),
        ("ring", 2, graph("name='ring'")),
        ("full", 3, graph("name='full'")),
        ("a file", 1, listed(CIRCLE)),
    )
}  # fmt: skip

TARGETS = {
    f"{preset}, {keys}": of(
        "dadpfl", graph("name='ring'"), f"method.target_sparsity: must be at least method.sparsity, {says}",
        f", preset='{preset}', {keys}",
    )
    for preset in ("reconstructed", "printed", "authors")
    for keys, says in {
        "target_sparsity=0.4": "0.5, got 0.4",
        "sparsity=0.9": "0.9, got 0.8",
        "sparsity=0.6, target_sparsity=0.55": "0.6, got 0.55",
    }.items()
}  # fmt: skip

# BEER keeps replicas of its neighbours, and its weights are doubly stochastic.
REDRAWN = "{} is drawn anew every round, a graph that beer cannot use: its devices keep something of each neighbour's"
ONE_WAY = "peers: BEER needs peers that hear each other, found a graph in which some do not"
REPLICAS = {
    "random": of("beer", graph("name='random', degree=2"), f"peers.name: {REDRAWN.format('random')}"),
    "groups": of("beer", graph("name='gossip_match', size=2"), f"peers.name: {REDRAWN.format('gossip_match')}"),
    "one at a time": of(
        "beer", graph("name='exponential', one_peer=true"), f"peers.name: {REDRAWN.format('exponential')}"
    ),
    "directed": of("beer", graph("name='exponential'"), ONE_WAY),
    "one-way file": of("beer", listed(CIRCLE), ONE_WAY),
    "a file with one line too few": of("beer", listed("0,1\n1,0\n1,2\n2,1\n2,3\n3,2\n3,0\n"), ONE_WAY),
}

ALONE = {
    method: of(
        method, listed("0,1\n1,0\n1,3\n3,1\n"), "{here}/peers.csv: leaves device 2 alone: it is the target of no line"
    )
    for method in PEERS
}

TABLES: Mapping[str, Mapping[str, Bad]] = {
    "degree": DEGREES,
    "reuse": WAITS,
    "target": TARGETS,
    "replicas": REPLICAS,
    "alone": ALONE,
}
REFUSED = {f"{table}: {name}": bad for table, cases in TABLES.items() for name, bad in cases.items()}


@pytest.mark.parametrize("command", [["run", "--out", "run"], ["validate"]], ids=lambda words: words[0])
@pytest.mark.parametrize("bad", REFUSED.values(), ids=REFUSED)
def test_what_peers_cannot_do_is_one_line(here: Path, bad: Bad, command: list[str]) -> None:
    """Exit code 2, nothing on stdout, and no file; the line starts with the key, or the file."""
    bad.prepare(here)
    check(here, [command[0], "scenario.toml", *command[1:], *settings(bad.overrides)], bad.says)


def test_all_of_them_are_tried() -> None:
    """The methods that the lists above go by."""
    assert set(REUSING) >= {"dadpfl", "dfedavg", "dfedsam", "dpsgd"}
    assert set(PEERS) >= {*REUSING, "beer", "dfedavgm", "dispfl", "gossipfl"}
