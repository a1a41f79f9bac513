"""CPU load of machines as in Google's cluster trace of 2011, and the share of its speed that each machine has left.

Source: Reiss, Wilkes and Hellerstein, "Google cluster-usage traces: format + schema" (2011, version 2.1), tables
task_usage and machine_events.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from pathlib import Path

import numpy as np

from edgesim.core.arrays import Arr
from edgesim.core.errors import DataError
from edgesim.files.reading import csv_rows, quoted
from edgesim.files.traces.columns import Columns

_US = 1e-6
_START, _END, _MACHINE, _CPU_RATE = 0, 1, 4, 5  # columns of task_usage, which has no header
_EVENT_MACHINE, _EVENT_CPU = 1, 4  # of machine_events
_LOAD_DIGITS = 12  # digits of a load beyond rounding errors of sums


def speeds_of(
    usage: Sequence[Path], machines: Path | None = None, least: float = 0.05, most: int | None = None
) -> Columns:
    """Return the columns time_s, speed and device: 1 less the load of a machine's tasks, at least `least`.

    `usage`: files of the table task_usage; `machines`: of machine_events, whose CPUs loads are shares of; None: 1 for
    all. Machines are devices 0, 1, ... in ascending order, at most so many as `most`. Time 0 is the first start; all
    series end together, and a machine without tasks has its whole speed. Raises DataError with file, line and column.
    """
    capacity = {} if machines is None else _capacities(machines)
    rows: dict[int, list[tuple[float, float, float]]] = {}
    for path in usage:
        for line, row in csv_rows(path):
            start_us, end_us = (_number(path, line, row, column) for column in (_START, _END))
            if end_us <= start_us:
                after = f"must be after column 1, {row[_START]}, got {row[_END]}"
                raise DataError(f"{path} line {line}: column 2 (end time) {after}")
            machine, rate = (_number(path, line, row, column) for column in (_MACHINE, _CPU_RATE))
            rows.setdefault(int(machine), []).append((start_us, end_us, rate))
    if not rows:
        raise DataError(f"{', '.join(map(str, usage))}: holds no rows")
    first_us = min(start_us for tasks in rows.values() for start_us, _, _ in tasks)
    last_us = max(end_us for tasks in rows.values() for _, end_us, _ in tasks)
    columns: Columns = {"time_s": [], "speed": [], "device": []}
    for device, machine in enumerate(sorted(rows)[:most]):
        if machines is not None and machine not in capacity:
            raise DataError(f"{machines}: has no CPU capacity of machine {machine}, which has tasks")
        times_us, load = _load(np.array(rows[machine]), first_us, last_us)
        speed = np.clip(1.0 - load / capacity.get(machine, 1.0), least, 1.0)
        columns["time_s"] += ((times_us - first_us) * _US).tolist()
        columns["speed"] += speed.tolist()
        columns["device"] += [device] * len(speed)
    return columns


def _load(tasks: Arr, first_us: float, last_us: float) -> tuple[Arr, Arr]:
    """Return the times at which the load of a machine changes, and the load from each time on.

    `tasks`: start, end and rate, shape (tasks, 3). The last interval is halved, because a replayed series lasts as long
    after its last row as the interval before that row.
    """
    start_us, end_us, rate = tasks.T
    times_us = np.unique(np.concatenate([[first_us], start_us, end_us]))
    steps = np.zeros(len(times_us))
    np.add.at(steps, np.searchsorted(times_us, start_us), rate)
    np.subtract.at(steps, np.searchsorted(times_us, end_us), rate)
    load = np.round(np.cumsum(steps), _LOAD_DIGITS)
    before = times_us < last_us
    times_us, load = times_us[before], load[before]
    return np.append(times_us, (times_us[-1] + last_us) / 2.0), np.append(load, load[-1])


def _capacities(path: Path) -> Mapping[int, float]:
    """Return the last CPU capacity above 0 of each machine in machine_events."""
    found = {}
    for line, row in csv_rows(path):
        machine = _number(path, line, row, _EVENT_MACHINE, ("time", "machine ID", "event type", "platform ID", "CPUs"))
        if len(row) > _EVENT_CPU and row[_EVENT_CPU].strip():  # removals may say none
            cpu = _number(path, line, row, _EVENT_CPU, ("time", "machine ID", "event type", "platform ID", "CPUs"))
            if cpu > 0:
                found[int(machine)] = cpu
    return found


_USAGE = ("start time", "end time", "job ID", "task index", "machine ID", "CPU rate")


def _number(path: Path, line: int, row: Sequence[str], column: int, names: Sequence[str] = _USAGE) -> float:
    """Return the number in a column, counted from 0. Raises DataError unless it is finite and not below 0."""
    if column >= len(row):
        raise DataError(f"{path} line {line}: needs at least {column + 1} columns ({', '.join(names)}), got {len(row)}")
    try:
        number = float(row[column])
    except ValueError:
        number = -1.0
    if not isfinite(number) or number < 0:
        needs = f"column {column + 1} ({names[column]}) must be a finite number of at least 0"
        raise DataError(f"{path} line {line}: {needs}, got {quoted(row[column])}")
    return number
