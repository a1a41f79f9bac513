"""What an order costs: seconds, bytes, FLOPs and joules of whole groups of devices at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgesim.contracts import Ids, Order, Payload, Setting, Task
from edgesim.world.fleet import Fleet

# Rows of a price array, in the order of the fields of contracts.Job.
ROWS = ("down_s", "compute_s", "up_s", "flops", "down_bytes", "up_bytes", "down_j", "compute_j", "up_j")


def price_orders(orders: Sequence[Order], fleet: Fleet, setting: Setting) -> np.ndarray:
    """Return the prices of orders, float64, shape (len(ROWS), orders); energies are what the job adds to idle."""
    prices = np.empty((len(ROWS), len(orders)))
    places: dict[int, tuple[Task, list[int]]] = {}
    for place, order in enumerate(orders):
        places.setdefault(id(order.task), (order.task, []))[1].append(place)
    for task, where in places.values():
        ids = np.array([orders[place].device for place in where], dtype=np.int64)
        prices[:, where] = price_task(task, ids, fleet, setting)
    return prices


def price_task(task: Task, ids: Ids, fleet: Fleet, setting: Setting) -> np.ndarray:
    """Return the prices of one task on devices `ids`, float64, shape (len(ROWS), k)."""
    flops = _flops(task, ids, setting)
    compute_s = fleet.compute_s(ids, flops)
    down_bytes = _nbytes(task.down, setting)
    up_bytes = _nbytes(task.up, setting)
    latency_s = fleet.latency_s[ids]
    down_s, down_air_s = fleet.transfer_s(fleet.down_bps[ids], latency_s, np.full(len(ids), down_bytes))
    up_s, up_air_s = fleet.transfer_s(fleet.up_bps[ids], latency_s, np.full(len(ids), up_bytes))
    return np.stack(
        [
            down_s,
            compute_s,
            up_s,
            flops,
            np.full(len(ids), down_bytes),
            np.full(len(ids), up_bytes),
            fleet.receive_w[ids] * down_air_s,
            fleet.compute_w[ids] * compute_s,
            fleet.transmit_w[ids] * up_air_s,
        ]
    )


def _nbytes(payload: Payload | None, setting: Setting) -> float:
    return 0.0 if payload is None else float(setting.card.nbytes(payload))


def _flops(task: Task, ids: Ids, setting: Setting) -> np.ndarray:
    samples = np.zeros(len(ids))
    steps = np.zeros(len(ids))
    for stretch in task.stretches:
        done, taken = stretch.amount(setting.samples[ids], setting.card.drop_single)
        samples += done
        steps += taken
    total = np.zeros(len(ids))
    for work in task.passes:
        total += setting.cost.flops(setting.card, work, task.part, samples, steps)
    return total
