"""Measured series of piecewise constant rates, and the exact time in which they add up to an amount."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from edgesim.core.arrays import Arr, Ids
from edgesim.files.tables import Rows, read_rows

_ROUNDING = 1e-12  # share of an amount that rounding may add to it
# Stands for "never": unlike inf it can be multiplied by zero whole periods.
_ENDLESS = sys.float_info.max


@dataclass(frozen=True, slots=True, eq=False)
class RateSeries:
    """m series of rates; a series repeats after its period or keeps its last rate for ever.

    The points of all series lie behind one another: those of series j are first[j] to first[j + 1] - 1.
    """

    first: Ids  # shape (m + 1,)
    start_s: Arr  # when the rate of each point begins
    rate: Arr  # amount a second from this point to the next
    before: Arr  # amount from the start of the series to this point
    period_s: Arr  # shape (m,)
    per_period: Arr  # amount of a whole period, shape (m,)

    def __len__(self) -> int:
        return len(self.period_s)

    def mean_rate(self) -> Arr:
        """Return the mean rate of a period, or of the time up to the last point and one last interval, shape (m,)."""
        last: Ids = self.first[1:] - 1
        end_s = np.where(self.period_s < _ENDLESS, self.period_s, _end_s(self.start_s, self.first))
        total = self.before[last] + self.rate[last] * (end_s - self.start_s[last])
        mean: Arr = total / end_s
        return mean

    def seconds(self, which: Ids, amount: Arr, now_s: Arr | float) -> Arr:
        """Return seconds, shape (k,), in which series `which` add up to `amount` from `now_s` on."""
        seconds = np.zeros(len(which))
        due = np.flatnonzero(amount > 0)
        now_s = np.broadcast_to(now_s, len(which))
        seconds[due] = self._positive(which[due], amount[due], now_s[due])
        return seconds

    def _positive(self, which: Ids, amount: Arr, now_s: Arr) -> Arr:
        begin_s = np.mod(now_s, self.period_s[which])
        point = self._last(self.start_s, which, begin_s, np.less_equal)
        target = self.before[point] + (begin_s - self.start_s[point]) * self.rate[point] + amount
        per_period = self.per_period[which]
        periods = np.floor(target / per_period)
        rest = target - periods * per_period
        # what whole periods give, but for rounding, is there before the last of them ends
        whole = rest <= _ROUNDING * target
        periods, rest = periods - whole, np.minimum(np.where(whole, per_period, rest), per_period)
        # strictly less: the rate of the point found is above 0, however long nothing flows before or after it
        point = self._last(self.before, which, rest, np.less)
        end_s = self.start_s[point] + (rest - self.before[point]) / self.rate[point]
        seconds: Arr = np.maximum(periods * self.period_s[which] + end_s - begin_s, 0.0)
        return seconds

    def _last(self, values: Arr, which: Ids, bound: Arr, fits: np.ufunc) -> Ids:
        """Return the last point of each series whose value fits the bound, by bisection of all rows at once."""
        low: Ids = self.first[which]
        high: Ids = self.first[which + 1]
        while (high - low > 1).any():
            middle = (low + high) // 2
            right = fits(values[middle], bound)
            low, high = np.where(right, middle, low), np.where(right, high, middle)
        return low


def rate_series(starts_s: Sequence[Arr], rates: Sequence[Arr], repeat: bool) -> RateSeries:
    """Return series from the start times and rates of each: times rising from 0, rates that do not end in nothing.

    With `repeat` the last rate lasts as long as the one before it, a single rate for ever; then the series begins anew.
    """
    first = np.concatenate([[0], np.cumsum([len(s) for s in starts_s])])
    start_s, rate = np.concatenate(starts_s), np.concatenate(rates)
    before = np.concatenate(
        [np.concatenate([[0.0], np.cumsum(np.diff(s) * r[:-1])]) for s, r in zip(starts_s, rates, strict=True)]
    )
    end_s = _end_s(start_s, first) if repeat else np.full(len(starts_s), _ENDLESS)
    last = first[1:] - 1
    length_s = end_s - start_s[last]
    per_period = before[last] + length_s * rate[last] if repeat else end_s
    return RateSeries(first, start_s, rate, before, end_s, per_period)


def _end_s(start_s: Arr, first: Ids) -> Arr:
    last = first[1:] - 1
    single = last == first[:-1]
    end_s: Arr = np.where(single, 1.0, 2.0 * start_s[last] - start_s[np.where(single, last, last - 1)])
    return end_s


# --- files ------------------------------------------------------------------------------------------------


def read_series(path: Path, names: Sequence[str], repeat: bool) -> list[RateSeries]:
    """Return for each of the columns `names` of a CSV or parquet file the series of its devices.

    The file has the columns time_s, `names` and optionally device, a number: one series for each, in ascending order;
    without it there is one. Raises DataError that names file and line unless every series starts at 0 with rising
    times, its rates are finite and not below 0, and some rate above 0 goes on for ever.
    """
    return series_of(read_rows(path, ("time_s", *names), optional=("device",)), names, repeat)


def series_of(rows: Rows, names: Sequence[str], repeat: bool) -> list[RateSeries]:
    """Return for each of the columns `names` the series of its devices, and raise DataError, as `read_series`."""
    device = rows.columns.get("device", np.zeros(len(rows.numbers)))
    for name, column in rows.columns.items():
        bound, least = (" of at least 0", 0.0) if name in names else ("", -np.inf)
        rows.require(np.isfinite(column) & (column >= least), name, f"a finite number{bound}")
    groups = [np.flatnonzero(device == label) for label in np.unique(device)]
    starts_s = [rows.columns["time_s"][group] for group in groups]
    for group, start_s in zip(groups, starts_s, strict=True):
        _check_times(rows, group, start_s)
    series = []
    for name in names:
        values = [rows.columns[name][group] for group in groups]
        for group, value in zip(groups, values, strict=True):
            if not (value if repeat else value[-1:]).any():
                raise rows.refuse(group[-1], f"{name} is 0 for ever after, so that nothing would end")
        series.append(rate_series(starts_s, values, repeat))
    return series


def _check_times(rows: Rows, group: Ids, start_s: Arr) -> None:
    if start_s[0] != 0:
        raise rows.refuse(group[0], f"the first time_s of a series must be 0, got {start_s[0]:g}")
    falls = np.diff(start_s) <= 0
    if falls.any():
        index = int(falls.argmax()) + 1
        raise rows.refuse(group[index], f"time_s must rise, got {start_s[index]:g} after {start_s[index - 1]:g}")
