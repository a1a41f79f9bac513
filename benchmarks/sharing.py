"""How much does an event on shared links cost? It must not depend on the devices that have no transfer.

Run: python benchmarks/sharing.py [--events N]
Prints microseconds per event, a start or an end of a transfer, for fair and for fifo links: 100 transfers under way in
networks of a thousand to a million devices, then ever more transfers on one server uplink behind devices' own links,
then in a tree of edge servers and on a random regular graph. Each end is followed by a start, so their number stays.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np

from edgesim.core.rng import Key
from edgesim.world.contention.fair import FairLinks, SharedLinks
from edgesim.world.contention.fifo import FifoLinks
from edgesim.world.topology.base import Access, Paths, Tier, TreePaths, Wire, random_regular

SIZE_BYTES = 1e6
Ends = Callable[[int], tuple[int, int]]  # random device -> from node, to node


def access(devices: int) -> Access:
    """Return connections of 1 to 20 Mbit/s."""
    draw = Key(1).numpy()
    return Access(draw.uniform(1e6, 20e6, devices), draw.uniform(1e6, 20e6, devices), np.zeros(devices))


def star(devices: int, active: int) -> TreePaths:
    """Return a star whose server gives each of the active devices 5 Mbit/s on average."""
    return TreePaths(access(devices), Wire(5e6 * active, 5e6 * active))


def tree(devices: int, active: int) -> TreePaths:
    """Return a tree of 20 edge servers and a server that all may slow transfers down."""
    return TreePaths(access(devices), Wire(5e6 * active, 5e6 * active), [Tier(20, Wire(4e5 * active, 4e5 * active))])


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


def row(name: str, paths: Paths, devices: int, active: int, events: int, ends: Ends) -> None:
    """Print a line of the table."""
    costs = [
        event_us(discipline(paths.capacity_bps), paths, devices, active, events, ends)
        for discipline in (FairLinks, FifoLinks)
    ]
    print(f"{name:<24}{devices:>10,}{active:>10,}{costs[0]:>10.1f}{costs[1]:>10.1f}")


def up(device: int) -> tuple[int, int]:
    """Return the nodes of an upload."""
    return 1 + device, 0


def main() -> None:
    """Print the table."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--events", type=int, default=4_000)
    events = options.parse_args().events
    print(f"{'us per event':<24}{'devices':>10}{'active':>10}{'fair':>10}{'fifo':>10}")
    for devices in (1_000, 10_000, 100_000, 1_000_000):
        row("star", star(devices, 100), devices, 100, events, up)
    for active in (1, 10, 100, 1_000, 10_000):
        row("star", star(100_000, active), 100_000, active, events, up)
    for active in (10, 100, 1_000, 10_000):
        row("20 edge servers", tree(100_000, active), 100_000, active, events, up)
    mesh = random_regular(access(200), 4, Key(3), Wire())
    for active in (10, 100):
        row("random regular, peers", mesh, 200, active, events // 4, lambda i: (1 + i, 1 + (i + 77) % 200))


if __name__ == "__main__":
    main()
