"""Prices orders: seconds, bytes, FLOPs and joules of whole groups of devices at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from edgesim.core.arrays import Arr, Ids
from edgesim.core.errors import ConfigError
from edgesim.core.job import Job, JobChoice, Prices
from edgesim.core.limits import MOST_AMOUNT, check_amount, check_steps
from edgesim.core.price_list import F32_BYTES, profile_of
from edgesim.core.rng import Draws, Key
from edgesim.core.task import Order, Task
from edgesim.core.view import Setting
from edgesim.core.workload import amount, clock_work, flops_of, moved_bytes, payload_bytes
from edgesim.engine.base_holders import BaseHolders
from edgesim.world.compute.governors.cpu import CpuWork
from edgesim.world.failures.base import stretched_s
from edgesim.world.fleet import Fleet
from edgesim.world.processes.on_off import OnOff

_MOST_TASKS = 64  # tasks


class _Trained(NamedTuple):
    """A model that a task trains, and its share in the task: so many times the samples (None: the device's own)."""

    macs: float
    times: float
    samples: int | None


class _KnownModels(NamedTuple):
    """Cached sizes of a task, with the task itself so that its id is not reused."""

    task: Task
    models: list[_Trained]
    macs: float | None  # of all of these, if they are of one size


class TrainedModels:
    """Mean size of the models trained, in forward multiply-accumulates a sample; see `CostProfile.forward_macs`."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._known: dict[int, _KnownModels] = {}  # by id: hashing a task of many jobs costs more
        self._jobs = 0
        self._total = 0.0

    @property
    def forward_macs(self) -> float | None:
        """Mean over all jobs that train, whatever became of them; None before the first.

        A job with several models, such as one a batch, counts with their mean over samples.
        """
        return self._total / self._jobs if self._jobs else None

    def add(self, job: Job) -> None:
        """Count a job, if it trains."""
        if not job.task.local_sgd:
            return
        known = self._known.get(id(job.task)) or self._learn(job.task)
        self._jobs += 1
        self._total += self._mean(job, known.models) if known.macs is None else known.macs

    def _learn(self, task: Task) -> _KnownModels:
        if len(self._known) >= _MOST_TASKS:
            self._known.clear()
        models = self._models_of(task)
        sizes = {model.macs for model in models}
        known = self._known[id(task)] = _KnownModels(task, models, sizes.pop() if len(sizes) == 1 else None)
        return known

    def _models_of(self, task: Task) -> list[_Trained]:
        cost_profile = profile_of(self._setting.cost_profile, task.submodel)
        found = [
            _Trained(cost_profile.forward_macs(work.submodel or task.submodel), work.times, work.samples)
            for work in task.passes
            if work.kind == "train" and work.times and work.samples != 0
        ]
        return found or [_Trained(cost_profile.forward_macs(task.submodel), 1.0, None)]

    def _mean(self, job: Job, models: list[_Trained]) -> float:
        """Return the mean over the samples of a job that trains models of several sizes."""
        held = self._setting.samples[[job.device]] - job.task.held_out
        drop_single = profile_of(self._setting.cost_profile, job.task.submodel).drop_single
        own = sum(float(sgd.amount(held, drop_single)[0][0]) for sgd in job.task.local_sgd)
        weights = [model.times * (own if model.samples is None else model.samples) for model in models]
        return float(np.average([model.macs for model in models], weights=weights))


_MOST_KNOWN = 64  # tasks
_FEW = 64  # orders: the prices of more are worked out together at less cost than they are looked up
_CHUNK = 1_024  # devices whose prices are worked out together and remembered

# What a price that is too large is, in which unit, and the key to look at.
_BLAMED = {
    "down_s": ("a download", "s", "network.down"),
    "compute_s": ("computing", "s", "fleet.{block}.cpu"),
    "up_s": ("an upload", "s", "network.up"),
    "flops": ("computing", "FLOP", "training"),
    "down_bytes": ("a download", "bytes", "model"),
    "up_bytes": ("an upload", "bytes", "model"),
    "message_bytes": ("a message", "bytes", "model"),
    "memory_bytes": ("training", "bytes", "model"),
    "down_air_bytes": ("a download", "bytes", "network.loss"),
    "up_air_bytes": ("an upload", "bytes", "network.loss"),
    "down_j": ("a download", "J", "energy.receive"),
    "compute_j": ("computing", "J", "energy"),
    "up_j": ("an upload", "J", "energy.transmit"),
}


class _Work(NamedTuple):
    """Amounts of a task, each of shape (k,)."""

    samples: Arr
    steps: Arr
    flops: Arr


class _Known(NamedTuple):
    """Cached prices of a task by chunk of devices, as far as asked."""

    task: Task
    chunks: dict[int, list[Prices[float]]]


class Pricer:
    """Prices the jobs of one session. Prices that never change are remembered."""

    def __init__(
        self, fleet: Fleet, setting: Setting, links_up: OnOff | None = None, holders: BaseHolders | None = None
    ) -> None:
        """`holders`: devices whose downloads do not bring the base of their network; None: all devices."""
        self._holders = holders
        self._fleet = fleet
        self._setting = setting
        self._links_up = links_up  # None: links never fail
        self._known: dict[Any, _Known] = {}
        self._last: _Known | None = None
        self.steady = (
            fleet.steady and links_up is None and setting.arrivals is None
        )  # prices depend neither on time nor on draws

    def steer(self, deadline_s: float, clock_share: float) -> None:
        """Price for this deadline, and at most this share of each device's highest frequency, from now on."""
        self._setting = replace(self._setting, deadline_s=deadline_s)
        self._fleet = replace(self._fleet, clock_share=clock_share)
        self._known, self._last = {}, None

    def of_each(
        self,
        orders: Sequence[Order],
        now_s: float,
        draws: Draws | None,
        share: Arr | None = None,
        choices: Sequence[JobChoice] = (),
    ) -> list[Prices[float]]:
        """Return the prices of each order that starts at `now_s`, bytes as integers; see `prices`.

        `draws`: None if there is no need for any, as `steady` says; `share`: None if all of the computation is done;
        `choices`: as in `prices`. Raises ConfigError if a price is too large.
        """
        alike = not choices and self.steady and share is None
        if alike and self._holders is not None:
            alike = not self._holders.lack(np.array([order.device for order in orders]))
        if alike and len(orders) <= _FEW and orders[0].task.counted is None:
            return [self._remembered(order) for order in orders]
        return _of_each(self.prices(orders, now_s, draws, 1.0 if share is None else share, choices))

    def prices(
        self,
        orders: Sequence[Order],
        now_s: float,
        draws: Draws | None,
        share: Arr | float = 1.0,
        choices: Sequence[JobChoice] = (),
    ) -> Prices[Arr]:
        """Return the prices of orders that start at `now_s`, arrays of shape (orders,).

        `draws`: of these jobs, in their order, None as in `of_each`; `share`: of the computation that is done, shape
        (orders,). `choices`: of each order; none: governor, network and allocator choose. Raises ConfigError if a price
        is too large.
        """
        if draws is None:
            draws = _no_draws(np.array([order.device for order in orders], dtype=np.int64))
        columns, share = np.empty((len(Prices._fields), len(orders))), np.broadcast_to(share, len(orders))
        with np.errstate(all="ignore"):  # what is too large is refused below
            for task, where in _by_task(orders):
                some = Draws(draws.key, draws.ids[where], draws.nth[where])
                own = [choices[place] for place in where] if choices else ()
                base_bytes = 0.0 if self._holders is None else self._holders.nbytes(task, some.ids)
                columns[:, where] = self._of_task(task, now_s, some, share[where], own, base_bytes)
        prices: Prices[Arr] = Prices(*columns)
        self._check_amounts(prices, draws.ids)
        return prices

    def of_devices(self, task: Task, ids: Ids) -> Prices[Arr]:
        """Return the prices of a task that starts at 0 on these devices, which have the base, arrays of shape (k,).

        Raises ConfigError if a price is too large.
        """
        with np.errstate(all="ignore"):  # what is too large is refused below
            prices = self._of_task(task, 0.0, _no_draws(ids), np.ones(len(ids)))
        self._check_amounts(prices, ids)
        return prices

    def compute(self, job: Job, start_s: float, draws: Draws) -> tuple[float, float]:
        """Return seconds and joules of a job's computation that starts at `start_s`; `draws`: of this job."""
        work = self._work(job.task, draws.ids, job.sent_s)
        comm_s = np.zeros(1)
        if job.task.start == "server":
            comm_s = self._comm_s(draws.ids, np.array([job.prices.down_s]), np.array([float(job.prices.up_bytes)]))
        hz = None if job.choice is None else np.array([job.choice.frequency_hz])
        seconds, joules = self._compute(job.task, work, comm_s, np.array([start_s]), draws, hz)
        share = 1.0 if job.steps is None else job.steps / float(work.steps[0])
        self._check("compute_s", seconds, draws.ids)
        self._check("compute_j", joules, draws.ids)
        return share * float(seconds[0]), share * float(joules[0])

    def cpu_work(self, orders: Sequence[Order], now_s: float) -> CpuWork:
        """Return the work of orders that are sent at `now_s`, of shape (orders,)."""
        cycles, memory_s = np.empty(len(orders)), np.empty(len(orders))
        for task, where in _by_task(orders):
            ids = np.array([orders[place].device for place in where])
            amounts = self._amounts(task, ids, self._work(task, ids, now_s))
            cycles[where], memory_s[where] = self._fleet.work(ids, *amounts)
        return CpuWork(cycles, memory_s)

    def steps(self, orders: Sequence[Order], now_s: float) -> Arr:
        """Return the SGD steps of orders that are sent at `now_s`, shape (orders,)."""
        steps = np.empty(len(orders))
        for task, where in _by_task(orders):
            devices = np.array([orders[place].device for place in where])
            steps[where] = amount(task, self._setting, devices, now_s)[1]
        return steps

    def _remembered(self, order: Order) -> Prices[float]:
        """Return the prices of an order, which are the same at any time."""
        known, task = self._last, order.task
        if known is None or task is not known.task:
            known = self._last = self._known_of(task)
        chunk, place = divmod(order.device, _CHUNK)
        if chunk not in known.chunks:
            ids = np.arange(chunk * _CHUNK, min((chunk + 1) * _CHUNK, len(self._fleet)))
            known.chunks[chunk] = _of_each(self.of_devices(task, ids))
        return known.chunks[chunk][place]

    def _known_of(self, task: Task) -> _Known:
        """Return the cached prices of a task or of an equal task: some methods make a new one for each order."""
        if self._last is not None and task == self._last.task:
            return self._last._replace(task=task)
        local_sgd = tuple(replace(sgd, lr=0.0) for sgd in task.local_sgd)  # which changes from round to round
        key = (task.start, task.submodel, task.down, task.up, task.passes, local_sgd, task.held_out, task.overlaps)
        if key not in self._known:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[key] = _Known(task, {})
        return self._known[key]._replace(task=task)

    def _check_amounts(self, prices: Prices[Arr], ids: Ids) -> None:
        """Raise ConfigError that names the key if a price is more than a run can add up."""
        for name, column in zip(Prices._fields, prices, strict=True):
            self._check(name, column, ids)

    def _check(self, price: str, column: Arr, ids: Ids) -> None:
        if (column <= MOST_AMOUNT).all():  # false of what is no number
            return
        place = (column <= MOST_AMOUNT).argmin()
        what, unit, key = _BLAMED.get(price, ("the latency", "s", "network.latency"))
        device, block = int(ids[place]), int(self._fleet.kind[ids[place]])
        on = f"{what} on device {device} of fleet.{block}"
        check_amount(key.format(block=block), on, float(column[place]), unit)

    def _of_task(
        self,
        task: Task,
        now_s: float,
        draws: Draws,
        share: Arr,
        choices: Sequence[JobChoice] = (),
        base_bytes: Arr | float = 0.0,
    ) -> Prices[Arr]:
        """Return the prices of orders of one task. `base_bytes`: of frozen parameters that the download brings too."""
        fleet, ids = self._fleet, draws.ids
        own = any(each.kind in ("train", "forward") and each.samples is not None for each in task.passes)
        if own and self._setting.arrivals is not None:
            raise ConfigError(
                "arrival: the method computes on a number of samples that it sets itself, whatever has arrived; choose "
                "one that trains on a device's own samples alone, such as fedavg"
            )
        work = self._work(task, ids, now_s)
        begin_s, nothing = np.full(len(ids), now_s), np.zeros(len(ids))
        needs_bytes = np.full(len(ids), float(memory_bytes(task, self._setting)))
        down_bytes, message_bytes = (np.full(len(ids), nbytes) for nbytes in payload_bytes(task, self._setting))
        if task.start == "device":  # no transfer from or to the server
            compute_s, compute_j = self._compute(task, work, nothing, begin_s, draws)
            return Prices(
                down_s=nothing,
                compute_s=share * compute_s,
                up_s=nothing,
                flops=share * work.flops,
                down_bytes=nothing,
                up_bytes=nothing,
                down_j=nothing,
                compute_j=share * compute_j,
                up_j=nothing,
                down_latency_s=nothing,
                up_latency_s=nothing,
                message_bytes=message_bytes,
                memory_bytes=needs_bytes,
                down_air_bytes=nothing,
                up_air_bytes=nothing,
            )
        down_bytes = down_bytes + base_bytes
        down_s, down_air_s, down_latency_s = self._transfer(down_bytes, False, begin_s, draws)
        comm_s = nothing if task.overlaps else self._comm_s(ids, down_s, message_bytes)
        frequency_hz = np.array([each.frequency_hz for each in choices]) if choices else None
        computes_s = begin_s if task.overlaps else begin_s + down_s
        compute_s, compute_j = self._compute(task, work, comm_s, computes_s, draws, frequency_hz)
        compute_s, compute_j = share * compute_s, share * compute_j
        sends_s = begin_s if task.overlaps else computes_s + compute_s
        up_s, up_air_s, up_latency_s = self._transfer(message_bytes, True, sends_s, draws)
        transmit_w, up_air_bytes = fleet.transmit_w[ids], fleet.air_bytes(ids, message_bytes, True, draws)
        if choices:
            transmit_w = np.array([each.drawn_w for each in choices])
            up_air_s = 8.0 * up_air_bytes / np.array([each.up_bps for each in choices])
            up_s = up_latency_s + up_air_s
        return Prices(
            down_s=down_s,
            compute_s=compute_s,
            up_s=up_s,
            flops=share * work.flops,
            down_bytes=down_bytes,
            up_bytes=message_bytes,
            down_j=fleet.receive_w[ids] * down_air_s,
            compute_j=compute_j,
            up_j=transmit_w * up_air_s,
            down_latency_s=down_latency_s,
            up_latency_s=up_latency_s,
            message_bytes=message_bytes,
            memory_bytes=needs_bytes,
            down_air_bytes=fleet.air_bytes(ids, down_bytes, False, draws),
            up_air_bytes=up_air_bytes,
        )

    def _work(self, task: Task, ids: Ids, now_s: float) -> _Work:
        samples, steps = amount(task, self._setting, ids, now_s)
        return _Work(samples, steps, flops_of(task, self._setting, samples, steps))

    def _comm_s(self, ids: Ids, down_s: Arr, up_bytes: Arr) -> Arr:
        """Return the seconds that a governor expects its device's transfers to take, shape (k,)."""
        comm_s: Arr = down_s + self._fleet.latency_s[ids] + 8.0 * up_bytes / self._fleet.up_bps[ids]
        return comm_s

    def _amounts(self, task: Task, ids: Ids, work: _Work) -> tuple[Arr, Mapping[str, Arr] | None, float]:
        """Return FLOPs, amounts of the kinds of work, if known, and bytes of payloads, as `Fleet.work` takes them."""
        flops, amounts = clock_work(task, self._setting, ids, *work)
        return flops, amounts, moved_bytes(task, self._setting)

    def _compute(
        self, task: Task, work: _Work, comm_s: Arr, start_s: Arr, draws: Draws, frequency_hz: Arr | None = None
    ) -> tuple[Arr, Arr]:
        flops, amounts, moved = self._amounts(task, draws.ids, work)
        seconds, joules = self._fleet.compute(
            draws.ids, flops, comm_s, self._setting.deadline_s, start_s, draws, amounts, moved, frequency_hz
        )
        return (seconds, joules) if task.counted is None else (seconds + task.counted.idle_s, joules)

    def _transfer(self, nbytes: Arr, up: bool, begin_s: Arr, draws: Draws) -> tuple[Arr, Arr, Arr]:
        """Return seconds of transfers, those with the radio on, and those before the first bit; each of shape (k,).

        Beside these, the links may pause.
        """
        seconds, air_s = self._fleet.transfer_s(draws.ids, nbytes, up, begin_s, draws)
        latency_s = np.maximum(seconds - air_s, 0.0)
        if self._links_up is not None:
            spans = air_s / self._links_up.mean_on_s[draws.ids]
            check_steps("failures.up", float(spans.max(initial=0.0)), "a transfer over a link that is up for so short")
            seconds = latency_s + stretched_s(self._links_up, draws.ids, air_s, begin_s + latency_s)
        return seconds, air_s, latency_s


def memory_bytes(task: Task, setting: Setting) -> int:
    """Return the bytes that a device needs at the peak of a task; 0 if it trains nothing."""
    if task.counted is not None:
        return task.counted.memory_bytes
    needs = (
        profile_of(setting.cost_profile, task.submodel).memory_bytes(task.submodel, s.batch, s.moments, s.scratch).total
        for s in task.local_sgd
    )
    return max(needs, default=0)


def averaging_flops(jobs: Sequence[Order | Job], setting: Setting) -> list[float]:
    """Return the FLOPs of a server that averages what each job sent it: a multiplication and an addition a number.

    The bytes of counted work are taken for numbers of 4 bytes.
    """
    flops = [0.0] * len(jobs)
    for task, where in _by_task(jobs):
        if task.counted is not None:
            for place in where:
                flops[place] = 2.0 * task.counted.up_bytes / F32_BYTES
        elif task.start == "server":
            of_each = 2.0 * profile_of(setting.cost_profile, task.submodel).numbers(task.up, task.submodel)
            for place in where:
                flops[place] = of_each
    return flops


def _by_task(orders: Sequence[Order | Job]) -> Iterator[tuple[Task, list[int]]]:
    """Yield each task and the places of its orders or jobs."""
    places: dict[int, tuple[Task, list[int]]] = {}
    for place, order in enumerate(orders):
        places.setdefault(id(order.task), (order.task, []))[1].append(place)
    yield from places.values()


def _of_each(prices: Prices[Arr]) -> list[Prices[float]]:
    """Return the prices of each job, bytes as integers."""
    whole = {"down_bytes", "up_bytes", "message_bytes", "memory_bytes"}
    columns = [column.tolist() for column in prices]
    columns = [list(map(int, c)) if name in whole else c for name, c in zip(Prices._fields, columns, strict=True)]
    return [Prices(*row) for row in zip(*columns, strict=True)]


def _no_draws(ids: Ids) -> Draws:
    """Return draws for jobs whose prices depend on none."""
    return Draws(Key(0), ids, np.zeros(len(ids), dtype=np.int64))
