"""The event loop: dispatches jobs, lets them arrive, cancels them. It moves references and never sees a tensor.

Idle devices own no process, event or object; a job over links of its own is one SimPy timeout.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import Any

import numpy as np
import simpy

from edgesim.contracts import DELIVERED, SERVER, Arrival, Job, ModelRef, Outcome, Plan, Setting
from edgesim.engine.accounts import Accounts, Totals
from edgesim.engine.batteries import FleetBatteries
from edgesim.engine.carriers import Carriers
from edgesim.engine.desk import Desk
from edgesim.engine.fate import Fates
from edgesim.engine.held import Held
from edgesim.engine.in_flight import InFlight
from edgesim.engine.inbox import Inbox
from edgesim.engine.presence import Presence
from edgesim.engine.spending import NOTHING
from edgesim.engine.trained_models import TrainedModels
from edgesim.engine.transfers import ON_TIME_S
from edgesim.engine.view import FleetView, PeerGraphs
from edgesim.errors import ContractError, LedgerError
from edgesim.records.table import Table
from edgesim.rng import Key, Purpose
from edgesim.world.availability import Availability
from edgesim.world.failure import Failure
from edgesim.world.fleet import Fleet
from edgesim.world.ledger import EnergyLedger
from edgesim.world.shared_network import SharedNetwork


class Engine:
    """Clock and devices at work in one run."""

    def __init__(
        self,
        fleet: Fleet,
        setting: Setting,
        ledger: EnergyLedger,
        tables: dict[str, Table],
        *,
        key: Key,
        selection: Any,
        availability: Availability,
        batteries: FleetBatteries,
        shared: SharedNetwork | None = None,
        failures: Failure | None = None,
        peers: Any = None,
    ) -> None:
        self.env = simpy.Environment(0.0)
        self.setting = setting
        self.ledger = ledger
        self.model = ModelRef(SERVER, 0)
        self.round = 0
        self.exchange = 0
        self.last: Sequence[Arrival] = ()
        self.running: dict[int, tuple[Job, Inbox]] = {}
        self.nobody_fits = False  # the last plan asked for more memory than any device has
        self.accounts = Accounts(fleet, ledger, tables["jobs"])
        self.trained = TrainedModels(setting)
        self.held = Held(self.env, tables["jobs"], failures)
        self.presence = Presence(availability, batteries)
        self._next_end: simpy.Event | None = None
        self._selection = selection
        self._graphs = PeerGraphs(peers, key.at(Purpose.PEERS))
        self._busy = np.zeros(len(fleet), dtype=bool)
        fates = Fates(availability, failures)
        self._desk = Desk(fleet, setting, fates, failures, batteries, key.at(Purpose.CHANNEL))
        self._carriers = Carriers(
            self.env,
            fleet,
            batteries,
            shared,
            None if failures is None else failures.links,
            key.at(Purpose.PEERS),
            self._desk.price_compute,
            self._finish,
            self._fail,
        )
        priced = shared is None and peers is None and (failures is None or failures.links is None)
        self._in_flight = InFlight(fleet, self.accounts, self._carriers, priced)

    @property
    def now_s(self) -> float:
        """Simulated seconds since the start."""
        return self.env.now

    def totals(self) -> Totals:
        """Return what has been spent up to now, by jobs that still run too; asking changes nothing.

        Raises LedgerError if that is infinite or not a number.
        """
        booked, running = self.accounts, self._in_flight.spent(self.running, self.now_s)
        totals = Totals(
            booked.flops + running.flops,
            booked.down_bytes + running.down_bytes,
            booked.up_bytes + running.up_bytes,
            *self.ledger.joules(self.now_s, self._desk.asked, running.joules),
        )
        if wrong := [f"{name} {value}" for name, value in totals._asdict().items() if not isfinite(value)]:
            raise LedgerError(f"after {self.now_s:g} s the run has spent {', '.join(wrong)}, must be finite")
        if not isfinite(self.now_s):
            raise LedgerError(f"simulated time has come to {self.now_s} s, must be finite")
        return totals

    def view(self, places: int | None = None, only: int | None = None) -> FleetView:
        """Return what a method may know now; `places`: how many devices may be asked at most (None: all).

        `only`: the one device that may be asked if it can; if it cannot, all others may.
        """
        # by position, as protocols without rounds look once a job: by name it takes three times as long
        return FleetView(
            self.setting,
            self.env.now,
            self.model.version,
            self.round,
            self.exchange,
            self.last,
            self.presence,
            self._busy,
            len(self.running),
            self._selection,
            self._graphs,
            places,
            only,
        )

    @property
    def one_by_one(self) -> bool:
        """Whether every job ends by an event of its own, and so nothing of that event is left to do after its arrival.

        Over shared links the end of one transfer may be that of others.
        """
        return self._carriers.due_known

    def any_end(self) -> simpy.Event:
        """Return an event that fires when the next job ends."""
        self._next_end = self._next_end or self.env.event()
        return self._next_end

    def new_inbox(self) -> Inbox:
        """Return an empty inbox."""
        return Inbox(self.env)

    def dispatch(self, plan: Plan, to: Inbox) -> list[Job]:
        """Start the orders of a plan now, from the current global model; their arrivals go to `to`.

        Raises ContractError if the plan is empty or asks a device twice or while it is busy.
        """
        self._take(plan)
        stamps = self.round, self.model, self.env.now, self._carriers.due_known
        if len(plan.orders) == 1 and (job := self._desk.stamp_sure(plan.orders[0], *stamps)) is not None:
            self.running[job.id] = (job, to)
            self._carriers.start_sure(job)
            self.nobody_fits = False
            return [job]
        stamped = self._desk.stamp(plan, *stamps)
        for job in stamped.jobs:
            self.running[job.id] = (job, to)
        self._carriers.start(stamped)
        if not all(stamped.fits):
            for job in [job for job, fits in zip(stamped.jobs, stamped.fits, strict=True) if not fits]:
                to.put(self._end(job, "no_memory"))
        self.nobody_fits = stamped.nobody_fits
        return stamped.jobs

    def abort(self, jobs: Sequence[Job], why: Outcome) -> list[Arrival]:
        """End the jobs of `jobs` that still run, charged up to now; return their arrivals.

        A job that arrives within ON_TIME_S of now is in time: it goes to its inbox instead.
        """
        aborted = []
        self._carriers.settle(ON_TIME_S)
        for job in jobs:
            if job.ended:
                continue
            if job.due_s - self.now_s <= ON_TIME_S:
                self._finish(job)
            else:
                aborted.append(self._end(job, why))
        return aborted

    def _take(self, plan: Plan) -> None:
        """Mark the devices of a plan as busy."""
        if not plan.orders:
            raise ContractError(f"round {self.round}: the method asked no device")
        busy = self._busy
        for order in plan.orders:
            if not 0 <= order.device < len(busy):
                raise ContractError(
                    f"round {self.round}: the method asked device {order.device}; there are 0 to {len(busy) - 1}"
                )
            if busy[order.device]:
                raise ContractError(
                    f"round {self.round}: the method asked device {order.device} twice, or while it is busy"
                )
            busy[order.device] = True

    def _finish(self, job: Job) -> None:
        """End a job that got through."""
        inbox = self.running[job.id][1]
        inbox.put(self._end(job, "ok" if job.steps is None else "partial"))

    def _fail(self, job: Job, outcome: Outcome) -> None:
        """End a job before its time, charged up to now."""
        inbox = self.running[job.id][1]
        inbox.put(self._end(job, outcome))

    def _end(self, job: Job, outcome: Outcome) -> Arrival:
        """End a job once: free the device, charge what it spent, write its row."""
        if job.ended:
            raise ContractError(f"job {job.id} ended twice")
        job.ended = True
        del self.running[job.id]
        self._busy[job.device] = False
        if self._next_end is not None:
            self._next_end.succeed()
            self._next_end = None
        now_s, through = self.env.now, outcome in DELIVERED
        spent = NOTHING if outcome == "no_memory" else self._carriers.end(job, through)
        if outcome != "no_memory":
            self.trained.add(job)
        row = self.accounts.book(job, outcome, spent, now_s)
        if through:
            self.held.add(job, row)
        staleness = self.model.version - job.base.version if job.task.home == "server" else 0
        return Arrival(job, now_s, outcome, staleness, spent.shares[1] == 1.0)
