"""Amounts that running jobs have spent up to an instant, without charging them or changing any answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, islice
from typing import NamedTuple

import numpy as np

from edgesim.core.arrays import Arr
from edgesim.core.job import ON_TIME_S, Job, Prices
from edgesim.engine.accounting import Accounting, Cost
from edgesim.engine.legs import Driver, Trip
from edgesim.world.fleet import Fleet
from edgesim.world.prices.ledger import Use

_FEW = 24  # jobs: of more it takes less time to work them out at once


class _Columns(NamedTuple):
    """Columns of k running jobs: arrays of shape (k,), or (3, k) for download, computation and upload."""

    sent_s: Arr
    due_s: Arr
    link_j_per_byte: Arr
    starts_s: Arr  # of the phases, after the job did
    lengths_s: Arr
    amounts: Arr  # bytes, FLOPs and bytes
    joules: Arr


class Spent(NamedTuple):
    """Sums over jobs: joules of devices above idle power, and joules of the network apart."""

    flops: float = 0.0
    down_bytes: int = 0
    up_bytes: int = 0
    joules: float = 0.0
    network_j: float = 0.0

    def with_job(self, cost: Cost) -> Spent:
        """Return this with what a job has spent, but for its joules, which are charged to the world."""
        return self._replace(
            flops=self.flops + cost.flops,
            down_bytes=self.down_bytes + cost.received_bytes,
            up_bytes=self.up_bytes + cost.up_bytes + cost.peer_bytes,
        )


class InFlight:
    """Sums what the jobs that run have spent: what they would be charged with if they were broken off now."""

    def __init__(self, fleet: Fleet, accounting: Accounting, driver: Driver, priced: bool) -> None:
        """`priced`: what a job of the server has spent at any instant follows from its prices."""
        self._fleet = fleet
        self._accounting = accounting
        self._driver = driver
        self._priced = priced
        # the jobs of the last question, most of which are there at the next, ascending
        self._ids = np.zeros(0, dtype=np.int64)
        one, three = np.zeros(0), np.zeros((3, 0))
        self._kept = _Columns(one, one, one, three, three, three, three)

    def spent(self, running: Mapping[int, Trip], now_s: float) -> Spent:
        """Return the sums over jobs at `now_s`; `running`: all jobs that run now, by id, ascending."""
        ids = np.fromiter(running, np.int64, len(running))
        seen = int(np.searchsorted(ids, self._ids[-1], side="right")) if len(self._ids) else 0
        new = [each.job for each in islice(running.values(), seen, None)]
        apart = any(job.task.start == "device" or job.task.overlaps for job in new)  # from phases in a row
        if len(running) <= _FEW or not self._priced or apart:
            return self._one_by_one(running.values())
        still = np.searchsorted(self._ids, ids[:seen])
        # sums depend on the order in memory, so that of the columns is always the same
        kept = (
            np.ascontiguousarray(np.concatenate([old.take(still, axis=-1), add], axis=-1))
            for old, add in zip(self._kept, self._columns(new), strict=True)
        )
        self._ids, self._kept = ids, _Columns(*kept)
        return self._at_once(now_s)

    def uses(self, running: Mapping[int, Trip]) -> list[Use]:
        """Return the use of devices by running jobs, for the ledger of money and carbon."""
        found: list[Use] = []
        for each in running.values():
            usage = self._driver.so_far(each)
            found += self._accounting.uses(each.job, usage, self._accounting.cost(each.job, usage), delivered=False)
        return found

    def _columns(self, jobs: Sequence[Job]) -> _Columns:
        """Return the columns of jobs."""
        shape = len(jobs), len(Prices._fields)
        numbers = np.fromiter(chain.from_iterable(job.prices for job in jobs), np.float64, shape[0] * shape[1])
        prices: Prices[Arr] = Prices(*numbers.reshape(shape).T)
        devices = np.array([job.device for job in jobs], dtype=np.int64)
        return _Columns(
            sent_s=np.array([job.sent_s for job in jobs]),
            due_s=np.array([job.due_s for job in jobs]),
            link_j_per_byte=8.0 * self._fleet.j_per_bit[devices],
            starts_s=np.stack(
                [prices.down_latency_s, prices.down_s, prices.down_s + prices.compute_s + prices.up_latency_s]
            ),
            lengths_s=np.stack(
                [prices.down_s - prices.down_latency_s, prices.compute_s, prices.up_s - prices.up_latency_s]
            ),
            amounts=np.stack([prices.down_bytes, prices.flops, prices.up_bytes]),
            joules=np.stack([prices.down_j, prices.compute_j, prices.up_j]),
        )

    def _at_once(self, now_s: float) -> Spent:
        """Return the sums over jobs on dedicated links; `dedicated_usage` gives the same for one job."""
        kept = self._kept
        due = kept.due_s - now_s <= ON_TIME_S  # who is due is through
        elapsed_s = np.where(due, np.inf, now_s - kept.sent_s)
        begun = np.maximum(0.0, elapsed_s - kept.starts_s) / np.where(kept.lengths_s > 0, kept.lengths_s, 1.0)
        shares = np.where(elapsed_s >= kept.starts_s + kept.lengths_s, 1.0, begun)
        down_bytes, flops, up_bytes = shares * kept.amounts
        down_bytes, up_bytes = np.floor(down_bytes), np.floor(up_bytes)
        link_j = float((kept.link_j_per_byte * (down_bytes + up_bytes)).sum())
        joules = float((shares * kept.joules).sum())
        return Spent(float(flops.sum()), int(down_bytes.sum()), int(up_bytes.sum()), joules, link_j)

    def _one_by_one(self, trips: Iterable[Trip]) -> Spent:
        """Return the same of any jobs."""
        flops = joules = link_j = 0.0
        down_bytes = up_bytes = 0
        for trip in trips:
            cost = self._accounting.cost(trip.job, self._driver.so_far(trip))
            flops += cost.flops
            down_bytes += cost.received_bytes
            up_bytes += cost.up_bytes + cost.peer_bytes
            joules += cost.down_j + cost.compute_j + cost.up_j + cost.peer_j
            link_j += cost.link_j
        return Spent(flops, down_bytes, up_bytes, joules, link_j)
