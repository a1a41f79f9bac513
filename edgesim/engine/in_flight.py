"""What jobs that still run have spent up to an instant: nothing is charged, and nothing changes by asking."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from math import inf
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from edgesim.contracts import Arr, Job
from edgesim.engine.accounts import Accounts
from edgesim.engine.carriers import Carriers
from edgesim.engine.transfers import ON_TIME_S
from edgesim.world.fleet import Fleet

_PRICES = attrgetter(
    "sent_s", "due_s", "down_s", "compute_s", "up_s", "down_latency_s", "up_latency_s",
    "down_bytes", "flops", "up_bytes", "down_j", "compute_j", "up_j", "device",
)  # fmt: skip
_FEW = 24  # jobs: of more it takes less time to work them out at once
# Rows of what is kept of each job; slices have a row each for download, computing and upload.
_SENT_S, _DUE_S, _J_PER_BYTE = 0, 1, 2
_STARTS_S, _LENGTHS_S, _AMOUNTS, _JOULES = slice(3, 6), slice(6, 9), slice(9, 12), slice(12, 15)


class Spent(NamedTuple):
    """What jobs have spent together. Joules: above idle power, those of the network among them."""

    flops: float = 0.0
    down_bytes: int = 0
    up_bytes: int = 0
    joules: float = 0.0


class InFlight:
    """Sums what the jobs that run have spent: what they would be charged with if they were broken off now."""

    def __init__(self, fleet: Fleet, accounts: Accounts, carriers: Carriers, priced: bool) -> None:
        """`priced`: what a job has spent at any instant follows from its prices, for all jobs of the run."""
        self._fleet = fleet
        self._accounts = accounts
        self._carriers = carriers
        self._most_one_by_one = _FEW if priced else inf
        # the jobs of the last question, most of which are there at the next, ascending
        self._ids = np.zeros(0, dtype=np.int64)
        self._kept = np.zeros((15, 0))

    def spent(self, running: Mapping[int, tuple[Job, Any]], now_s: float) -> Spent:
        """Return what jobs have spent by `now_s`; `running`: all that run now, by their ids, ascending."""
        if len(running) <= self._most_one_by_one:
            return self._one_by_one([job for job, _ in running.values()])
        ids = np.fromiter(running, np.int64, len(running))
        seen = int(np.searchsorted(ids, self._ids[-1], side="right")) if len(self._ids) else 0
        still = self._kept.take(np.searchsorted(self._ids, ids[:seen]), axis=1)  # sums depend on the order in memory
        new = self._priced([running[job][0] for job in ids[seen:].tolist()])
        self._ids, self._kept = ids, np.concatenate([still, new], axis=1)
        return self._at_once(now_s)

    def _priced(self, jobs: Sequence[Job]) -> Arr:
        """Return what is kept of jobs, shape (15, jobs)."""
        numbers = chain.from_iterable(map(_PRICES, jobs))
        prices = np.fromiter(numbers, np.float64, 14 * len(jobs)).reshape(-1, 14).T
        sent_s, due_s, down_s, compute_s, up_s, down_latency_s, up_latency_s = prices[:7]
        j_per_byte = 8.0 * self._fleet.j_per_bit[prices[13].astype(np.int64)]
        starts_s = down_latency_s, down_s, down_s + compute_s + up_latency_s
        lengths_s = down_s - down_latency_s, compute_s, up_s - up_latency_s
        return np.stack([sent_s, due_s, j_per_byte, *starts_s, *lengths_s, *prices[7:13]])

    def _at_once(self, now_s: float) -> Spent:
        """Return what jobs have spent over links of their own, as `spent_alone` has it for one."""
        kept = self._kept
        starts_s, lengths_s = kept[_STARTS_S], kept[_LENGTHS_S]
        elapsed_s = np.where(kept[_DUE_S] - now_s <= ON_TIME_S, np.inf, now_s - kept[_SENT_S])  # who is due is through
        begun = np.maximum(0.0, elapsed_s - starts_s) / np.where(lengths_s > 0, lengths_s, 1.0)
        shares = np.where(elapsed_s >= starts_s + lengths_s, 1.0, begun)
        down_bytes, flops, up_bytes = shares * kept[_AMOUNTS]
        down_bytes, up_bytes = np.floor(down_bytes), np.floor(up_bytes)
        joules = float((shares * kept[_JOULES]).sum() + (kept[_J_PER_BYTE] * (down_bytes + up_bytes)).sum())
        return Spent(float(flops.sum()), int(down_bytes.sum()), int(up_bytes.sum()), joules)

    def _one_by_one(self, jobs: Sequence[Job]) -> Spent:
        """Return the same of any jobs."""
        flops = joules = 0.0
        down_bytes = up_bytes = 0
        for job in jobs:
            cost = self._accounts.cost(job, self._carriers.so_far(job))
            flops += cost.flops
            down_bytes += cost.down_bytes
            up_bytes += cost.up_bytes
            joules += cost.down_j + cost.compute_j + cost.up_j + cost.peer_j + cost.link_j
        return Spent(flops, down_bytes, up_bytes, joules)
