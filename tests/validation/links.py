"""Shared links: rates solved by hand, exact water-filling, queueing theory, and links that nobody shares."""

from __future__ import annotations

import csv
import math
import tempfile
from collections.abc import Iterator
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from edgesim.core.rng import Key
from tests.validation.checks import Item, Row, close, within, worst
from tests.validation.work import simulate_work, uplink_ends
from tests.world.water_filling import finish_times

MBIT_BYTES = 125_000
WIDE = {"name": "shared", "up": "1 Tbit/s", "down": "1 Tbit/s"}  # access that limits nobody


# --- by hand ------------------------------------------------------------------------------------------------


def by_hand() -> list[Row]:
    """Return the ends of three schedules of uploads; sizes in Mbit, rates in Mbit/s."""
    return [*_arrivals(), *_own_links(), *_three_bottlenecks()]


def _arrivals() -> Iterator[Row]:
    # 8 Mbit/s. A (80) alone until 2 s moves 16; then with B (24) 4 each until C (8) comes at 4 s: left 56, 16, 8.
    # 8/3 each: C ends after 3 s, at 7 s; left 48, 8. 4 each: B ends at 9 s; A has 40 left, 8/s: 14 s.
    sizes = (80, 24, 8)
    ends = uplink_ends((0, 2, 4), _bytes(sizes), network=WIDE, topology={"name": "star", "server_down": "8 Mbit/s"})
    for name, expected_s, found_s in zip("ABC", (14, 9, 7), ends, strict=True):
        yield close(f"one link, three starts: end of {name}, s", expected_s, found_s)


def _own_links() -> Iterator[Row]:
    # Server 12; own links 1, 2, 8, 100. The first two take 1 and 2, the others share 9: 4.5 each. The third (36) ends
    # at 8 s; the fourth, 63 - 36 = 27 left, has 9 until the first two end at 10 s (10/1, 20/2), then 9 left at 12.
    ends = uplink_ends(
        (0, 0, 0, 0), _bytes((10, 20, 36, 63)), fleet=_fleet(1, 2, 8, 100), **_server({"server_down": "12 Mbit/s"})
    )
    for name, expected_s, found_s in zip("1234", (10, 10, 8, Fraction(43, 4)), ends, strict=True):
        yield close(f"own links 1, 2, 8, 100 below 12 Mbit/s: end of {name}, s", float(expected_s), found_s)


def _three_bottlenecks() -> Iterator[Row]:
    # Two edge servers of 6 with three devices each, server 10; of the second three, own links 1/2 and 1 bind.
    # At first edge 1 binds (2 each), and the sixth takes what the server has left: 10 - 6 - 3/2 = 5/2.
    # 2 s: the first (4) ends. The server binds: (10 - 3/2) / 3 = 17/6 each. Left: 2, 4, and 18 - 5 = 13 of the sixth.
    # 2 + 12/17 = 46/17: the second ends. Two share 17/2: 17/4 each (the sixth could take 9/2). Left: 2 and 11.
    # 46/17 + 8/17 = 54/17: the third ends. The sixth has its edge server's 9/2, 9 left: 2 s more, 88/17.
    # The fourth and fifth have had 1/2 and 1 all the time: 3 / (1/2) = 6, 7 / 1 = 7.
    ends = uplink_ends(
        (0,) * 6,
        _bytes((4, 6, 8, 3, 7, 18)),
        fleet=_fleet(1000, 1000, 1000, 0.5, 1, 1000),
        **_server({"name": "tree", "edge_servers": 2, "edge_up": "6 Mbit/s", "server_down": "10 Mbit/s"}),
    )
    expected = (2, Fraction(46, 17), Fraction(54, 17), 6, 7, Fraction(88, 17))
    for name, expected_s, found_s in zip("123456", expected, ends, strict=True):
        yield close(f"tree, three bottlenecks: end of {name} at {expected_s} s", float(expected_s), found_s)


def _bytes(sizes_mbit: tuple[int, ...]) -> list[int]:
    return [MBIT_BYTES * size for size in sizes_mbit]


def _fleet(*up_mbps: float) -> list[dict[str, Any]]:
    return [{"cpu": {"flops_per_s": 1.0}, "network": {**WIDE, "up": 1e6 * rate}} for rate in up_mbps]


def _server(topology: dict[str, Any]) -> dict[str, Any]:
    return {"network": WIDE, "topology": {"name": "star", **topology}}


# --- queues -------------------------------------------------------------------------------------------------

CUSTOMERS, BATCHES = 20_000, 19  # one twentieth is warm-up


def queues() -> list[Row]:
    """Return mean stays of Poisson arrivals of 1 MB each on an uplink that takes 1 s for one alone."""
    arrivals_s = {load: np.cumsum(Key(7).numpy().exponential(1 / load, CUSTOMERS)) for load in (0.6, 0.7)}
    fifo_s, fair_s = (_ends(arrivals_s[load], discipline) for load, discipline in ((0.6, "fifo"), (0.7, "fair")))
    return [
        worst(
            f"in order of arrival, load 0.6: worst of {CUSTOMERS:,} ends, s", _lindley(arrivals_s[0.6]), fifo_s, 1e-9
        ),
        *_stay("in order of arrival, load 0.6", 1 + 0.6 / (2 * (1 - 0.6)), fifo_s - arrivals_s[0.6]),
        *_stay("shared fairly, load 0.7", 1 / (1 - 0.7), fair_s - arrivals_s[0.7]),
    ]


def _ends(arrivals_s: np.ndarray, discipline: str) -> np.ndarray:
    server = {"name": "star", "server_down": "8 Mbit/s"}
    network = {**WIDE, "discipline": discipline}
    return uplink_ends(arrivals_s.tolist(), [1_000_000] * len(arrivals_s), network=network, topology=server)


def _lindley(arrivals_s: np.ndarray) -> list[float]:
    ends, free_s = [], 0.0
    for arrival_s in arrivals_s.tolist():
        free_s = max(arrival_s, free_s) + 1.0
        ends.append(free_s)
    return ends


def _stay(what: str, expected_s: float, stay_s: np.ndarray) -> Iterator[Row]:
    """Yield the mean after warm-up, to three standard errors of batch means, and how wide that bound is."""
    means_s = stay_s[CUSTOMERS // 20 :].reshape(BATCHES, -1).mean(axis=1)
    bound_s = 3 * means_s.std(ddof=1) / math.sqrt(BATCHES)
    yield within(f"{what}: mean stay, s", expected_s, means_s.mean(), bound_s)
    yield within(f"{what}: the bound as a share of the mean", 0, bound_s / expected_s, 0.1)


# --- alone --------------------------------------------------------------------------------------------------

POWER = {"name": "power", "idle": "2 W", "busy": "5 W", "transmit": "1 W", "receive": "0.5 W"}
PHASES = ("down_s", "up_s", "link_wait_s", "end_s", "down_j", "compute_j", "up_j")


def alone() -> list[Row]:
    """Return one device's job over links that could be shared, beside its job over links of its own."""
    own = {"name": "fixed", "up": "5.1 Mbit/s", "down": "3.7 Mbit/s", "latency": "30 ms"}
    fixed = _one_job(own)
    rows = []
    for discipline in ("fair", "fifo"):
        access = {"name": "shared", "discipline": discipline, "up": "7.3 Mbit/s", "down": "20 Mbit/s", "latency": 0.03}
        shared = _one_job(access, topology={"name": "star", "server_up": "3.7 Mbit/s", "server_down": "5.1 Mbit/s"})
        for name in PHASES:
            rows.append(within(f"{discipline}: {name}", fixed[name], shared[name], 1e-9))
    return rows


def _one_job(network: dict[str, Any], **changes: Any) -> Any:
    return simulate_work([12.5], [2_345_678], [1_234_567], network=network, energy=POWER, **changes)[1].iloc[0]


# --- water-filling ------------------------------------------------------------------------------------------


def many_flows() -> list[Row]:
    """Return the ends of many random transfers beside those of exact water-filling."""
    return [_one_uplink(1000), *_tree(100)]


def _one_uplink(flows: int) -> Row:
    draw = Key(1).numpy()
    start_s, sizes = draw.uniform(0, 100, flows).tolist(), draw.lognormal(11, 1, flows).astype(int).tolist()
    network = {**WIDE, "up": {"log_uniform": [2e5, 2e7]}}
    topology = {"name": "star", "server_down": "12 Mbit/s"}
    simulation, jobs = simulate_work(start_s, sizes, network=network, topology=topology)
    speeds_bps = {**dict(enumerate(simulation.parts.fleet.up_bps.tolist())), "server": 12e6}
    transfers = [(start_s[i], [i, "server"], sizes[i]) for i in range(flows)]
    expected_s = finish_times(speeds_bps, transfers)
    return worst(f"one uplink, random transfers: worst of {flows:,} ends, s", expected_s, jobs["end_s"], 1e-9, True)


def _tree(devices: int) -> Iterator[Row]:
    """Yield ends of a download and an upload of every device of a random tree; each begins after its own latency."""
    draw = Key(2).numpy()
    ways, speeds_bps = _random_tree(draw, devices)
    latency_s, work_s = (draw.uniform(0, 20, devices).tolist() for _ in range(2))
    down_bytes, up_bytes = (draw.lognormal(13, 1, devices).astype(int).tolist() for _ in range(2))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "links.csv"
        _write(file, ways, speeds_bps, latency_s)
        topology = {"name": "file", "file": str(file)}
        jobs = simulate_work(work_s, up_bytes, down_bytes, network=WIDE, topology=topology)[1]
    turned = [[(b, a) for a, b in reversed(way)] for way in ways]
    down_end_s = finish_times(speeds_bps, list(zip(latency_s, turned, down_bytes, strict=True)))
    parts_s = zip(map(float, down_end_s), work_s, latency_s, strict=True)
    up_end_s = finish_times(speeds_bps, list(zip(map(sum, parts_s), ways, up_bytes, strict=True)))
    for what, expected_s, found_s in (("down", down_end_s, jobs["down_s"]), ("up", up_end_s, jobs["end_s"])):
        yield worst(f"random tree, transfers {what}: worst of {devices} ends, s", expected_s, found_s, 1e-9, True)


def _random_tree(draw: np.random.Generator, devices: int) -> tuple[list[list[tuple[int, int]]], dict[Any, float]]:
    """Return the links from every device to the server, node 0, and the speed of all links in both directions.

    Devices hang on 7 edge servers, these on 3 larger ones, these on one node that is wired to the server.
    """
    edge, upper, top = devices + 1, devices + 8, devices + 11
    above = {top: 0, **{upper + i: top for i in range(3)}}
    above |= {edge + i: upper + int(draw.integers(3)) for i in range(7)}
    above |= {1 + i: edge + int(draw.integers(7)) for i in range(devices)}
    speeds_bps = {link: float(draw.uniform(1e6, 2e7)) for pair in above.items() for link in (pair, pair[::-1])}
    ways = []
    for device in range(1, 1 + devices):
        nodes = [device]
        while nodes[-1]:
            nodes.append(above[nodes[-1]])
        ways.append(list(pairwise(nodes)))
    return ways, speeds_bps


def _write(file: Path, ways: list[list[tuple[int, int]]], speeds_bps: dict[Any, float], latency_s: list[float]) -> None:
    """Write the file of links that a scenario reads; only the devices' own links have a latency."""
    links = {link: 0.0 for way in ways for link in way}
    links |= {way[0]: delay_s for way, delay_s in zip(ways, latency_s, strict=True)}
    with file.open("w", newline="") as text:
        rows = csv.writer(text)
        rows.writerow(("a", "b", "bps_ab", "bps_ba", "latency_s"))
        rows.writerows((a, b, speeds_bps[a, b], speeds_bps[b, a], delay_s) for (a, b), delay_s in links.items())


ITEMS = (
    Item(
        "Max-min fair sharing by hand",
        "schedules of uploads that compete for one link, for a server behind own links, and in a tree where own link, "
        "edge server and server bind in turn; rates and ends worked out in fractions",
        by_hand,
    ),
    Item(
        "Queues",
        f"{CUSTOMERS:,} Poisson arrivals of 1 s of work: M/D/1 in order of arrival stays S + rho S / (2 (1 - rho)) on "
        "average (Pollaczek and Khinchine), processor sharing S / (1 - rho) (Kleinrock); tolerance: three standard "
        f"errors of {BATCHES} batch means after a warm-up of one twentieth. Each end in order of arrival by Lindley's "
        "recursion",
        queues,
    ),
    Item("One flow on shared links", "the same job over fixed links of its own, as fast as its path is slow", alone),
    Item(
        "Many flows on shared links",
        "exact water-filling from event to event in decimal numbers of 50 digits (`tests/world/water_filling.py`)",
        many_flows,
    ),
)
