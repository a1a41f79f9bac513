"""The event loop: dispatches jobs, lets them arrive, cancels them. It moves references and never sees a tensor.

Idle devices own no process, event or object; a job is one SimPy timeout.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import simpy

from edgesim.contracts import SERVER, Arrival, Job, ModelRef, Outcome, Plan, Setting
from edgesim.engine.inbox import Inbox
from edgesim.engine.pricing import price_orders
from edgesim.engine.view import FleetView
from edgesim.errors import ContractError
from edgesim.records.table import Table
from edgesim.world.fleet import Fleet
from edgesim.world.ledger import EnergyLedger

ON_TIME_S = 1e-9  # an arrival this close to the deadline counts as exactly on it


class Engine:
    """Clock, devices at work and the ledger of one run."""

    def __init__(
        self,
        fleet: Fleet,
        setting: Setting,
        ledger: EnergyLedger,
        tables: dict[str, Table],
        *,
        selection: Any,
        availability: Any,
    ) -> None:
        self.env = simpy.Environment()
        self.fleet = fleet
        self.setting = setting
        self.ledger = ledger
        self.tables = tables
        self.model = ModelRef(SERVER, 0)
        self.round = 0
        self.exchange = 0
        self.last: Sequence[Arrival] = ()
        self.running: dict[int, tuple[Job, Inbox]] = {}
        self.flops = 0.0
        self.down_bytes = 0
        self.up_bytes = 0
        self._selection = selection
        self._availability = availability
        self._busy = np.zeros(len(fleet), dtype=bool)
        self._trainings = np.zeros(len(fleet), dtype=np.int64)
        self._jobs = 0

    @property
    def now_s(self) -> float:
        """Simulated seconds since the start."""
        return float(self.env.now)

    def view(self) -> FleetView:
        """Return what a method may know now."""
        return FleetView(
            setting=self.setting,
            now_s=self.now_s,
            version=self.model.version,
            round=self.round,
            exchange=self.exchange,
            last=self.last,
            reachable=self._availability.mask(len(self.fleet), self.now_s) & ~self._busy,
            selection=self._selection,
        )

    def new_inbox(self) -> Inbox:
        """Return an empty inbox."""
        return Inbox(self.env)

    def dispatch(self, plan: Plan, to: Inbox) -> list[Job]:
        """Start the orders of a plan now, from the current global model; their arrivals go to `to`.

        Raises ContractError if the plan is empty or asks a device twice or while it is busy.
        """
        devices = np.array([order.device for order in plan.orders], dtype=np.int64)
        self._check(devices)
        nth = self._trainings[devices].tolist()
        self._busy[devices] = True
        jobs = []
        now_s = self.now_s
        prices = price_orders(plan.orders, self.fleet, self.setting).T.tolist()
        for (device, task), price, before in zip(plan.orders, prices, nth, strict=True):
            down_s, compute_s, up_s, flops, down_bytes, up_bytes, down_j, compute_j, up_j = price
            seconds = down_s + compute_s + up_s
            job = Job(
                self._jobs, device, task, self.round, before, self.model, now_s, now_s + seconds,
                down_s, compute_s, up_s, flops, int(down_bytes), int(up_bytes), down_j, compute_j, up_j,
            )  # fmt: skip
            self._jobs += 1
            self._trainings[device] += bool(task.stretches)
            self.running[job.id] = (job, to)
            self.env.timeout(seconds, job).callbacks.append(self._arrive)
            jobs.append(job)
        return jobs

    def abort(self, jobs: Sequence[Job], why: Outcome) -> list[Arrival]:
        """End the jobs of `jobs` that still run, charged up to now; return their arrivals.

        A job that arrives within ON_TIME_S of now is in time: it goes to its inbox instead.
        """
        aborted = []
        for job in jobs:
            if job.ended:
                continue
            if job.due_s - self.now_s <= ON_TIME_S:
                self._finish(job)
            else:
                aborted.append(self._end(job, why, self.now_s - job.sent_s))
        return aborted

    def _check(self, devices: np.ndarray) -> None:
        if not len(devices):
            raise ContractError(f"round {self.round}: the method asked no device")
        if len(np.unique(devices)) < len(devices):
            raise ContractError(f"round {self.round}: the method asked a device twice")
        if self._busy[devices].any():
            raise ContractError(f"round {self.round}: the method asked device {devices[self._busy[devices]][0]}, busy")

    def _arrive(self, event: simpy.Event) -> None:
        job = cast(Job, event.value)
        if not job.ended:  # an aborted job's timeout stays in SimPy's heap and means nothing any more
            self._finish(job)

    def _finish(self, job: Job) -> None:
        inbox = self.running[job.id][1]
        inbox.put(self._end(job, "ok", float("inf")))

    def _end(self, job: Job, outcome: Outcome, elapsed_s: float) -> Arrival:
        """End a job once: free the device, charge what it spent in `elapsed_s`, write its row."""
        if job.ended:
            raise ContractError(f"job {job.id} ended twice")
        job.ended = True
        del self.running[job.id]
        self._busy[job.device] = False
        down = _share(elapsed_s, 0.0, job.down_s)
        compute = _share(elapsed_s, job.down_s, job.compute_s)
        up = _share(elapsed_s, job.down_s + job.compute_s, job.up_s)
        seconds = (down * job.down_s, compute * job.compute_s, up * job.up_s)
        flops = compute * job.flops
        down_bytes, up_bytes = int(down * job.down_bytes), int(up * job.up_bytes)
        joules = (down * job.down_j, compute * job.compute_j, up * job.up_j)
        self.ledger.charge(job.device, *joules, sum(seconds))
        self.flops += flops
        self.down_bytes += down_bytes
        self.up_bytes += up_bytes
        staleness = self.model.version - job.base.version
        self.tables["jobs"].append(
            (job.id, job.device, job.round, job.base.version, job.task.name, job.task.part.shape_id, job.sent_s,
             *seconds, self.now_s, outcome, flops, down_bytes, up_bytes, *joules)
        )  # fmt: skip
        return Arrival(job, self.now_s, outcome, staleness, compute == 1.0)


def _share(elapsed_s: float, start_s: float, length_s: float) -> float:
    """Return which share of a phase is over, from 0 to 1; a phase without length is over once it has begun."""
    if elapsed_s >= start_s + length_s:
        return 1.0
    return max(0.0, elapsed_s - start_s) / length_s if length_s > 0 else 0.0
