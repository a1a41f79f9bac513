"""Turns orders into jobs: numbers and prices them, and draws what will happen to them on the way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from edgesim.core.arrays import Arr, Ids
from edgesim.core.job import Job, JobChoice, Prices
from edgesim.core.rng import Draws, Key
from edgesim.core.task import Order, Plan
from edgesim.core.update import FIRST_MODEL, ModelRef
from edgesim.core.view import Setting
from edgesim.engine.accounting import Usage
from edgesim.engine.allotment import Allotment
from edgesim.engine.base_holders import BaseHolders
from edgesim.engine.batteries import FleetBatteries
from edgesim.engine.interruptions import Interruption, Interruptions
from edgesim.engine.pricing import Pricer
from edgesim.world.availability.base import Availability
from edgesim.world.failures.base import Failure
from edgesim.world.fleet import Fleet
from edgesim.world.resources.base import Resources


class JobCounter:
    """Counts of the jobs of a simulation and of each device, over all sessions."""

    def __init__(self, devices: int) -> None:
        self.jobs = 0
        self.of_device = np.zeros(devices, dtype=np.int64)
        self._one = self.of_device.data  # the same numbers: one of them costs a third this way

    def count(self, device: int) -> int:
        """Count one more job of a device; return its id."""
        self._one[device] += 1
        self.jobs += 1
        return self.jobs - 1

    @property
    def asked(self) -> np.ndarray:
        """Devices that have had a job so far, bool, shape (devices,)."""
        asked: np.ndarray = self.of_device > 0
        return asked


@dataclass(slots=True)
class PricedJobs:
    """The jobs of a plan, and what is known about each; sequences have one entry a job."""

    jobs: list[Job]
    interruptions: Sequence[Interruption] | None  # None: nothing can end any of them before its time
    battery_s: Sequence[float] | None  # seconds after which the device's battery is empty; None: none empties
    fits: Sequence[bool]  # whether the device has the memory
    nobody_fits: bool  # the smallest job needs more memory than any device has


_WORD = 2**32  # jobs of a device in a session, at most: what lies above tells sessions apart


class Dispatcher:
    """Prices orders of a session.

    Keys and draws count the jobs that a device had of this session, so they depend neither on the order of events nor
    on what other sessions do.
    """

    def __init__(
        self,
        *,
        fleet: Fleet,
        setting: Setting,
        availability: Availability,
        failures: Failure | None,
        batteries: FleetBatteries,
        counter: JobCounter,
        key: Key,
        due_known: bool,
        session_word: int = 0,
        resources: Resources | None = None,
    ) -> None:
        """`due_known`: links are dedicated, so that the end of a job of the server follows from its prices.

        `session_word`: below 2**31, tells draws of sessions apart. `resources`: chooses frequency, power and bandwidth
        of jobs; None: governor, network and allocator do.
        """
        self._fleet = fleet
        self._interruptions = Interruptions(fleet, availability, failures)
        self._failures = failures
        self._arrivals = setting.arrivals
        self._batteries = batteries
        self._counter = counter
        self._key = key
        self._due_known = due_known
        self._holders = BaseHolders(setting, len(fleet))
        self._pricer = Pricer(fleet, setting, None if failures is None else failures.links, self._holders)
        self._allotment = None if resources is None else Allotment(resources, fleet)
        self._draws = failures is not None or not self._pricer.steady  # anything about a job is left to chance
        self._jobs = 0  # of this session
        self.draws_of_device = np.full(len(fleet), _WORD * session_word, dtype=np.int64)  # which its next job's are
        # of each device, then those that train: one number of a memoryview costs a third of one of an array
        self._one_of_device = self.draws_of_device.data
        self._trainings = np.zeros(len(fleet), dtype=np.int64).data
        self._memory_bytes = fleet.memory_bytes.data
        own = slice(None) if setting.members is None else setting.members
        self._largest_bytes = float(fleet.memory_bytes[own].max())

    def price(self, plan: Plan, round_: int, model: ModelRef, now_s: float) -> PricedJobs:
        """Return the jobs of a plan that are sent now, from this global model."""
        orders = plan.orders
        draws = self._draws_of(orders) if self._draws else None
        share, limits = self._cut_short(orders, draws, now_s)
        prices = self._pricer.of_each(orders, now_s, draws, share)
        choices: Sequence[JobChoice | None] = [None] * len(orders)
        if self._allotment is not None:
            choices = self._allotment.of(_devices(orders), _columns(prices), self._pricer.cpu_work(orders, now_s))
            prices = self._pricer.of_each(orders, now_s, draws, share, choices)
        interruptions = None
        if not self._interruptions.unbroken:
            interruptions = self._interruptions.of(_devices(orders), _columns(prices), draws, now_s)
        battery_s = self._battery_s(orders, prices, now_s) if self._batteries else None
        jobs, fits = [], []
        for place, order in enumerate(orders):
            limit = None if limits is None else limits[place]
            jobs.append(self._job(order, prices[place], limit, choices[place], round_, model, now_s))
            fits.append(prices[place].memory_bytes <= self._memory_bytes[order.device])
        nobody_fits = not any(fits) and min(price.memory_bytes for price in prices) > self._largest_bytes
        return PricedJobs(jobs, interruptions, battery_s, fits, nobody_fits)

    def job_ended(self, job: Job, usage: Usage) -> None:
        """Note the effects of a job that has ended on the prices of later ones."""
        self._holders.ended(job, usage)

    def steer(self, deadline_s: float, clock_share: float) -> None:
        """Price the orders to come for this deadline, and at most this share of each device's highest frequency."""
        self._pricer.steer(deadline_s, clock_share)

    def price_compute(self, job: Job, start_s: float) -> None:
        """Set what a job's computation takes if it starts at `start_s`, where that depends on the time.

        For jobs that were sent without knowing when they would compute.
        """
        if self._fleet.steady:
            return
        draws = Draws(self._key, np.array([job.device]), self.draws_of_device[[job.device]] - 1)
        compute_s, compute_j = self._pricer.compute(job, start_s, draws)
        job.prices = job.prices._replace(compute_s=compute_s, compute_j=compute_j)

    def _job(
        self,
        order: Order,
        prices: Prices[float],
        limit: int | None,
        choice: JobChoice | None,
        round_: int,
        model: ModelRef,
        now_s: float,
    ) -> Job:
        device, task = order.device, order.task
        of_server = task.start == "server"
        due_s = inf
        if self._due_known and of_server:
            due_s = now_s + prices.down_s + prices.compute_s + prices.up_s
            if task.overlaps:
                due_s = now_s + max(prices.down_s, prices.compute_s, prices.up_s)
        job = Job(
            id=self._counter.count(device),
            device=device,
            task=task,
            round=round_,
            nth=self._trainings[device],
            base=model if of_server else FIRST_MODEL,
            sent_s=now_s,
            due_s=due_s,
            prices=prices,
            inputs=order.inputs,
            wait=order.wait,
            steps=limit,
            choice=choice,
            samples=None if self._arrivals is None else int(self._arrivals.held(np.array([device]), now_s)[0]),
            number=self._jobs,
        )
        self._jobs += 1
        self._one_of_device[device] += 1
        self._trainings[device] += bool(task.local_sgd)
        return job

    def _draws_of(self, orders: Sequence[Order]) -> Draws:
        """Return the random numbers of jobs that have not been counted yet."""
        devices = _devices(orders)
        return Draws(self._key, devices, self.draws_of_device[devices])

    def _cut_short(
        self, orders: Sequence[Order], draws: Draws | None, now_s: float
    ) -> tuple[Arr | None, Sequence[int | None] | None]:
        """Return the shares of their computation that jobs do, and the steps of those that stop early, None: all."""
        if self._failures is None or draws is None:
            return None, None
        share = self._failures.work_share(draws)
        if (share >= 1.0).all():
            return None, None
        steps = self._pricer.steps(orders, now_s)
        taken = np.where(share < 1.0, np.maximum(np.floor(share * steps), np.minimum(steps, 1.0)), steps)
        limits = [int(t) if t < s else None for t, s in zip(taken.tolist(), steps.tolist(), strict=True)]
        return np.divide(taken, steps, out=np.ones(len(orders)), where=steps > 0), limits

    def _battery_s(
        self, orders: Sequence[Order], prices: Sequence[Prices[float]], now_s: float
    ) -> Sequence[float] | None:
        """Return after how many seconds of their job the devices' batteries are empty, inf: they outlast it.

        None: all of them do.
        """
        unsure = []  # places of the orders whose devices' batteries may not outlast them
        for place, (order, price) in enumerate(zip(orders, prices, strict=True)):
            joules, seconds = price.down_j + price.compute_j + price.up_j, price.down_s + price.compute_s + price.up_s
            if not self._batteries.outlasts(order.device, joules, seconds, now_s):
                unsure.append(place)
        if not unsure:
            return None
        battery_s = np.full(len(orders), inf)
        devices, columns = _devices([orders[place] for place in unsure]), _columns([prices[place] for place in unsure])
        battery_s[unsure] = self._lasting_s(devices, columns, now_s)
        lasting: Sequence[float] = battery_s.tolist()
        return lasting

    def _lasting_s(self, devices: Ids, prices: Prices[Arr], now_s: float) -> Arr:
        nothing = np.zeros(len(devices))
        legs = []
        for joules, seconds, latency_s in (
            (prices.down_j, prices.down_s, prices.down_latency_s),
            (prices.compute_j, prices.compute_s, 0.0),
            (prices.up_j, prices.up_s, prices.up_latency_s),
        ):
            on_s = seconds - latency_s
            watts = np.divide(joules, on_s, out=np.zeros(len(devices)), where=on_s > 0)
            legs += [(nothing, seconds - on_s), (watts, on_s)]
        return self._batteries.lasting_s(devices, [leg for leg in legs if leg[1].any()], now_s)


def _devices(orders: Sequence[Order]) -> Ids:
    return np.array([order.device for order in orders], dtype=np.int64)


def _columns(prices: Sequence[Prices[float]]) -> Prices[Arr]:
    return Prices(*map(np.array, zip(*prices, strict=True)))
