"""Work of a task on a device: samples, steps, FLOPs, and their seconds at full speed.

Prices and methods that plan by time use the same functions, so that they agree.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from edgesim.core.arrays import Arr, Ids
from edgesim.core.backend import REPORT_BYTES
from edgesim.core.encoding import Contents
from edgesim.core.price_list import profile_of
from edgesim.core.task import Pass, Task
from edgesim.core.view import Setting


def update_flops(
    momentum: bool = False, weight_decay: bool = False, nesterov: bool = False, adam: bool = False
) -> float:
    """Return FLOPs of the optimiser per trained parameter and step.

    SGD: one product and one sum, and again for each option. Adam: 3 for the mean of gradients, 4 for the mean of their
    squares, 6 for the step: a root, a quotient that corrects it, a sum, and a quotient, a product, a sum.
    """
    if adam:
        return 13.0 + 2.0 * weight_decay
    return 2.0 + 2.0 * momentum + 2.0 * weight_decay + 2.0 * nesterov


def amount(task: Task, setting: Setting, ids: Ids, now_s: float = np.inf) -> tuple[Arr, Arr]:
    """Return the samples and SGD steps of a task that is sent to these devices at `now_s`, both of shape (k,).

    Without `now_s` all samples have arrived.
    """
    samples, steps = np.zeros(len(ids)), np.zeros(len(ids))
    trained_on = np.maximum(setting.held(ids, now_s) - task.held_out, 0)  # devices with fewer samples have prices too
    for sgd in task.local_sgd:
        done, taken = sgd.amount(trained_on, profile_of(setting.cost_profile, task.submodel).drop_single)
        samples += done
        steps += taken
    return samples, steps


def flops_of(task: Task, setting: Setting, samples: Arr, steps: Arr) -> Arr:
    """Return the FLOPs of a task with these samples and steps, shape (k,)."""
    if task.counted is not None:
        return np.full(len(samples), task.counted.flops)
    total, cost_profile = np.zeros(len(samples)), profile_of(setting.cost_profile, task.submodel)
    for work in _passes(task, setting):
        total += setting.cost.flops(cost_profile, work, task.submodel, samples, steps)
    return total


def amounts_of(task: Task, setting: Setting, samples: Arr, steps: Arr) -> Mapping[str, Arr] | None:
    """Return the amount of each kind of work, each of shape (k,).

    None: the cost model knows only FLOPs, or no clock looks at more.
    """
    if not setting.kinds:
        return None
    if task.counted is not None:
        return {kind: np.full(len(samples), of_kind) for kind, of_kind in task.counted.amounts.items()} or None
    total: dict[str, Arr] = {}
    cost_profile = profile_of(setting.cost_profile, task.submodel)
    for work in _passes(task, setting):
        amounts = setting.cost.amounts(cost_profile, work, task.submodel, samples, steps)
        if amounts is None:
            return None
        for kind, of_kind in amounts.items():
            total[kind] = total.get(kind, 0.0) + of_kind
    return total or None


def clock_work(
    task: Task, setting: Setting, ids: Ids, samples: Arr, steps: Arr, flops: Arr
) -> tuple[Arr, Mapping[str, Arr] | None]:
    """Return FLOPs and amounts of the kinds of work, if known, as the clocks of these devices charge them.

    `flops`: those of the task, see `flops_of`. A device with a speedup in bfloat16 is charged 1 / speedup of the FLOPs
    of each training and forward pass, without the optimiser's, and everything else as in float32.
    """
    amounts = amounts_of(task, setting, samples, steps)
    if setting.bfloat16_speedup is None or task.counted is not None:
        return flops, amounts
    lowered, profile = np.zeros(len(ids)), profile_of(setting.cost_profile, task.submodel)
    for work in task.passes:
        if work.kind in ("train", "forward"):
            lowered += setting.cost.flops(profile, replace(work, update_flops=0.0), task.submodel, samples, steps)
    share = 1.0 / setting.bfloat16_speedup[ids]
    if amounts is not None and "flops" in amounts:
        faster = {kind: share * amounts[kind] for kind in _FLOPS_OF_LAYERS if kind in amounts}
        amounts = {**amounts, **faster, "flops": np.maximum(amounts["flops"] - lowered, 0.0) + share * lowered}
    return np.maximum(flops - lowered, 0.0) + share * lowered, amounts


_FLOPS_OF_LAYERS = ("depthwise_flops", "forward_pointwise_flops")  # kinds of work whose FLOPs are also in `flops`


def payload_bytes(task: Task, setting: Setting) -> tuple[float, float]:
    """Return the bytes of the model that a device gets from the server, and of its update with its report."""
    if task.counted is not None:
        return float(task.counted.down_bytes), float(task.counted.up_bytes)
    profile, down_bytes = profile_of(setting.cost_profile, task.submodel), 0.0
    if task.start == "server" and task.down is not None:
        down_bytes = float(profile.nbytes(task.down, task.submodel, setting.encoding_down))
    report_bytes = REPORT_BYTES if setting.reports and task.local_sgd else 0
    return down_bytes, report_bytes + float(profile.nbytes(task.up, task.submodel, setting.encoding_up))


def moved_bytes(task: Task, setting: Setting) -> float:
    """Return the bytes that a device reads and writes as payloads; 0 where no device takes time for them."""
    return sum(payload_bytes(task, setting)) if setting.per_byte else 0.0


def full_speed_s(task: Task, setting: Setting, ids: Ids) -> Arr:
    """Return the seconds of computing a task on these devices, as the server can know them, shape (k,).

    At their highest frequencies, without slow-downs.
    """
    samples, steps = amount(task, setting, ids)
    flops, amounts = clock_work(task, setting, ids, samples, steps, flops_of(task, setting, samples, steps))
    if setting.speeds is None:
        seconds: Arr = flops / setting.flops_per_s[ids]
        return seconds
    return setting.speeds(ids, flops, amounts, moved_bytes(task, setting))


def expected_s(task: Task, setting: Setting, ids: Ids) -> Arr:
    """Return the seconds of whole jobs on these devices, as the server can know them, shape (k,).

    Computing as `full_speed_s` has it, transfers at the mean rates, and their latencies.
    """
    assert task.down is not None
    cost_profile = profile_of(setting.cost_profile, task.submodel)
    down_s = 8.0 * cost_profile.nbytes(task.down, task.submodel, setting.encoding_down) / setting.down_bps[ids]
    up_s = 8.0 * cost_profile.nbytes(task.up, task.submodel, setting.encoding_up) / setting.up_bps[ids]
    seconds: Arr = full_speed_s(task, setting, ids) + down_s + up_s + 2.0 * setting.latency_s[ids]
    return seconds


def _passes(task: Task, setting: Setting) -> list[Pass]:
    """Return the passes of a task with the FLOPs of its optimiser, and a pass for encoding and decoding on the device.

    A device encodes the update that it sends and decodes the model that the server sent.
    """
    momentum = any(sgd.momentum > 0 for sgd in task.local_sgd)
    decay = any(sgd.weight_decay > 0 for sgd in task.local_sgd)
    nesterov = any(sgd.nesterov for sgd in task.local_sgd)
    adam = any(sgd.optimizer != "sgd" for sgd in task.local_sgd)
    flops = update_flops(momentum, decay, nesterov, adam)
    passes = [replace(work, update_flops=flops) for work in task.passes]
    payloads = [(task.up, task.up.encoding or setting.encoding_up)]
    if task.start == "server" and task.down is not None:
        payloads.append((task.down, task.down.encoding or setting.encoding_down))
    profile, coding_flops = profile_of(setting.cost_profile, task.submodel), 0.0
    for payload, encoding in payloads:
        tensors = Contents(0, 0, 0, 0, 0, vectors=sum(spec.numbers for spec in payload.tensors))
        own = encoding.of_others.coding_flops(tensors)
        contents = profile.contents(payload, task.submodel)
        coding_flops += float(profile.numbers_scale * encoding.coding_flops(contents) + own)
    return [*passes, Pass("flops", coding_flops)] if coding_flops else passes
