"""Where orders become jobs: numbered, priced, and with all that will happen to them on the way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from edgesim.contracts import SERVER, Arr, Ids, Job, ModelRef, Order, Plan, Setting
from edgesim.engine.batteries import FleetBatteries
from edgesim.engine.fate import Fate, Fates
from edgesim.engine.pricing import Pricer, memory_bytes
from edgesim.rng import Draws, Key
from edgesim.world.failure import Failure
from edgesim.world.fleet import Fleet

_FIRST = ModelRef(SERVER, 0)  # where peers start that have kept nothing yet


@dataclass(slots=True)
class Stamped:
    """Jobs, and what is known about each: its fate, after how many seconds its battery is empty, if it fits."""

    jobs: list[Job]
    fates: Sequence[Fate] | None  # None: nothing can happen to any of them
    battery_s: Sequence[float] | None  # None: no battery empties
    fits: Sequence[bool]
    nobody_fits: bool  # the smallest job needs more memory than any device has


class Desk:
    """Stamps orders. Keys and draws count a device's own jobs, so they do not depend on the order of events."""

    def __init__(
        self,
        fleet: Fleet,
        setting: Setting,
        fates: Fates,
        failures: Failure | None,
        batteries: FleetBatteries,
        key: Key,
    ) -> None:
        self._fleet = fleet
        self._setting = setting
        self._fates = fates
        self._failures = failures
        self._batteries = batteries
        self._key = key
        self._pricer = Pricer(fleet, setting, None if failures is None else failures.links)
        self._trainings = np.zeros(len(fleet), dtype=np.int64)  # of each device so far
        self._dispatched = np.zeros(len(fleet), dtype=np.int64)
        self._one_dispatched = self._dispatched.data  # the same numbers: one of them costs a third this way
        self._one_training = self._trainings.data
        self._jobs = 0
        self._harmed = failures is not None or bool(batteries) or not fates.unbroken
        self._smallest_bytes = float(fleet.memory_bytes.min())
        self._largest_bytes = float(fleet.memory_bytes.max())

    @property
    def asked(self) -> np.ndarray:
        """Which devices had an order so far, bool, shape (devices,)."""
        asked: np.ndarray = self._dispatched > 0
        return asked

    def stamp(self, plan: Plan, round_: int, model: ModelRef, now_s: float, due_known: bool) -> Stamped:
        """Return the jobs of a plan that are sent now, from this global model.

        `due_known`: links are the devices' own, so that a job's end follows from its prices.
        """
        orders = plan.orders
        devices = np.array([order.device for order in orders], dtype=np.int64)
        draws = Draws(self._key, devices, self._dispatched[devices])
        self._dispatched[devices] += 1
        before = self._trainings[devices].tolist()
        share, limits = self._cut_short(orders, draws)
        prices = self._pricer.prices(orders, now_s, draws, share)
        fates = self._fates.of(devices, prices, draws, now_s)
        battery_s = self._battery_s(devices, prices, now_s)
        jobs = [
            self._job(order, price, nth, limit, round_, model, now_s, due_known)
            for order, price, nth, limit in zip(orders, prices.T.tolist(), before, limits, strict=True)
        ]
        needs = {id(task): memory_bytes(task, self._setting) for task in {id(o.task): o.task for o in orders}.values()}
        fits = [needs[id(order.task)] <= self._fleet.memory_bytes[order.device] for order in orders]
        return Stamped(jobs, fates, battery_s, fits, min(needs.values()) > self._largest_bytes)

    def stamp_sure(self, order: Order, round_: int, model: ModelRef, now_s: float, due_known: bool) -> Job | None:
        """Do the same at less cost for one order of the server, as protocols without rounds send one at a time.

        None: its prices have to be worked out, or something may happen to it; `stamp` is for these.
        """
        if self._harmed or order.task.home != "server":
            return None
        known = self._pricer.remembered(order)
        if known is None or known[1] > self._smallest_bytes:
            return None
        self._one_dispatched[order.device] += 1
        return self._job(order, known[0], self._one_training[order.device], None, round_, model, now_s, due_known)

    def _job(
        self,
        order: Order,
        price: Sequence[float],
        nth: int,
        limit: int | None,
        round_: int,
        model: ModelRef,
        now_s: float,
        due_known: bool,
    ) -> Job:
        device, task, inputs, wait = order
        down_s, compute_s, up_s, flops, down_bytes, up_bytes, down_j, compute_j, up_j, quiet_down_s, quiet_up_s = price
        of_server = task.home == "server"
        due_s = now_s + down_s + compute_s + up_s if due_known and of_server else inf
        job = Job(
            self._jobs, device, task, round_, nth, model if of_server else _FIRST, now_s, due_s,
            down_s, compute_s, up_s, flops, int(down_bytes), int(up_bytes), down_j, compute_j, up_j,
            quiet_down_s, quiet_up_s, inputs, wait, limit,
        )  # fmt: skip
        self._jobs += 1
        self._one_training[device] += bool(task.stretches)
        return job

    def price_compute(self, job: Job, start_s: float) -> None:
        """Set what a job's computation takes if it starts at `start_s`, where that depends on the time.

        For jobs that were sent without knowing when they would compute.
        """
        if self._fleet.steady:
            return
        draws = Draws(self._key, np.array([job.device]), self._dispatched[[job.device]] - 1)
        job.compute_s, job.compute_j = self._pricer.compute(job, start_s, draws)

    def _cut_short(self, orders: Sequence[Order], draws: Draws) -> tuple[Arr, Sequence[int | None]]:
        """Return the shares of their computation that jobs do, and the steps of those that stop early, None: all."""
        all_of_it = np.ones(len(orders))
        if self._failures is None:
            return all_of_it, [None] * len(orders)
        share = self._failures.work_share(draws)
        if (share >= 1.0).all():
            return all_of_it, [None] * len(orders)
        steps = self._pricer.steps(orders)
        taken = np.where(share < 1.0, np.maximum(np.floor(share * steps), np.minimum(steps, 1.0)), steps)
        limits = [int(t) if t < s else None for t, s in zip(taken.tolist(), steps.tolist(), strict=True)]
        return np.divide(taken, steps, out=all_of_it, where=steps > 0), limits

    def _battery_s(self, devices: Ids, prices: np.ndarray, now_s: float) -> Sequence[float] | None:
        """Return after how many seconds of their job the devices' batteries are empty, inf: they outlast it."""
        if not self._batteries:
            return None
        down_s, compute_s, up_s, *_, down_j, compute_j, up_j, down_latency_s, up_latency_s = prices
        legs = []
        for joules, seconds, latency_s in (
            (down_j, down_s, down_latency_s),
            (compute_j, compute_s, 0.0),
            (up_j, up_s, up_latency_s),
        ):
            on_s = seconds - latency_s
            watts = np.divide(joules, on_s, out=np.zeros(len(devices)), where=on_s > 0)
            legs += [(np.zeros(len(devices)), seconds - on_s), (watts, on_s)]
        lasting: Sequence[float] = self._batteries.lasting_s(devices, legs, now_s).tolist()
        return lasting
