"""Edge servers as the aggregators above see them: they take orders, of which each is a job with legs like any other.

An order goes down the links to an edge server, is worked on in rounds of the edge server's own, and its model comes
back up. Links are shared with the devices' transfers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, NamedTuple, Protocol

import numpy as np

from edgesim.core.arrays import Arr, Ids
from edgesim.core.job import Job, Prices
from edgesim.core.task import Plan
from edgesim.core.update import ModelRef
from edgesim.core.view import Setting
from edgesim.engine.accounting import Usage
from edgesim.engine.base_holders import BaseHolders
from edgesim.engine.dispatcher import JobCounter, PricedJobs
from edgesim.engine.inbox import Inbox
from edgesim.engine.legs import Driver, JobOwner, Leg, LegSum, Transfer, Trip
from edgesim.engine.participants import Participants
from edgesim.engine.reachability import Presence
from edgesim.engine.world import World
from edgesim.world.availability.base import Availability
from edgesim.world.failures.base import COMPUTATION, DOWNLOAD, UPLOAD
from edgesim.world.prices.ledger import NETWORK, ServerUse

_FIRST_NUMBER = -(2**60)  # of transfers from here downwards: those of jobs are positive, of peers small


class OrderReport(NamedTuple):
    """Jobs of devices that ended in rounds of an aggregator: for the order of an edge server, or in one round."""

    rounds: int = 0
    asked: int = 0
    used: int = 0  # and were merged
    late: int = 0
    staleness: float = 0.0  # sum over the used
    samples: int = 0  # behind the used
    server_s: float = 0.0

    def __add__(self, more: Any) -> OrderReport:
        """Return the report of both together."""
        return OrderReport(*(one + other for one, other in zip(self, more, strict=True)))


class Worker(Protocol):
    """An edge server, as its orders see it."""

    node: int

    def take(self, job: Job, done: Callable[[], None]) -> None:
        """Begin with an order, as its model is there; `done` is called when the edge server's model may be sent."""

    def drop(self, job: Job) -> None:
        """Forget an order: the edge server finishes its current work, and its model goes nowhere."""

    def report(self) -> OrderReport:
        """Return the work done for its current order."""

    def hand_in(self, job: Job) -> None:
        """Give the model to the learner of the aggregator above."""


class Backhaul(Transfer):
    """A model between an edge server and the aggregator above. It takes energy in the network, charged as it ends."""

    __slots__ = ("_edges",)

    def __init__(self, driver: Driver, trip: Trip, phase: int, node: int, edges: EdgeServers) -> None:
        super().__init__(driver, trip, phase, node)
        self._edges = edges

    @property
    def number(self) -> int:
        """Its number on the links."""
        return _FIRST_NUMBER - 2 * self.trip.job.id - (self.phase == UPLOAD)

    def _arrived(self) -> None:
        """Charge the whole transfer."""
        self.until_s = self.driver.env.now
        self._edges.world.charge_edge_link(self.network_use())
        self.driver.over(self)

    def close(self, through: bool) -> None:
        """Charge what has moved, if it is under way, and take it off the links."""
        if self.since_s < inf and self.until_s == inf:
            self._edges.world.charge_edge_link(self.network_use())
        super().close(through)

    def network_use(self) -> ServerUse:
        """Return the energy of the network for what has moved up to now."""
        moved_bytes = self.air_bytes if self.until_s < inf else self._so_far()[1] * self.air_bytes
        joules = 8.0 * self._edges.j_per_bit * int(moved_bytes)
        return ServerUse(NETWORK, self._edges.first + self.trip.job.device, joules, self.since_s, self.driver.env.now)


class OwnRounds(Leg):
    """Rounds that an edge server runs over its own devices."""

    phase = COMPUTATION
    __slots__ = ("_edges", "_worker")

    def __init__(self, driver: Driver, trip: Trip, worker: Worker, edges: EdgeServers) -> None:
        super().__init__(driver, trip)
        self._worker = worker
        self._edges = edges

    def begin(self) -> None:
        """Hand the order to the edge server."""
        self._worker.take(self.trip.job, self._done)

    def _done(self) -> None:
        """Let the edge server send its model, unless the order was cancelled."""
        job = self.trip.job
        if not job.ended:
            self._edges.reports[job.id] = self._worker.report()
            self._worker.hand_in(job)
            self.driver.over(self)

    def add(self, total: LegSum) -> None:
        """Add the seconds so far; the share of the work is 1 once the model may be sent, and 0 before."""
        if self.since_s < inf:
            total.seconds[COMPUTATION] = min(self.until_s, self.driver.env.now) - self.since_s
        total.shares[COMPUTATION] = float(self.until_s < inf)

    def close(self, through: bool) -> None:
        """Call the order off, if the edge server is at it."""
        job = self.trip.job
        if self.since_s < inf and self.until_s == inf:
            self._edges.reports[job.id] = self._worker.report()
            self._worker.drop(job)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class _UntilGivenUp(Availability):
    """Edge servers that can be asked until they give up; those never come back."""

    given_up: np.ndarray  # bool, shape (n,)

    def on_from_s(self, ids: Ids, from_s: Arr) -> Arr:
        return np.where(self.given_up[ids], inf, from_s)

    def until_s(self, ids: Ids, now_s: Arr | float) -> Arr:
        return np.full(len(ids), inf)


class EdgeServers(Participants):
    """The servers of a tier, and the orders to them."""

    def __init__(
        self, world: World, workers: Sequence[Worker], j_per_bit: float, tier: int, first: int, counter: JobCounter
    ) -> None:
        """`j_per_bit`: of data between this tier and the one above; `tier`: 1 for edge servers, 2 above them, ...

        `first`: number of the first server among those of all tiers, whose orders `counter` counts.
        """
        super().__init__(world.driver, len(workers))
        self.world = world
        self.j_per_bit = j_per_bit
        self.tier = tier
        self.first = first
        self.counter = counter
        self.reports: dict[int, OrderReport] = {}  # of orders that the server has not counted yet, by id
        self._workers = workers
        self._there = _UntilGivenUp(n=len(workers), given_up=np.zeros(len(workers), dtype=bool))
        world.backhaul.append(self._under_way)

    def new_presence(self, members: Ids | None) -> Presence:
        """Return the reachability of edge servers; `members`: as for `Presence`."""
        return Presence(self._there, None, members)

    def start(self, priced: PricedJobs, owner: JobOwner, to: Inbox) -> None:
        """Send orders off now; their completions go to `to`."""
        for job in priced.jobs:
            trip = self.running[job.id] = Trip(job, owner, to, self)
            worker = self._workers[job.device]
            down, up = (Backhaul(self._driver, trip, phase, worker.node, self) for phase in (DOWNLOAD, UPLOAD))
            trip.legs = (down, OwnRounds(self._driver, trip, worker, self), up)
            self._driver.start(trip)

    def give_up(self, edge: int) -> None:
        """Take note that an edge server will never close a round again; its order, if it has one, brings nothing."""
        self._there.given_up[edge] = True
        for trip in list(self.running.values()):
            if trip.job.device == edge:
                self.fail(trip, "offline")

    def _under_way(self) -> list[ServerUse]:
        """Return the energy of transfers under way, up to now."""
        legs = (trip.legs[trip.at] for trip in self.running.values())
        return [leg.network_use() for leg in legs if isinstance(leg, Backhaul)]


class OrderPrices:
    """Makes orders of plans: what is known of them when they are sent are the bytes of the model.

    Edge servers get the base of the network as devices do, to hand it on.
    """

    def __init__(self, setting: Setting, below: EdgeServers) -> None:
        self._holders = BaseHolders(setting, len(below.busy))
        self._setting = setting
        self._below = below

    def price(self, plan: Plan, round_: int, model: ModelRef, now_s: float) -> PricedJobs:
        """Return the orders of a plan, which are sent now with this model."""
        jobs = [self._job(order.device, order.task, round_, model, now_s) for order in plan.orders]
        return PricedJobs(jobs, None, None, [True] * len(jobs), False)

    def job_ended(self, job: Job, usage: Usage) -> None:
        """Note the effects of an order that has ended on the prices of later ones."""
        self._holders.ended(job, usage)

    def steer(self, deadline_s: float, clock_share: float) -> None:
        """Do nothing: no controller chooses for edge servers."""

    def price_compute(self, job: Job, start_s: float) -> None:
        """Do nothing: how long an order takes is known when it is done."""

    def _job(self, edge: int, task: Any, round_: int, model: ModelRef, now_s: float) -> Job:
        profile, setting = self._setting.cost_profile, self._setting
        down_bytes = int(
            profile.nbytes(task.down, task.submodel, setting.encoding_down)
            + float(np.sum(self._holders.nbytes(task, np.array([edge]))))
        )
        up_bytes = int(profile.nbytes(task.up, task.submodel, setting.encoding_up))
        prices = Prices(
            down_s=0.0, compute_s=0.0, up_s=0.0, flops=0.0, down_bytes=down_bytes, up_bytes=up_bytes, down_j=0.0,
            compute_j=0.0, up_j=0.0, down_latency_s=0.0, up_latency_s=0.0, message_bytes=up_bytes, memory_bytes=0,
            down_air_bytes=down_bytes, up_air_bytes=up_bytes,
        )  # fmt: skip
        return Job(
            id=self._below.counter.count(self._below.first + edge), device=edge, task=task, round=round_, nth=0,
            base=model, sent_s=now_s, due_s=inf, prices=prices,
        )  # fmt: skip
