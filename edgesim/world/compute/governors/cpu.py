"""CPUs of the devices for which a governor chooses a frequency, and the work that they do."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from edgesim.core.arrays import Arr, Ids

_POINTS = np.linspace(0.0, 1.0, 33)  # of an interval of frequencies in which a minimum lies
_ROUNDS = 6  # each narrows the interval to a sixteenth: a relative error of 1e-7


class CpuWork(NamedTuple):
    """Work of k jobs, both of shape (k,): its seconds are cycles / frequency + memory_s."""

    cycles: Arr  # of every core
    memory_s: Arr  # seconds that do not get shorter with the clock, such as those of memory traffic


class CpuArrays(NamedTuple):
    """CPUs whose cores run at one frequency f: dynamic power capacitance x f^3 a core, static power while computing.

    All arrays have shape (k,).
    """

    min_hz: Arr
    max_hz: Arr
    cores: Arr
    capacitance: Arr  # J s^2, of one core
    static_w: Arr  # of the whole CPU while it computes, on top of the device's idle power

    def rows(self, rows: Ids) -> CpuArrays:
        """Return the CPUs in some rows."""
        return CpuArrays(*(column[rows] for column in self))

    def compute_s(self, work: CpuWork, frequency_hz: Arr) -> Arr:
        """Return the seconds that work takes at these frequencies, shape (k,)."""
        seconds: Arr = work.cycles / frequency_hz + work.memory_s
        return seconds

    def compute_w(self, frequency_hz: Arr) -> Arr:
        """Return watts, shape (k,), that computing adds to idle power."""
        watts: Arr = self.cores * self.capacitance * frequency_hz**3 + self.static_w
        return watts

    def optimal_hz(self, work: CpuWork) -> Arr:
        """Return the frequency within bounds at which the work takes the least joules, shape (k,).

        A cycle takes capacitance x cores x f^2 + static / f joules, least at (static / (2 capacitance cores))^(1/3).
        Seconds of memory add their power, which grows with f, so the optimum of work that has any is lower. It is
        found numerically: joules fall and then rise with f.
        """
        free_hz = np.cbrt(self.static_w / (2.0 * self.capacitance * self.cores))
        optimal: Arr = np.clip(free_hz, self.min_hz, self.max_hz)
        if not work.memory_s.any():
            return optimal
        return np.where(work.memory_s > 0, self._searched_hz(work), optimal)

    def _searched_hz(self, work: CpuWork) -> Arr:
        """Return the frequencies of the least joules by narrowing the bounds around the best of several points."""
        low, high, each = self.min_hz, self.max_hz, np.arange(len(work.cycles))
        columns = CpuArrays(*(column[:, None] for column in self))
        of_points = CpuWork(work.cycles[:, None], work.memory_s[:, None])
        for _ in range(_ROUNDS):
            hz = low[:, None] + (high - low)[:, None] * _POINTS
            best = (columns.compute_w(hz) * columns.compute_s(of_points, hz)).argmin(axis=1)
            low, high = hz[each, np.maximum(best - 1, 0)], hz[each, np.minimum(best + 1, len(_POINTS) - 1)]
        found: Arr = hz[each, best]
        return found
