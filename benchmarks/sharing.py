"""How much does an event on shared links cost? It must not depend on the devices that have no transfer.

Links that are shared fairly, and links that serve one transfer after another (fifo). Transfers are under way in
networks of ever more devices, then ever more of them on a server's uplink behind devices' own links, in a tree of
edge servers and on a random regular graph. Each end is followed by a start, so their number stays.

Run: python benchmarks/sharing.py [--devices N ...] [--active N ...] [--events N]
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TypeAlias

import numpy as np

from edgesim.core.rng import Key
from edgesim.world.contention.base import SharedLinks
from edgesim.world.contention.fair import FairLinks
from edgesim.world.contention.fifo import FifoLinks
from edgesim.world.topology.base import Access, Paths, Tier, TreePaths, Wire, random_regular
from rows import Figures, Found, alone, compared, in_turns, of

SIZE_BYTES = 1e6
MESH, EDGES = 200, 20
Ends: TypeAlias = Callable[[int], tuple[int, int]]  # random device -> from node, to node
Case: TypeAlias = tuple[Paths, int, int, Ends]  # with devices and transfers under way
NOTE = "Host time of an event, a start or an end of a transfer."
QUICK = {"devices": (1_000, 2_000), "active": (10, 100), "events": 100}


def access(devices: int) -> Access:
    """Return connections of 1 to 20 Mbit/s."""
    draw = Key(1).numpy()
    return Access(draw.uniform(1e6, 20e6, devices), draw.uniform(1e6, 20e6, devices), np.zeros(devices))


def star(devices: int, active: int) -> TreePaths:
    """Return a star whose server gives each of the active devices 5 Mbit/s on average."""
    return TreePaths(access(devices), Wire(5e6 * active, 5e6 * active))


def tree(devices: int, active: int) -> TreePaths:
    """Return a tree of edge servers and a server that all may slow transfers down."""
    return TreePaths(access(devices), Wire(5e6 * active, 5e6 * active), [Tier(EDGES, Wire(4e5 * active, 4e5 * active))])


def event_us(links: SharedLinks, paths: Paths, devices: int, active: int, events: int, ends: Ends) -> float:
    """Return microseconds per event while `active` transfers are under way, each of another random device."""
    draw = Key(2).numpy()
    order = draw.permutation(devices)  # a device has one transfer at a time
    chosen = order[np.arange(active + events) % devices].tolist()
    sizes = (SIZE_BYTES * draw.uniform(0.5, 1.5, active + events)).tolist()
    routes = [paths.path(*ends(device)) for device in chosen]
    for flow in range(active):
        links.admit(flow, routes[flow], sizes[flow], 0.0)
    links.next_done()
    start_s = time.perf_counter()
    for flow in range(active, active + events // 2):
        due = links.next_done()
        assert due is not None
        now_s, done = due
        links.finish(done, now_s)
        links.next_done()  # else the end and the start would be settled as one
        links.admit(flow, routes[flow], sizes[flow], now_s)
    return 1e6 * (time.perf_counter() - start_s) / (events // 2 * 2)


def up(device: int) -> tuple[int, int]:
    """Return the nodes of an upload."""
    return 1 + device, 0


def to_a_peer(device: int) -> tuple[int, int]:
    """Return the nodes of a transfer among MESH peers."""
    return 1 + device, 1 + (device + 77) % MESH


def rows(
    devices: tuple[int, ...] = (1_000, 10_000, 100_000, 1_000_000),
    active: tuple[int, ...] = (10, 100, 1_000, 10_000),
    events: int = 4_000,
    repeats: int = 3,
) -> Iterator[Found]:
    """Yield microseconds an event: with ever more devices, then with ever more transfers on three topologies."""
    few, many, mesh = 100, max(devices), random_regular(access(MESH), 4, Key(3), Wire())
    groups = [
        (f"star, {few} transfers", {f"{n:,} devices": (star(n, few), n, few, up) for n in devices}),
        ("star", {f"{a:,} transfers": (star(many, a), many, a, up) for a in active}),
        (f"{EDGES} edge servers", {f"{a:,} transfers": (tree(many, a), many, a, up) for a in active}),
        (
            f"random regular graph, {MESH} peers",
            {f"{a:,} transfers": (mesh, MESH, a, to_a_peer) for a in active if a < MESH},
        ),
    ]
    for name, discipline in {"fair": FairLinks, "fifo": FifoLinks}.items():
        for about, cases in groups:
            contestants = {label: _measurement(discipline, case, events) for label, case in cases.items()}
            found = of(in_turns(contestants, repeats), "us")
            yield from compared(found, next(iter(found)), "us", NOTE, about=f"{name}, {about}")


def _measurement(discipline: type[SharedLinks], case: Case, events: int) -> Callable[[], Figures]:
    paths, devices, active, ends = case
    return lambda: {"us": event_us(discipline(paths.capacity_bps), paths, devices, active, events, ends)}


if __name__ == "__main__":
    alone(rows, QUICK)
