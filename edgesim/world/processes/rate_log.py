"""Logs of rates in formats of other tools, with the meanings and units of their columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from edgesim.core.arrays import Arr
from edgesim.core.errors import DataError
from edgesim.files.reading import csv_records, in_short, quoted
from edgesim.files.tables import Rows, number

NEEDED = ("time", "up", "down")
OPTIONAL = ("device",)
RATE_UNITS: Mapping[str, float] = {"bit/s": 1.0, "kbit/s": 1e3, "Mbit/s": 1e6, "Gbit/s": 1e9}  # in bit/s
TIME_UNITS: Mapping[str, float] = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}  # in seconds


@dataclass(frozen=True)
class LogFormat:
    """Format of a log: the column names of NEEDED and OPTIONAL, the unit of rates and the unit of times.

    `time`: one of TIME_UNITS, or a format of dates as strptime has them.
    """

    columns: Mapping[str, str]
    rate_unit: str
    time: str

    @property
    def dated(self) -> bool:
        """True if times are dates."""
        return self.time not in TIME_UNITS


def read_log(path: Path, log: LogFormat) -> Rows:
    """Return the rows of a log, as time_s from 0, up_bps, down_bps and device (the place of its first row).

    Rows of one device and instant are one, with the mean of their rates. Raises DataError that names file, line and
    column, and says what is allowed.
    """
    if log.dated and "%" not in log.time:
        raise DataError(f"{path}: time is in one of {', '.join(TIME_UNITS)} or in a format of dates, got {log.time!r}")
    header, records = csv_records(path)
    lacks = [name for name in log.columns.values() if name not in header]
    if lacks:
        raise DataError(f"{path} line 1: has no column {quoted(lacks[0])}; it has {in_short(', '.join(header))}")
    lines, texts = [], {name: list[str]() for name in log.columns}
    for line, record in records:
        lines.append(line)
        for name, column in log.columns.items():
            texts[name].append(record[column].strip())
    if not lines:
        raise DataError(f"{path}: holds no rows")
    return _merged(path, np.array(lines), dict(_columns(path, lines, texts, log)))


def _columns(
    path: Path, lines: Sequence[int], texts: Mapping[str, Sequence[str]], log: LogFormat
) -> Iterator[tuple[str, Arr]]:
    scale = RATE_UNITS[log.rate_unit]
    times_s = _dates_s(texts["time"], log.time) if log.dated else TIME_UNITS[log.time] * _numbers(texts["time"])
    allowed = f"a date in the format {log.time!r}" if log.dated else f"a finite number in {log.time}"
    columns = {"time": times_s, "up": scale * _numbers(texts["up"]), "down": scale * _numbers(texts["down"])}
    for name, column in columns.items():
        good = np.isfinite(column) & ((column >= 0) | (name == "time"))
        if not good.all():
            place = int(good.argmin())
            needs = allowed if name == "time" else f"a finite number of at least 0, in {log.rate_unit}"
            found = f"column {log.columns[name]} must be {needs}, got {quoted(texts[name][place])}"
            raise DataError(f"{path} line {lines[place]}: {found}")
    yield "time_s", times_s
    yield "up_bps", columns["up"]
    yield "down_bps", columns["down"]
    if "device" in texts:
        places = {label: float(place) for place, label in enumerate(dict.fromkeys(texts["device"]))}
        yield "device", np.array([places[label] for label in texts["device"]])


def _merged(path: Path, lines: np.ndarray, columns: Mapping[str, Arr]) -> Rows:
    """Return rows whose times start at 0, those of an instant as one. Raises DataError if time falls."""
    device = columns.get("device", np.zeros(len(lines)))
    order = np.argsort(device, kind="stable")
    device, time_s = device[order], columns["time_s"][order]
    begins = np.append(True, np.diff(device) > 0)  # the first row of each device
    falls = np.append(False, np.diff(time_s) < 0) & ~begins
    if falls.any():
        place = int(order[falls].min())
        raise DataError(f"{path} line {lines[place]}: time must not fall, it is earlier than in the row before")
    time_s = time_s - time_s[begins][np.cumsum(begins) - 1]
    starts = np.flatnonzero(begins | np.append(True, np.diff(time_s) > 0))  # of each instant
    rows = np.diff(np.append(starts, len(lines)))
    rates = {name: np.add.reduceat(columns[name][order], starts) / rows for name in ("up_bps", "down_bps")}
    return Rows(path, "line", lines[order][starts], {"time_s": time_s[starts], **rates, "device": device[starts]})


def _numbers(texts: Sequence[str]) -> Arr:
    return np.array([number(text) for text in texts])


def _dates_s(texts: Sequence[str], form: str) -> Arr:
    """Return seconds since 1970, nan for what is no such date."""
    import pandas as pd  # takes longer than all else that a scenario is checked with, torch aside

    dates = pd.to_datetime(pd.Series(texts), format=form, errors="coerce").to_numpy(dtype="datetime64[ns]")
    seconds: Arr = np.where(np.isnat(dates), np.nan, dates.astype(np.int64) / 1e9)
    return seconds
