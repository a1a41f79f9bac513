"""The server's work on a merge: its updates wait in a queue, and several workers take them from it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace
from math import inf

from edgesim.core.job import DELIVERED, Completion
from edgesim.core.learner import ServerStep
from edgesim.core.limits import check_amount
from edgesim.core.view import Setting
from edgesim.engine.pricing import averaging_flops


@dataclass(eq=False, slots=True)
class Merge:
    """A merge that the server, or an edge server, is at."""

    edge: int | None  # None: the server
    since_s: float
    workers_s: Sequence[float]  # seconds that each worker needs for it


def merge_s(
    result: ServerStep, completions: Sequence[Completion], setting: Setting, flops_per_s: float, workers: int, key: str
) -> list[float]:
    """Return the seconds of each worker of a server, or edge server, for a merge.

    Raises ConfigError that names the section `key` if that is too much.
    """
    if flops_per_s == inf:
        return [0.0]
    updates_flops = averaging_flops([each.job for each in completions if each.outcome in DELIVERED], setting)
    flops = workers_flops(updates_flops, result.facts.get().server_flops, workers)
    workers_s = [each / flops_per_s for each in flops]
    check_merge_s(key, max(workers_s))
    return workers_s


def check_merge_s(key: str, merge_s: float) -> None:
    """Raise ConfigError that names the section `key` if a merge takes too many seconds."""
    who = "the server" if key == "server" else "an edge server"
    check_amount(f"{key}.flops_per_s", f"a merge of {who}", merge_s, "s")


def spans(workers_s: Sequence[float], now_s: float) -> Iterator[tuple[float, float]]:
    """Yield when each worker began and ended; all began together, and the longest ends now."""
    longest_s = max(workers_s)
    began_s = now_s - longest_s
    for busy_s in workers_s:
        yield began_s, now_s if busy_s == longest_s else began_s + busy_s


def workers_flops(updates_flops: Sequence[float], own_flops: float, workers: int) -> list[float]:
    """Return the FLOPs that each worker does in a merge, shape (workers,); all begin together and none pauses.

    Updates are taken in their order by the worker that is free first, of several the one of the lowest number; one is
    worked on by one worker. `own_flops`: what the method does beside averaging, when all updates are through; the
    worker that was busy last goes on with it alone. So the merge takes as long as its longest worker.
    Source: Graham, "Bounds on Multiprocessing Timing Anomalies", SIAM J. Appl. Math. 17 (1969), list scheduling.
    """
    if workers == 1:
        return [own_flops + sum(updates_flops)]
    free = [(0.0, worker) for worker in range(workers)]
    heapify(free)
    for flops in updates_flops:
        done, worker = free[0]
        heapreplace(free, (done + flops, worker))
    loads = [done for done, _ in sorted(free, key=lambda each: each[1])]
    last = loads.index(max(loads))
    loads[last] += own_flops
    return loads


def worked_s(workers_s: Sequence[float], elapsed_s: float) -> list[float]:
    """Return the seconds that each worker has worked, `elapsed_s` after all began, while the longest still does."""
    longest_s = max(workers_s)
    return [elapsed_s if busy_s == longest_s else min(busy_s, elapsed_s) for busy_s in workers_s]
