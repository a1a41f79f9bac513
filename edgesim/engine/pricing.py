"""What an order costs: seconds, bytes, FLOPs and joules of whole groups of devices at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import isfinite
from typing import Any, NamedTuple, NoReturn

import numpy as np

from edgesim.contracts import Arr, Encoding, Ids, Job, Order, Payload, Setting, Task
from edgesim.errors import ConfigError
from edgesim.limits import check_steps
from edgesim.rng import Draws, Key
from edgesim.workload import amount, flops_of, items_of
from edgesim.world.failure import stretched_s
from edgesim.world.fleet import Fleet
from edgesim.world.onoff import OnOff

# Rows of a price array, in the order of the fields of contracts.Job.
ROWS = (
    "down_s", "compute_s", "up_s", "flops", "down_bytes", "up_bytes", "down_j", "compute_j", "up_j",
    "down_latency_s", "up_latency_s",
)  # fmt: skip


_MOST_KNOWN = 64  # tasks

# What an infinite price is, in which unit, and the key to look at.
_BLAMED = {
    "down_s": ("a download", "s", "network.down"),
    "compute_s": ("computing", "s", "fleet.{block}.cpu"),
    "up_s": ("an upload", "s", "network.up"),
    "flops": ("computing", "FLOP", "training"),
    "down_bytes": ("a download", "bytes", "model"),
    "up_bytes": ("an upload", "bytes", "model"),
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
    """What is remembered of a task: its prices on each device, and the bytes that it needs."""

    task: Task | None
    prices: list[list[float]]
    memory_bytes: int


class Pricer:
    """Prices the jobs of one run."""

    def __init__(self, fleet: Fleet, setting: Setting, links_up: OnOff | None = None) -> None:
        self._fleet = fleet
        self._setting = setting
        self._links_up = links_up  # None: links never fail
        self._steady = fleet.steady and links_up is None
        self._known: dict[Any, _Known] = {}
        self._last = _Known(None, [], 0)

    def remembered(self, order: Order) -> tuple[Sequence[float], int] | None:
        """Return the prices of an order, len(ROWS) of them, and the bytes it needs at its peak.

        None if prices are not the same at any time, so that they cannot be remembered.
        """
        if not self._steady:
            return None
        last, task = self._last, order.task
        if task is not last.task:  # equal tasks are often one object; a method that makes them anew makes equal ones
            last = self._last = last._replace(task=task) if task == last.task else self._of_everybody(task)
        return last.prices[order.device], last.memory_bytes

    def prices(self, orders: Sequence[Order], now_s: float, draws: Draws, share: Arr | float = 1.0) -> np.ndarray:
        """Return the prices of orders that start at `now_s`, float64, shape (len(ROWS), orders).

        `draws`: of these jobs, in their order; `share`: of the computation that is done, shape (orders,). Energies are
        what a job adds to idle power. The messages of peers are no part of it: only their size stands in the row
        up_bytes. Raises ConfigError if a price is infinite or not a number.
        """
        prices, share = np.empty((len(ROWS), len(orders))), np.broadcast_to(share, len(orders))
        with np.errstate(all="ignore"):  # what is not finite is refused below
            for task, where in _by_task(orders):
                some = Draws(draws.key, draws.ids[where], draws.nth[where])
                prices[:, where] = self._of_task(task, now_s, some, share[where])
        self._check_finite(prices, draws.ids)
        return prices

    def of_all(self, task: Task) -> np.ndarray:
        """Return the prices of a task that starts at 0 on every device, float64, shape (len(ROWS), devices).

        Raises ConfigError if a price is infinite or not a number.
        """
        everybody = np.arange(len(self._fleet))
        with np.errstate(all="ignore"):  # what is not finite is refused below
            prices = self._of_task(task, 0.0, Draws(Key(0), everybody, everybody), np.ones(len(everybody)))
        self._check_finite(prices, everybody)
        return prices

    def compute(self, job: Job, start_s: float, draws: Draws) -> tuple[float, float]:
        """Return seconds and joules of a job's computation that starts at `start_s`; `draws`: of this job."""
        work = self._work(job.task, draws.ids)
        comm_s = np.zeros(1)
        if job.task.home == "server":
            comm_s = self._comm_s(draws.ids, np.array([job.down_s]), np.array([float(job.up_bytes)]))
        seconds, joules = self._compute(job.task, work, comm_s, np.array([start_s]), draws)
        share = 1.0 if job.steps is None else job.steps / float(work.steps[0])
        if not isfinite(seconds[0] + joules[0]):
            self._refuse("compute_j" if isfinite(seconds[0]) else "compute_s", job.device, seconds[0] + joules[0])
        return share * float(seconds[0]), share * float(joules[0])

    def steps(self, orders: Sequence[Order]) -> Arr:
        """Return the SGD steps of orders, shape (orders,)."""
        steps = np.empty(len(orders))
        for task, where in _by_task(orders):
            steps[where] = amount(task, self._setting, np.array([orders[place].device for place in where]))[1]
        return steps

    def _of_everybody(self, task: Task) -> _Known:
        """Return what is known of a task on every device."""
        key = (task.home, task.part, task.down, task.up, task.passes, tuple(replace(s, lr=0.0) for s in task.stretches))
        if key not in self._known:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            prices = self.of_all(task)
            self._known[key] = _Known(task, prices.T.tolist(), memory_bytes(task, self._setting))
        return self._known[key]._replace(task=task)

    def _check_finite(self, prices: np.ndarray, ids: Ids) -> None:
        """Raise ConfigError that names the key if a price, or a job's seconds together, are not finite."""
        if (wrong := np.argwhere(~np.isfinite(prices))).size:
            row, place = wrong[0]
            self._refuse(ROWS[row], int(ids[place]), prices[row, place])
        with np.errstate(over="ignore"):
            seconds = prices[:3].sum(axis=0)
        if not np.isfinite(seconds).all():
            place = np.isfinite(seconds).argmin()
            self._refuse(ROWS[prices[:3, place].argmax()], int(ids[place]), seconds[place])

    def _refuse(self, price: str, device: int, value: float) -> NoReturn:
        what, unit, key = _BLAMED.get(price, ("the latency", "s", "network.latency"))
        block = int(self._fleet.kind[device])
        raise ConfigError(
            f"{key.format(block=block)}: {what} takes {value} {unit} on device {device} of fleet.{block}, "
            "must be finite"
        )

    def _of_task(self, task: Task, now_s: float, draws: Draws, share: Arr) -> np.ndarray:
        fleet, ids = self._fleet, draws.ids
        work = self._work(task, ids)
        begin_s, nothing = np.full(len(ids), now_s), np.zeros(len(ids))
        up_bytes = np.full(len(ids), _nbytes(task.up, task, self._setting, self._setting.encoding_up))
        if task.home == "self":  # no transfer from or to the server
            compute_s, compute_j = (share * of_all for of_all in self._compute(task, work, nothing, begin_s, draws))
            spent = (nothing, compute_s, nothing, share * work.flops, nothing, up_bytes, nothing, compute_j, nothing)
            return np.stack([*spent, nothing, nothing])
        down_bytes = np.full(len(ids), _nbytes(task.down, task, self._setting, self._setting.encoding_down))
        down_s, down_air_s, down_quiet_s = self._transfer(down_bytes, False, begin_s, draws)
        priced = self._compute(task, work, self._comm_s(ids, down_s, up_bytes), begin_s + down_s, draws)
        compute_s, compute_j = (share * of_all for of_all in priced)
        up_s, up_air_s, up_quiet_s = self._transfer(up_bytes, True, begin_s + down_s + compute_s, draws)
        down_j, up_j = fleet.receive_w[ids] * down_air_s, fleet.transmit_w[ids] * up_air_s
        spent = (down_s, compute_s, up_s, share * work.flops, down_bytes, up_bytes, down_j, compute_j, up_j)
        return np.stack([*spent, down_quiet_s, up_quiet_s])

    def _work(self, task: Task, ids: Ids) -> _Work:
        samples, steps = amount(task, self._setting, ids)
        return _Work(samples, steps, flops_of(task, self._setting, samples, steps))

    def _comm_s(self, ids: Ids, down_s: Arr, up_bytes: Arr) -> Arr:
        """Return the seconds that a governor expects its device's transfers to take, shape (k,)."""
        comm_s: Arr = down_s + self._fleet.latency_s[ids] + 8.0 * up_bytes / self._fleet.up_bps[ids]
        return comm_s

    def _compute(self, task: Task, work: _Work, comm_s: Arr, start_s: Arr, draws: Draws) -> tuple[Arr, Arr]:
        items = items_of(task, self._setting, work.samples, work.steps) if self._fleet.itemised else None
        return self._fleet.compute(draws.ids, work.flops, comm_s, self._setting.deadline_s, start_s, draws, items)

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
    needs = (setting.card.memory_bytes(task.part, s.batch, s.momentum > 0).total for s in task.stretches)
    return max(needs, default=0)


def averaging_flops(jobs: Sequence[Job], setting: Setting) -> float:
    """Return the FLOPs of a server that averages what jobs sent it: a multiplication and an addition a number."""
    numbers = 0
    for task, where in _by_task(jobs):
        if task.home == "server":
            numbers += len(where) * setting.card.numbers(task.up, task.part)
    return 2.0 * numbers


def _by_task(orders: Sequence[Order | Job]) -> Iterator[tuple[Task, list[int]]]:
    """Yield each task and the places of its orders or jobs."""
    places: dict[int, tuple[Task, list[int]]] = {}
    for place, order in enumerate(orders):
        places.setdefault(id(order.task), (order.task, []))[1].append(place)
    yield from places.values()


def _nbytes(payload: Payload | None, task: Task, setting: Setting, usual: Encoding) -> float:
    return 0.0 if payload is None else float(setting.card.nbytes(payload, task.part, usual))
