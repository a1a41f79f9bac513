"""Watts of a device as its meter logged them: logs of several formats, and powers when idle, busy and in between."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from edgesim.core.arrays import Arr
from edgesim.core.errors import ConfigError
from edgesim.files.reading import csv_records, quoted, read_text

# Units of a column of a CSV file, in watts or joules. Energies are counters that grow, such as `energy_uj` of RAPL.
POWERS: Mapping[str, float] = {"watts": 1.0, "milliwatts": 1e-3, "microwatts": 1e-6}
COUNTERS: Mapping[str, float] = {"joules": 1.0, "microjoules": 1e-6}
MOST_GAP = 5.0  # longest time between two samples, in medians of it
MOST_NOISE = 0.5  # largest standard deviation around the fit, as a share of the watts that computing adds
_RAILS = ("VDD_IN", "POM_5V_IN")  # of the whole board, in tegrastats
_TEGRASTATS = re.compile(r"^(?P<time>\d\d-\d\d-\d{4} \d\d:\d\d:\d\d) ")
_CORES = re.compile(r"CPU \[([^\]]*)\]")


class Span(NamedTuple):
    """A span of time in seconds since 1970."""

    start_s: float
    end_s: float


@dataclass(frozen=True, eq=False)
class PowerLog:
    """Samples of a meter. `utilisation`: share of all cores that are busy, or None; all arrays have shape (n,)."""

    path: Path
    time_s: Arr  # since 1970
    watts: Arr
    utilisation: Arr | None = None

    def within(self, span: Span) -> Arr:
        """Return a bool array: the samples that lie in a span."""
        return (self.time_s >= span.start_s) & (self.time_s <= span.end_s)


class MeasuredPowers(NamedTuple):
    """Power of a whole device: `idle_w + slope_w x utilisation`, and while it trained."""

    idle_w: float
    busy_w: float
    slope_w: float
    busy_utilisation: float

    @property
    def quantities(self) -> dict[str, float]:
        """Quantities of a device profile, in watts."""
        return {"idle": self.idle_w, "busy": self.busy_w}


def read_power_log(path: Path) -> PowerLog:
    """Return the samples of a file: tegrastats of a Jetson, or CSV.

    CSV has the columns `time` (seconds since 1970, or date and time with a time zone), one of POWERS or COUNTERS, and
    optionally `utilisation` from 0 to 1. Raises ConfigError with the line at fault, also if samples are missing.
    """
    first = read_text(path, ConfigError).partition("\n")[0]
    log, lines = _of_tegrastats(path) if _TEGRASTATS.match(first) else _of_csv(path)
    if len(log.time_s) < 3:
        raise ConfigError(f"{path}: needs at least 3 samples, found {len(log.time_s)}")
    steps = np.diff(log.time_s)
    usual_s = float(np.median(steps))
    for step_s, line in zip(steps, lines[1:], strict=True):
        if step_s <= 0:
            raise ConfigError(f"{path} line {line}: times must grow from line to line")
        if step_s > MOST_GAP * usual_s:
            gap = f"{step_s:.3g} s without a sample, where samples are {usual_s:.3g} s apart"
            raise ConfigError(f"{path} line {line}: {gap}; record without gaps")
    return log


def _of_csv(path: Path) -> tuple[PowerLog, Sequence[int]]:
    header, records = csv_records(path, ConfigError)
    units = [name for name in header if name in POWERS or name in COUNTERS]
    if "time" not in header or len(units) != 1:
        allowed = ", ".join([*POWERS, *COUNTERS])
        raise ConfigError(f"{path} line 1: needs a column time and one of {allowed}, found {quoted(','.join(header))}")
    unit = units[0]
    rows = [(line, record) for line, record in records]
    lines = [line for line, _ in rows]
    time_s = np.array([_seconds(path, line, record["time"]) for line, record in rows])
    values = np.array([_number(path, line, unit, record[unit]) for line, record in rows])
    shares = None
    if "utilisation" in header:
        shares = np.array([_number(path, line, "utilisation", record["utilisation"]) for line, record in rows])
        if (shares > 1).any():
            raise ConfigError(f"{path} line {lines[int(np.argmax(shares))]}: utilisation must be from 0 to 1")
    if unit in POWERS:
        return PowerLog(path, time_s, POWERS[unit] * values, shares), lines
    rises = np.diff(values)
    if (rises < 0).any():
        line = lines[1 + int(np.argmax(rises < 0))]
        raise ConfigError(f"{path} line {line}: {unit} must be a counter that grows; it wrapped or was reset")
    with np.errstate(divide="ignore", invalid="ignore"):
        watts = COUNTERS[unit] * rises / np.diff(time_s)
    return PowerLog(path, time_s[1:], watts, None if shares is None else shares[1:]), lines[1:]


def _of_tegrastats(path: Path) -> tuple[PowerLog, Sequence[int]]:
    found: list[tuple[float, float, float]] = []
    for number, line in enumerate(read_text(path, ConfigError).splitlines(), start=1):
        stamp, cores = _TEGRASTATS.match(line), _CORES.search(line)
        rail = next((match for name in _RAILS if (match := re.search(rf"{name} (\d+)(?:mW)?/", line))), None)
        if stamp is None or cores is None or rail is None:
            raise ConfigError(
                f"{path} line {number}: needs a date, CPU [...] and {' or '.join(_RAILS)}, as of tegrastats"
            )
        # tegrastats counts local time, and so does this host
        local = pd.to_datetime(stamp["time"], format="%m-%d-%Y %H:%M:%S").to_pydatetime().timestamp()
        busy = [float(core.partition("%")[0]) for core in cores[1].split(",") if core != "off"]
        found.append((local, 1e-3 * float(rail[1]), sum(busy) / (100.0 * max(len(busy), 1))))
    time_s, watts, utilisation = (np.array(column) for column in zip(*found, strict=True))
    return PowerLog(path, time_s, watts, utilisation), range(1, len(found) + 1)


def _seconds(path: Path, line: int, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        pass
    try:
        stamp = pd.Timestamp(text)
    except ValueError:
        stamp = None
    if stamp is None or stamp.tzinfo is None:
        raise ConfigError(
            f"{path} line {line}: time must be seconds since 1970 or a date with time zone, got {quoted(text)}"
        )
    return float(stamp.timestamp())


def _number(path: Path, line: int, name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = np.nan
    if not 0 <= value < np.inf:
        raise ConfigError(f"{path} line {line}: {name} must be a number of at least 0, got {quoted(text)}")
    return value


def powers_of(log: PowerLog, idle: Span, busy: Span, utilisation: float) -> MeasuredPowers:
    """Return the powers of a device from a log that covers both spans.

    `utilisation`: share of all cores that training keeps busy, for logs that do not say it. Power is the line through
    all samples of both spans by least squares. Raises ConfigError if samples are missing or too noisy for it.
    """
    spans = {"idle": log.within(idle), "busy": log.within(busy)}
    for name, chosen in spans.items():
        if chosen.sum() < 3:
            which = "before it trained" if name == "idle" else "while it trained"
            raise ConfigError(
                f"{log.path}: has {chosen.sum()} samples of this host {which}, needs 3; record all the time"
            )
    shares = np.where(spans["busy"], utilisation, 0.0) if log.utilisation is None else log.utilisation
    every = spans["idle"] | spans["busy"]
    lines = np.stack([np.ones(every.sum()), shares[every]], axis=1)
    (idle_w, slope_w), *_ = np.linalg.lstsq(lines, log.watts[every], rcond=None)
    busy_share = float(shares[spans["busy"]].mean())
    added_w, noise_w = slope_w * busy_share, float(np.std(log.watts[every] - lines @ [idle_w, slope_w]))
    if not added_w > 0 or idle_w <= 0 or noise_w > MOST_NOISE * added_w:
        raise ConfigError(
            f"{log.path}: samples lie {noise_w:.3g} W around {idle_w:.3g} W idle and {idle_w + added_w:.3g} W busy, "
            "which is too noisy; record more often, or let nothing else run"
        )
    return MeasuredPowers(float(idle_w), float(idle_w + added_w), float(slope_w), busy_share)
