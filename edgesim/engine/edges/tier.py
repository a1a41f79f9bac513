"""Tier of edge servers as the server sees it: a world whose devices are the edge servers.

An order goes down the links to an edge server, is worked on in rounds of the edge server's own, and its model comes
back up. Links are shared with the devices' transfers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, NamedTuple, Protocol

import numpy as np
import simpy

from edgesim.core.arrays import Arr, Ids
from edgesim.core.errors import ContractError
from edgesim.core.job import DELIVERED, ON_TIME_S, Completion, Job, Outcome, Prices
from edgesim.core.task import Plan
from edgesim.core.update import SERVER, ModelRef
from edgesim.core.view import Setting
from edgesim.engine.accounting import Totals
from edgesim.engine.dispatcher import JobCounter, PricedJobs
from edgesim.engine.flows import unless_whole
from edgesim.engine.inbox import Inbox
from edgesim.engine.server_queue import Merge
from edgesim.engine.world import World
from edgesim.world.prices.ledger import NETWORK, ServerUse

DOWN, WORK, UP = 0, 1, 2  # phases of an order
_FLOWS = -(2**60)  # numbers of transfers from here downwards: those of jobs are positive, of peers small


class Report(NamedTuple):
    """Work of an edge server for an order so far."""

    rounds: int = 0
    asked: int = 0
    used: int = 0
    late: int = 0
    staleness: float = 0.0  # sum over the used
    samples: int = 0
    server_s: float = 0.0


class Worker(Protocol):
    """An edge server, as its orders see it."""

    node: int

    def take(self, job: Job, done: Callable[[], None]) -> None:
        """Begin with an order, as its model is there; `done` is called when the edge server's model may be sent."""

    def drop(self, job: Job) -> None:
        """Forget an order: the edge server finishes its current work, and its model goes nowhere."""

    def report(self) -> Report:
        """Return the work done for its current order."""

    def hand_in(self, job: Job) -> None:
        """Give the model to the learner of the server."""


class OrderOwner(Protocol):
    """Sender of an order."""

    def order_ended(self, job: Job, outcome: Outcome, order: Order) -> Completion:
        """Take note of the end of an order; return its completion."""


@dataclass(slots=True, eq=False)
class Order:
    """An order at work: where it is, and what it spent."""

    job: Job
    owner: OrderOwner
    inbox: Inbox
    phase: int = DOWN
    since_s: float = 0.0
    seconds: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])
    latency_s: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])
    moved_bytes: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])
    wait_s: float = 0.0  # for others on shared links
    link_j: float = 0.0
    report: Report = field(default_factory=Report)


class EdgePresence:
    """Reachability of edge servers: those that have not given up can be asked."""

    def __init__(self, edges: int) -> None:
        self._there = np.ones(edges, dtype=bool)

    everybody = unbroken = False

    def leave(self, edge: int) -> None:
        """Take note that an edge server has given up."""
        self._there[edge] = False

    def new_occasion(self) -> None:
        """Do nothing: an edge server is there or not."""

    def reachable(self, now_s: float) -> np.ndarray:
        """Return which edge servers can be asked, bool, shape (edges,)."""
        return self._there.copy()

    def wait_s(self, now_s: float) -> float:
        """Return inf: an edge server that has given up never comes back."""
        return inf


class OrderPrices:
    """Makes orders of plans: what is known of them when they are sent are the bytes of the model."""

    def __init__(self, setting: Setting, counter: JobCounter) -> None:
        self._setting = setting
        self._counter = counter

    def price(self, plan: Plan, round_: int, model: ModelRef, now_s: float) -> PricedJobs:
        """Return the orders of a plan, which are sent now with this model."""
        jobs = [self._job(order.device, order.task, round_, model, now_s) for order in plan.orders]
        return PricedJobs(jobs, None, None, [True] * len(jobs), False)

    def _job(self, edge: int, task: Any, round_: int, model: ModelRef, now_s: float) -> Job:
        profile, setting = self._setting.cost_profile, self._setting
        down_bytes = int(profile.nbytes(task.down, task.submodel, setting.encoding_down))
        up_bytes = int(profile.nbytes(task.up, task.submodel, setting.encoding_up))
        prices = Prices(
            down_s=0.0, compute_s=0.0, up_s=0.0, flops=0.0, down_bytes=down_bytes, up_bytes=up_bytes, down_j=0.0,
            compute_j=0.0, up_j=0.0, down_latency_s=0.0, up_latency_s=0.0, message_bytes=up_bytes, memory_bytes=0,
            down_air_bytes=down_bytes, up_air_bytes=up_bytes,
        )  # fmt: skip
        return Job(
            id=self._counter.count(edge), device=edge, task=task, round=round_, nth=0, base=model, sent_s=now_s,
            due_s=inf, prices=prices,
        )  # fmt: skip


class EdgeTier:
    """A world of edge servers over the world of devices: what a session of the server asks of its world."""

    def __init__(self, world: World, workers: Sequence[Worker], j_per_bit: float) -> None:
        """`j_per_bit`: of the links between edge servers and server."""
        assert world.shared is not None and world.transfers is not None
        self.env = world.env
        self.fleet = world.fleet
        self.failures = world.failures
        self._presence = EdgePresence(len(workers))
        self.busy = np.zeros(len(workers), dtype=bool)
        self.running: dict[int, Order] = {}  # by job id, ascending
        self.counter = JobCounter(len(workers))
        self.reports: dict[int, Report] = {}  # of orders that have ended since the server closed a round, by id
        self._world = world
        self._network = world.shared
        self._transfers = world.transfers
        self._workers = workers
        self._j_per_bit = j_per_bit
        world.backhaul.append(self._under_way)
        self._next_end: simpy.Event | None = None

    # --- what a session asks of its world --------------------------------------------------------------------------

    @property
    def now_s(self) -> float:
        """Simulated seconds since the start."""
        return self.env.now

    def totals(self, costs: Arr | None = None) -> Totals:
        """Return all amounts spent up to now; see `World.totals`."""
        return self._world.totals(costs)

    def new_presence(self, members: Ids | None) -> EdgePresence:
        """Return which edge servers can be asked: all of them, as `members` says nothing of these."""
        return self._presence

    def costs_by_item(self) -> Arr:
        """Return all costs up to now; see `World.costs_by_item`."""
        return self._world.costs_by_item()

    def begin_merge(self, workers_s: Sequence[float]) -> Merge:
        """Let the server begin a merge; see `World.begin_merge`."""
        return self._world.begin_merge(workers_s)

    def end_merge(self, merge: Merge, through: bool) -> None:
        """Charge a merge of the server that ends now; see `World.end_merge`."""
        self._world.end_merge(merge, through)

    def any_end(self) -> simpy.Event:
        """Return an event that fires when the next order ends."""
        self._next_end = self._next_end or self.env.event()
        return self._next_end

    def start(self, priced: PricedJobs, owner: OrderOwner, to: Inbox) -> None:
        """Send orders off now; their completions go to `to`."""
        for job in priced.jobs:
            order = self.running[job.id] = Order(job, owner, to)
            self._enter(order, DOWN)

    def abort(self, jobs: Sequence[Job], why: Outcome) -> list[Completion]:
        """End the orders of `jobs` that still run; return their completions. What is through by now is in time."""
        self._transfers.settle(ON_TIME_S)
        return [self._end(self.running[job.id], why) for job in jobs if not job.ended]

    def give_up(self, edge: int) -> None:
        """Take note that an edge server will never close a round again; its order, if it has one, brings nothing."""
        self._presence.leave(edge)
        for order in list(self.running.values()):
            if order.job.device == edge:
                order.inbox.put(self._end(order, "offline"))

    # --- an order ---------------------------------------------------------------------------------------------------

    def _enter(self, order: Order, phase: int) -> None:
        order.phase, order.since_s = phase, self.env.now
        if phase > UP:
            order.inbox.put(self._end(order, "ok"))
        elif phase == WORK:
            self._workers[order.job.device].take(order.job, lambda: self._sends(order))
        else:
            latency_s = order.latency_s[phase] = self._network.paths.latency_s(*self._ends(order))
            self._after(latency_s, order, lambda: self._transfer(order))

    def _sends(self, order: Order) -> None:
        """Let an edge server send its model, unless the order was cancelled."""
        if order.job.ended:
            return
        worker = self._workers[order.job.device]
        order.report = worker.report()
        worker.hand_in(order.job)
        self._leave(order)

    def _transfer(self, order: Order) -> None:
        path = self._network.limits(*self._ends(order))
        self._transfers.start(self._flow(order), path, self._nbytes(order), lambda: self._leave(order))

    def _leave(self, order: Order) -> None:
        """End a phase that ran to its end."""
        self._book(order, self._nbytes(order) if order.phase != WORK else 0.0)
        self._enter(order, order.phase + 1)

    def _end(self, order: Order, outcome: Outcome) -> Completion:
        """End an order once, and charge what it has moved."""
        job = order.job
        if job.ended:
            raise ContractError(f"order {job.id} ended twice")
        job.ended = True
        del self.running[job.id]
        self.busy[job.device] = False
        if self._next_end is not None:
            self._next_end.succeed()
            self._next_end = None
        if outcome not in DELIVERED:
            if order.phase == WORK:
                order.report = self._workers[job.device].report()
                self._workers[job.device].drop(job)
            moved_bytes = 0.0 if order.phase == WORK else self._moved(order)
            self._transfers.drop(self._flow(order))
            self._book(order, moved_bytes)
        completion: Completion = order.owner.order_ended(job, outcome, order)
        return completion

    def _book(self, order: Order, moved_bytes: float) -> None:
        """Book the seconds and bytes of the phase that ends now."""
        phase, spent_s = order.phase, self.env.now - order.since_s
        order.seconds[phase] = spent_s
        if phase == WORK:
            return
        order.moved_bytes[phase] = moved_bytes
        alone_s = 8.0 * moved_bytes / self._network.alone_bps(*self._ends(order))
        order.wait_s += max(0.0, spent_s - order.latency_s[phase] - alone_s)
        use = self._on_links(order, moved_bytes)
        order.link_j += use.joules
        self._world.charge_edge_link(use)

    def _under_way(self) -> list[ServerUse]:
        """Return the energy of transfers under way, up to now."""
        return [self._on_links(order, self._moved(order)) for order in self.running.values() if order.phase != WORK]

    def _on_links(self, order: Order, moved_bytes: float) -> ServerUse:
        """Return the energy of the links for one transfer of an order, up to now."""
        joules = 8.0 * self._j_per_bit * int(moved_bytes)
        return ServerUse(NETWORK, order.job.device, joules, order.since_s, self.env.now)

    def _moved(self, order: Order) -> float:
        return unless_whole(self._transfers.moved_bytes(self._flow(order)), self._nbytes(order))

    def _after(self, seconds: float, order: Order, then: Callable[[], None]) -> None:
        """Call `then` after `seconds` if the order is still at this phase."""
        phase, timer = order.phase, self.env.timeout(seconds)
        timer.callbacks.append(lambda _: then() if not order.job.ended and order.phase == phase else None)

    def _ends(self, order: Order) -> tuple[int, int]:
        node = self._workers[order.job.device].node
        return (SERVER, node) if order.phase == DOWN else (node, SERVER)

    def _flow(self, order: Order) -> int:
        return _FLOWS - 2 * order.job.id - (order.phase == UP)

    def _nbytes(self, order: Order) -> float:
        prices = order.job.prices
        return float(prices.down_bytes if order.phase == DOWN else prices.up_bytes)
