"""CPUs of the devices for which a governor chooses a frequency, and the work that they do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from edgesim.core.arrays import Arr

_POINTS = np.linspace(0.0, 1.0, 33)  # of an interval of frequencies in which a minimum lies
_COLUMN = (slice(None), None)  # makes an array of shape (k,) one of shape (k, 1)
_ROUNDS = 6  # each narrows the interval to a sixteenth: a relative error of 1e-7


class CpuWork(NamedTuple):
    """Work of k jobs, both of shape (k,): its seconds are cycles / frequency + memory_s."""

    cycles: Arr  # of every core
    memory_s: Arr  # seconds that do not get shorter with the clock, such as those of memory traffic


@dataclass(frozen=True, eq=False)
class VoltageCurve:
    """Supply voltage by frequency: straight lines between points, and the lowest voltage below the lowest point."""

    hz: Arr  # ascending, shape (points,)
    volts: Arr  # shape (points,)
    continuous: bool  # governors may choose frequencies between the points

    def volts_at(self, frequency_hz: Arr) -> Arr:
        """Return the voltage at each frequency, of the same shape."""
        volts: Arr = np.interp(frequency_hz, self.hz, self.volts)
        return volts


class CpuArrays(NamedTuple):
    """CPUs whose cores run at one frequency f: dynamic power of each core, static power while computing.

    The dynamic power of a core is capacitance x f^3 without a voltage curve, and capacitance x V(f)^2 x f with one. All
    arrays have shape (k,).
    """

    min_hz: Arr
    max_hz: Arr
    cores: Arr
    capacitance: Arr  # of one core: J s^2, with a voltage curve farads
    static_w: Arr  # of the whole CPU while it computes, on top of the device's idle power
    memory_share: Arr  # power while it waits for memory, as a share of dynamic and static power
    curve: VoltageCurve | None = None

    def rows(self, rows: Any) -> CpuArrays:
        """Return the CPUs in some rows, or the same CPUs with arrays of another shape."""
        return CpuArrays(
            self.min_hz[rows],
            self.max_hz[rows],
            self.cores[rows],
            self.capacitance[rows],
            self.static_w[rows],
            self.memory_share[rows],
            self.curve,
        )

    def compute_s(self, work: CpuWork, frequency_hz: Arr) -> Arr:
        """Return the seconds that work takes at these frequencies, shape (k,)."""
        seconds: Arr = work.cycles / frequency_hz + work.memory_s
        return seconds

    def compute_w(self, frequency_hz: Arr) -> Arr:
        """Return watts, shape (k,), that computing adds to idle power."""
        watts: Arr
        if self.curve is None:
            watts = self.cores * self.capacitance * frequency_hz**3 + self.static_w
        else:
            squared = self.curve.volts_at(frequency_hz) ** 2
            watts = self.cores * self.capacitance * squared * frequency_hz + self.static_w
        return watts

    def mean_w(self, work: CpuWork, frequency_hz: Arr) -> Arr:
        """Return the mean watts, shape (k,), that work adds to idle power, seconds that wait for memory included."""
        watts = self.compute_w(frequency_hz)
        if not np.count_nonzero(work.memory_s):  # faster than `any` for a single job
            return watts
        spared_s, busy_s = (1.0 - self.memory_share) * work.memory_s, self.compute_s(work, frequency_hz)
        share = np.divide(spared_s, busy_s, out=np.zeros(len(busy_s)), where=busy_s > 0)
        mean: Arr = watts * (1.0 - share)
        return mean

    def best_hz(self, work: CpuWork, least_hz: Arr | float = 0.0) -> Arr:
        """Return the frequency of the fewest joules from `least_hz` on, within bounds, shape (k,).

        Without a voltage curve a cycle takes capacitance x cores x f^2 + static / f joules, least at
        (static / (2 capacitance cores))^(1/3). Seconds of memory add their power, which grows with f, so the best
        frequency of work that has any is lower. It is then found numerically, as for a voltage curve: joules fall and
        then rise with f. On a curve that is not continuous it is one of the points or bounds.
        """
        if self.curve is not None and not self.curve.continuous:
            hz = np.clip(self.curve.hz, self.min_hz[:, None], self.max_hz[:, None])
            hz = np.concatenate([self.min_hz[:, None], hz, self.max_hz[:, None]], axis=1)
            late = hz < np.minimum(least_hz, self.max_hz)[:, None]
            best = np.where(late, np.inf, self._joules(work, hz)).argmin(axis=1)
            found: Arr = hz[np.arange(len(best)), best]
            return found
        if self.curve is None:
            free_hz = np.cbrt(self.static_w / (2.0 * self.capacitance * self.cores))
            best_hz = np.clip(free_hz, self.min_hz, self.max_hz)
            if np.count_nonzero(work.memory_s):
                best_hz = np.where(work.memory_s > 0, self._searched_hz(work), best_hz)
        else:
            best_hz = self._searched_hz(work)
        within: Arr = np.clip(np.maximum(least_hz, best_hz), self.min_hz, self.max_hz)
        return within

    def _joules(self, work: CpuWork, hz: Arr) -> Arr:
        """Return the joules, shape (k, n), that work of shape (k,) adds to idle power at frequencies (k, n)."""
        memory_s = self.memory_share * work.memory_s
        joules: Arr = self.rows(_COLUMN).compute_w(hz) * (work.cycles[:, None] / hz + memory_s[:, None])
        return joules

    def _searched_hz(self, work: CpuWork) -> Arr:
        """Return the frequencies of the fewest joules by narrowing the bounds around the best of several points."""
        low, high, each = self.min_hz, self.max_hz, np.arange(len(work.cycles))
        for _ in range(_ROUNDS):
            hz = low[:, None] + (high - low)[:, None] * _POINTS
            best = self._joules(work, hz).argmin(axis=1)
            low, high = hz[each, np.maximum(best - 1, 0)], hz[each, np.minimum(best + 1, len(_POINTS) - 1)]
        found: Arr = hz[each, best]
        return found
