"""The event loop: dispatches jobs, lets them arrive, cancels them. It moves references and never sees a tensor.

Idle devices own no process, event or object; a job is one SimPy timeout.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any, cast

import numpy as np
import simpy

from edgesim.contracts import SERVER, Arrival, Ids, Job, ModelRef, Outcome, Plan, Setting
from edgesim.engine.batteries import FleetBatteries
from edgesim.engine.inbox import Inbox
from edgesim.engine.journeys import Journeys
from edgesim.engine.pricing import memory_bytes, price_orders
from edgesim.engine.spending import NOTHING, joules_of, spent_alone
from edgesim.engine.view import FleetView
from edgesim.errors import ContractError
from edgesim.records.table import Table
from edgesim.rng import Draws, Key, Purpose
from edgesim.world.fleet import Fleet
from edgesim.world.ledger import EnergyLedger
from edgesim.world.shared_network import SharedNetwork

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
        key: Key,
        selection: Any,
        availability: Any,
        batteries: FleetBatteries,
        shared: SharedNetwork | None = None,
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
        self.nobody_fits = False  # the last plan asked for more memory than any device has
        self.flops = 0.0
        self.down_bytes = 0
        self.up_bytes = 0
        self._selection = selection
        self._availability = availability
        self._busy = np.zeros(len(fleet), dtype=bool)
        self._trainings = np.zeros(len(fleet), dtype=np.int64)
        self._dispatched = np.zeros(len(fleet), dtype=np.int64)
        self._key = key.at(Purpose.CHANNEL)
        self._jobs = 0
        self._batteries = batteries
        self._journeys = None if shared is None else Journeys(self.env, shared, self._finish)

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
            reachable=self._reachable() & ~self._busy,
            selection=self._selection,
        )

    def next_on_s(self) -> float:
        """Return the time from which some device is on that is off now; inf if never."""
        return self._batteries.next_on_s(self.now_s)

    def new_inbox(self) -> Inbox:
        """Return an empty inbox."""
        return Inbox(self.env)

    def dispatch(self, plan: Plan, to: Inbox) -> list[Job]:
        """Start the orders of a plan now, from the current global model; their arrivals go to `to`.

        Raises ContractError if the plan is empty or asks a device twice or while it is busy.
        """
        devices = np.array([order.device for order in plan.orders], dtype=np.int64)
        self._check(devices)
        before = self._trainings[devices]
        self._busy[devices] = True
        jobs = []
        now_s = self.now_s
        draws = Draws(self._key, devices, self._dispatched[devices])
        self._dispatched[devices] += 1
        prices = price_orders(plan.orders, self.fleet, self.setting, now_s, draws)
        lasting_s = self._lasting_s(devices, prices)
        needs = {
            id(task): memory_bytes(task, self.setting) for task in {id(o.task): o.task for o in plan.orders}.values()
        }
        for (device, task), price, nth in zip(plan.orders, prices.T.tolist(), before.tolist(), strict=True):
            down_s, compute_s, up_s, flops, down_bytes, up_bytes, down_j, compute_j, up_j = price
            due_s = now_s + down_s + compute_s + up_s if self._journeys is None else inf
            job = Job(
                self._jobs, device, task, self.round, nth, self.model, now_s, due_s,
                down_s, compute_s, up_s, flops, int(down_bytes), int(up_bytes), down_j, compute_j, up_j,
            )  # fmt: skip
            self._jobs += 1
            self._trainings[device] += bool(task.stretches)
            self.running[job.id] = (job, to)
            jobs.append(job)
            if needs[id(task)] > self.fleet.memory_bytes[device]:
                to.put(self._end(job, "no_memory", 0.0))
            else:
                self._send_off(job, lasting_s.get(device, inf))
        self.nobody_fits = min(needs.values()) > self.fleet.memory_bytes.max()
        return jobs

    def abort(self, jobs: Sequence[Job], why: Outcome) -> list[Arrival]:
        """End the jobs of `jobs` that still run, charged up to now; return their arrivals.

        A job that arrives within ON_TIME_S of now is in time: it goes to its inbox instead.
        """
        aborted = []
        if self._journeys is not None:
            self._journeys.settle(ON_TIME_S)
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

    def _reachable(self) -> np.ndarray:
        mask: np.ndarray = self._availability.mask(len(self.fleet), self.now_s)
        return mask & self._batteries.on(self.now_s) if self._batteries else mask

    def _lasting_s(self, devices: Ids, prices: np.ndarray) -> dict[int, float]:
        """Return the devices whose battery empties before their job is done, and after how many seconds."""
        if not self._batteries:
            return {}
        phases = []
        for seconds, joules in zip(prices[:3], prices[6:], strict=True):
            watts = np.divide(joules, seconds, out=np.zeros(len(devices)), where=seconds > 0)
            phases.append((watts, seconds))
        lasting = self._batteries.lasting_s(devices, phases, self.now_s)
        short = np.isfinite(lasting)
        return dict(zip(devices[short].tolist(), lasting[short].tolist(), strict=True))

    def _send_off(self, job: Job, lasting_s: float) -> None:
        """Start a job: over links of its own it is one timeout, over shared links it goes phase by phase."""
        if self._journeys is not None:
            self._journeys.start(job)
        elif lasting_s < inf:
            job.due_s = inf
            self.env.timeout(lasting_s, job).callbacks.append(self._die)
        else:
            self.env.timeout(job.due_s - job.sent_s, job).callbacks.append(self._arrive)

    def _die(self, event: simpy.Event) -> None:
        """End a job whose device has drawn the last joule of its battery."""
        job = cast(Job, event.value)
        if not job.ended:
            inbox = self.running[job.id][1]
            inbox.put(self._end(job, "battery", self.now_s - job.sent_s))

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
        if outcome == "no_memory":
            spent = NOTHING
        elif self._journeys is None:
            spent = spent_alone(job, elapsed_s)
        else:
            spent = self._journeys.end(job)
        down, compute, up = spent.shares
        flops = compute * job.flops
        down_bytes, up_bytes = int(down * job.down_bytes), int(up * job.up_bytes)
        joules = joules_of(job, spent, self.fleet)
        self.ledger.charge(job.device, *joules, sum(spent.seconds))
        if self._batteries:
            self._batteries.draw_job(job, spent, joules)
        self.flops += flops
        self.down_bytes += down_bytes
        self.up_bytes += up_bytes
        staleness = self.model.version - job.base.version
        self.tables["jobs"].append(
            (job.id, job.device, job.round, job.base.version, job.task.name, job.task.part.shape_id, job.sent_s,
             *spent.seconds, spent.link_wait_s, self.now_s, outcome, flops, down_bytes, up_bytes, *joules)
        )  # fmt: skip
        return Arrival(job, self.now_s, outcome, staleness, compute == 1.0)
