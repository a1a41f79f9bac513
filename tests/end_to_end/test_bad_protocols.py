"""Protocols that cannot work, with this fleet, this method or these files, are refused in one line before a run."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.calling import call
from tests.end_to_end.test_bad_input import Bad, check
from tests.end_to_end.test_bad_physics import file_of, keys_of, settings

# TINY has 4 devices in 2 blocks and asks 2 of them a round.
FEDBUFF, DFEDAVG, RING = "method=fedbuff", "method=dfedavg", "peers=ring"
protocol, selection = partial(keys_of, "protocol"), partial(keys_of, "selection")
DEADLINE, QUANTILE, MAD = (
    "name='deadline', deadline=9",
    "name='deadline', rule='quantile'",
    "name='deadline', rule='mad'",
)
BUFFERED, UNIFORM = "name='buffered', concurrency=2", "name='uniform'"

COORDINATORS = {
    "unknown key": protocol("k: unknown key (allowed: none)", "name='sync', k=3"),
    "key of another": protocol(
        "keeps: unknown key; did you mean 'keep'? (allowed: ke", "name='over_selection', keeps=1"
    ),
    "keeps more than asked": protocol(
        "keep: must be at most the 2 devices asked a round, found 3", "name='over_selection', keep=3"
    ),
    "keeps more than there are": protocol(
        "keep: must be at most the 4 devices asked a round, found 5", "name='over_selection', keep=5", "selection=all"
    ),
    "keeps none": protocol("keep: must be greater than or equal to 1, got 0", "name='over_selection', keep=0"),
    "keeps unknown": protocol("keep: is missing", "name='over_selection'"),
    "more than asked": protocol("minimum: must be at most the 2 devices asked a round", f"{DEADLINE}, minimum=3"),
    "fewer than none": protocol("minimum: must be greater than or equal to 0, got -1", f"{DEADLINE}, minimum=-1"),
    "no deadline": protocol("deadline: rule 'fixed' needs one, in seconds", "name='deadline', rule='fixed'"),
    "deadline at once": protocol("deadline: must be above 0 s, got '0 s'", "name='deadline', deadline='0 s'"),
    "deadline without end": protocol("deadline: must be finite, got inf", "name='deadline', deadline=inf"),
    "no quantile": protocol("quantile: must be greater than 0, got 0", f"{QUANTILE}, quantile=0"),
    "quantile in percent": protocol("quantile: must be less than or equal to 1, got 80", f"{QUANTILE}, quantile=80"),
    "negative spread": protocol("k: must be greater than or equal to 0, got -1", f"{MAD}, k=-1"),
    "endless spread": protocol("k: must be a finite number, got inf", f"{MAD}, k=inf"),
    "no memory": protocol("rounds: must be greater than or equal to 1, got 0", f"{MAD}, rounds=0"),
    "unknown rule": protocol("rule: must be 'fixed', 'quantile' or 'mad', got 'mean'", "name='deadline', rule='mean'"),
    "late counts more": protocol(
        "late_weight: must be less than or equal to 1, got 1.5", f"{DEADLINE}, late_weight=1.5"
    ),
    "late counts against": protocol("late_weight: must be greater than or equal to 0", f"{DEADLINE}, late_weight=-1"),
    "nobody at work": protocol(
        "concurrency: must be greater than or equal to 1", "name='buffered', concurrency=0", FEDBUFF
    ),
    "more at work than there are": protocol(
        "concurrency: must be at most the 4 devices of the fleet, found 5", "name='buffered', concurrency=5", FEDBUFF
    ),
    "any number at work": protocol("concurrency: is missing", "name='buffered'", FEDBUFF),
    "more tiers than devices": protocol(
        "tiers: must be at most the 4 devices, found 5", "name='tiers', tiers=5", "method='fedat'"
    ),
    "no tier": protocol("tiers: must be greater than or equal to 1, got 0", "name='tiers', tiers=0", "method='fedat'"),
    "buffer of none": protocol("buffer: must be greater than or equal to 1, got 0", f"{BUFFERED}, buffer=0", FEDBUFF),
    "stale before it is made": protocol(
        "max_staleness: must be greater than or equal to 0, got -1", f"{BUFFERED}, max_staleness=-1", FEDBUFF
    ),
    "age that counts for nothing": protocol("a: must be greater than 0, got 0", f"{BUFFERED}, a=0", FEDBUFF),
    "age that counts for all": protocol("a: must be a finite number, got inf", f"{BUFFERED}, a=inf", FEDBUFF),
    "unknown decay": protocol(
        "staleness: must be 'constant', 'polynomial' or 'hinge', got 'linear'",
        f"{BUFFERED}, staleness='linear'",
        FEDBUFF,
    ),
    "nobody asked": selection("count: must be greater than or equal to 1, got 0", f"{UNIFORM}, count=0"),
    "more asked than there are": selection(
        "count: must be at most the 4 devices of the fleet, fo", f"{UNIFORM}, count=5"
    ),
    "half a device": selection("count: must be a whole number, got 2.5", f"{UNIFORM}, count=2.5"),
    "more than all": selection("fraction: must be less than or equal to 1, got 1.5", f"{UNIFORM}, fraction=1.5"),
    "both": Bad("selection: give exactly one of count and fraction", ["selection.fraction=0.5"]),
}

PAIRS = {
    "rounds without rounds": Bad(
        "protocol.name: fedavg runs on deadline, sync, found buffered", [f"protocol={{{BUFFERED}}}"]
    ),
    "buffer in rounds": Bad("protocol.name: fedbuff runs on buffered, found sync", [FEDBUFF]),
    "asynchronous in rounds": Bad(
        "protocol.name: fedasync runs on buffered, found deadline",
        ["method=fedasync", f"protocol={{{DEADLINE}}}"],
    ),
    "peers with a deadline": Bad(
        "protocol.name: dfedavg runs on sync, found deadline", [DFEDAVG, RING, f"protocol={{{DEADLINE}}}"]
    ),
    "peers with a buffer": Bad(
        "protocol.name: dpsgd runs on sync, found buffered", ["method=dpsgd", RING, f"protocol={{{BUFFERED}}}"]
    ),
    "no peers": Bad("peers: dpsgd needs to know who hears whom, such as peers = 'ring'", ["method=dpsgd"]),
    "needless peers": Bad("peers: fedavg has a server, its devices exchange nothing among themselves", [RING]),
    "one-way weights": Bad(
        "method.mixing: metropolis needs peers that hear each other, but device 1 hears device 0 and not the other way",
        ["method={name='dfedavg', mixing='metropolis'}", "peers=exponential"],
    ),
    "restarts of no server": Bad(
        "failures.1.name: server_restart needs a server, found peers",
        [DFEDAVG, RING, "failures=[{name='crash', probability=0.1}, {name='server_restart', mean_time='1 h'}]"],
    ),
    "outages of peers without end": Bad(
        "failures.up: a round in which device 0 exchanges 4 messages ",
        [DFEDAVG, RING, "failures={name='link_outage', up='1 ns', down=1}"],
    ),
    "battery and sleep": Bad(
        "energy.sleep: a device with a battery draws idle power while it is on; leave sleep out",
        ["fleet.0.battery.capacity='5 Wh'", "energy.sleep='0.1 W'"],
    ),
}


def peers(says: str, keys: str) -> Bad:
    """A graph that 4 devices cannot be."""
    return Bad(f"peers.{says}", [DFEDAVG, f"peers={{{keys}}}"])


def heard(says: str, more: str = "", circle: str = "0,1\n1,2\n2,3\n3,0\n") -> Bad:
    """Peers of a file: a circle of four, and more."""
    prepare = file_of("peers.csv", f"source,target\n{circle}{more}")
    return Bad(f"{{here}}/peers.csv{says}", [DFEDAVG, "peers={name='file', file='peers.csv'}"], prepare=prepare)


GRAPHS = {
    "one device": Bad(
        "peers: an exchange among devices needs at least 2 of them, got 1",
        [DFEDAVG, RING, "fleet=[{cpu={flops_per_s=1e8}}]", "selection=all"],
    ),
    "more neighbours than others": peers("degree: must be below the 4 devices, got 10", "name='random'"),
    "no neighbours": peers("degree: must be greater than or equal to 1, got 0", "name='random', degree=0"),
    "circle too small": peers("degree: must be below the 4 devices, got 4", "name='expander', degree=4"),
    "half a side": peers("degree: must be a multiple of 2, got 3", "name='expander', degree=3"),
    "groups of one": peers("size: must be greater than or equal to 2, got 1", "name='gossip_match', size=1"),
    "group too large": peers("size: must be at most the 4 devices, got 5", "name='gossip_match', size=5"),
    "hubs alone": peers("hubs: must be below the 4 devices, got 4", "name='star_of_stars', hubs=4"),
    "no hub": peers("hubs: must be greater than or equal to 1, got 0", "name='star_of_stars', hubs=0"),
    "unknown graph": peers("name: unknown peers 'rign'; did you mean 'ring'? (known: ", "name='rign'"),
    "nobody heard": heard(": leaves device 0 alone: it is the target of no line", circle="0,1\n1,2\n2,3\n"),
    "unknown device": heard(", line 6: unknown device 4; those of the fleet are 0 to 3", "4,0\n"),
    "hears itself": heard(", line 6: source and target are one device, got 1", "1,1\n"),
    "heard twice": heard(", line 6: source 0, target 1 stands in line 2 already", "0,1\n"),
    "heard by nobody": heard(", line 6: must be two device numbers, got '0'", "0\n"),
    "no number": heard(", line 6: must be two device numbers, got 'x,1'", "x,1\n"),
}


def seen(says: str, rows: str, header: str = "device,start,end") -> Bad:
    """Devices that are there at the times of a file, whose first row is line 2."""
    prepare = file_of("seen.csv", f"{header}\n{rows}")
    return Bad(f"{{here}}/seen.csv{says}", ["availability={name='trace', file='seen.csv'}"], prepare=prepare)


SECONDS = "must be a finite number of seconds of at least 0, got"
TIMES = {
    "overlap": seen(" line 4: overlaps the interval of line 2", "0,0,10\n1,0,9\n0,9,20\n"),
    "overlap out of order": seen(" line 3: overlaps the interval of line 2", "0,9,20\n0,0,10\n"),
    "reversed": seen(" line 3: end must be after start, got '5'", "0,0,9\n1,10,5\n"),
    "without length": seen(" line 2: end must be after start, got '5'", "0,5,5\n"),
    "unknown device": seen(" line 3: device must be a number from 0 to 3, got '4'", "0,0,9\n4,0,9\n"),
    "no device": seen(" line 2: device must be a number from 0 to 3, got ''", ",0,9\n"),
    "half a device": seen(" line 2: device must be a number from 0 to 3, got '0.5'", "0.5,0,9\n"),
    "before the run": seen(f" line 2: start {SECONDS} '-1'", "0,-1,9\n"),
    "a date": seen(f" line 3: start {SECONDS} '2024-05-01 08:00'", "0,0,9\n1,2024-05-01 08:00,9\n"),
    "no number": seen(f" line 2: end {SECONDS} 'nan'", "0,0,nan\n"),
    "without end": seen(f" line 2: end {SECONDS} 'inf'", "0,0,inf\n"),
    "a column missing": seen(": needs the columns device, start, end; got device, start", "0,0\n", "device,start"),
    "a column more": seen(": needs the columns device, start, end; got device, ", "0,0,9,x\n", "device,start,end,why"),
    "a cell missing": seen(" line 3: has not as many values as the header has names: 2, not 3", "0,0,9\n1,0\n"),
    "no rows": seen(": holds no rows", ""),
    "gone before it comes": Bad(
        "availability.leave: must be after join; device 0 joins at 9 s and leaves at 5 s",
        ["availability={name='lifetime', join='9 s', leave='5 s'}"],
    ),
    "never by chance": Bad("availability.p: must be greater than 0, got 0", ["availability={name='bernoulli', p=0}"]),
}


def failing(says: str, *parts: str) -> Bad:
    """Failures that contradict themselves or each other."""
    return Bad(f"failures{says}", [f"failures=[{', '.join(f'{{{part}}}' for part in parts)}]"])


CUT, CRASH, RESTART = "name='link_outage', up='9 s', down='1 s'", "name='crash'", "name='server_restart'"
FAILURES = {
    "two laws": failing(
        ".0: crash needs probability or mean_time, and not both", f"{CRASH}, probability=1, mean_time=9"
    ),
    "no law": failing(".1: crash needs probability or mean_time, and not both", CUT, CRASH),
    "phase of a time": failing(
        ".0.phase: goes with probability, not with mean_time", f"{CRASH}, mean_time=9, phase='upload'"
    ),
    "unknown phase": failing(
        ".0.phase: must be 'any', 'download', 'training' or 'upload', got", f"{CRASH}, probability=1, phase='nap'"
    ),
    "more than certain": failing(".0.probability: must be less than or equal to 1, got 2", f"{CRASH}, probability=2"),
    "more than all": failing(".0.share: must be less than or equal to 1, got 2", f"{CRASH}, probability=1, share=2"),
    "links cut twice": failing(": only one of them may cut the links, found 2", CUT, CUT),
    "two laws of restarts": failing(
        ".0: server_restart needs mean_time or at, and not both", f"{RESTART}, mean_time=9, at=[9]"
    ),
    "restart at no time": failing(".0.at: must have at least 1 value, got []", f"{RESTART}, at=[]"),
    "restart before the run": failing(".0.at.0: must be above 0 s, got 0", f"{RESTART}, at=[0]"),
    "all of the work": failing(".0.least: must be less than 1, got 1", "name='partial_work', probability=1, least=1"),
}

TABLES = {
    "protocol": COORDINATORS,
    "pair": PAIRS,
    "peers": GRAPHS,
    "availability": TIMES,
    "failures": FAILURES,
}
REFUSED = {f"{table}: {name}": bad for table, cases in TABLES.items() for name, bad in cases.items()}


@pytest.mark.parametrize("bad", REFUSED.values(), ids=REFUSED)
def test_an_impossible_protocol_is_one_line(here: Path, bad: Bad) -> None:
    """Key or file with its line, what was found and what is allowed; nothing is written."""
    bad.prepare(here)
    check(here, ["run", "scenario.toml", "--out", "run", *settings(bad.overrides)], bad.says)


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ("asks=[1, 2], awaits=[0]", "device 1 waits for device 0, which was not asked"),
        ("asks=[0, 1, 2, 3], awaits=[9]", "device 0 waits for device 9, which was not asked"),
        ("asks=[0, 2], awaits=[2]", "devices wait for one another in a circle: 2 -> 2"),
        ("asks=[], awaits=[]", "round 0: the method asked no device"),
    ],
)
def test_a_method_that_waits_in_vain_is_one_line(here: Path, keys: str, says: str) -> None:
    """Only its plan shows it, so the run has begun: its folder says that it failed."""
    method = f"method={{name='tests.plugins.impatient:Impatient', {keys}}}"
    code, out, err = call("run", "scenario.toml", "--out", "run", *settings([method, RING]))
    assert (code, out, err) == (2, "", f"error: {says}\n")
    assert '"status": "failed"' in (here / "run" / "manifest.json").read_text()
