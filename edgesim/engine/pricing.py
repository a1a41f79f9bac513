"""What an order costs: seconds, bytes, FLOPs and joules of whole groups of devices at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from edgesim.card import update_flops
from edgesim.contracts import Ids, Order, Payload, Setting, Task
from edgesim.rng import Draws
from edgesim.world.fleet import Fleet

# Rows of a price array, in the order of the fields of contracts.Job.
ROWS = ("down_s", "compute_s", "up_s", "flops", "down_bytes", "up_bytes", "down_j", "compute_j", "up_j")


def price_orders(orders: Sequence[Order], fleet: Fleet, setting: Setting, now_s: float, draws: Draws) -> np.ndarray:
    """Return the prices of orders that start at `now_s`, float64, shape (len(ROWS), orders).

    `draws`: of these jobs, in their order; energies are what a job adds to idle power.
    """
    prices = np.empty((len(ROWS), len(orders)))
    places: dict[int, tuple[Task, list[int]]] = {}
    for place, order in enumerate(orders):
        places.setdefault(id(order.task), (order.task, []))[1].append(place)
    for task, where in places.values():
        some = Draws(draws.key, draws.ids[where], draws.nth[where])
        prices[:, where] = price_task(task, some.ids, fleet, setting, now_s, some)
    return prices


def price_task(task: Task, ids: Ids, fleet: Fleet, setting: Setting, now_s: float, draws: Draws) -> np.ndarray:
    """Return the prices of one task that starts at `now_s` on devices `ids`, float64, shape (len(ROWS), k)."""
    flops = _flops(task, ids, setting)
    down_bytes, up_bytes = (np.full(len(ids), _nbytes(payload, task, setting)) for payload in (task.down, task.up))
    begin_s = np.full(len(ids), now_s)
    down_s, down_air_s = fleet.transfer_s(ids, down_bytes, False, begin_s, draws)
    comm_s = down_s + fleet.latency_s[ids] + 8.0 * up_bytes / fleet.up_bps[ids]
    compute_s, compute_j = fleet.compute(ids, flops, comm_s, setting.deadline_s, begin_s + down_s, draws)
    up_s, up_air_s = fleet.transfer_s(ids, up_bytes, True, begin_s + down_s + compute_s, draws)
    down_j, up_j = fleet.receive_w[ids] * down_air_s, fleet.transmit_w[ids] * up_air_s
    return np.stack([down_s, compute_s, up_s, flops, down_bytes, up_bytes, down_j, compute_j, up_j])


def memory_bytes(task: Task, setting: Setting) -> int:
    """Return the bytes that a device needs at the peak of a task; 0 if it trains nothing."""
    needs = (setting.card.memory_bytes(task.part, s.batch, s.momentum > 0).total for s in task.stretches)
    return max(needs, default=0)


def _nbytes(payload: Payload | None, task: Task, setting: Setting) -> float:
    return 0.0 if payload is None else float(setting.card.nbytes(payload, task.part))


def _flops(task: Task, ids: Ids, setting: Setting) -> np.ndarray:
    samples = np.zeros(len(ids))
    steps = np.zeros(len(ids))
    for stretch in task.stretches:
        done, taken = stretch.amount(setting.samples[ids], setting.card.drop_single)
        samples += done
        steps += taken
    momentum = any(stretch.momentum > 0 for stretch in task.stretches)
    decay = any(stretch.weight_decay > 0 for stretch in task.stretches)
    total = np.zeros(len(ids))
    for work in task.passes:
        work = replace(work, update_flops=update_flops(momentum, decay))
        total += setting.cost.flops(setting.card, work, task.part, samples, steps)
    return total
