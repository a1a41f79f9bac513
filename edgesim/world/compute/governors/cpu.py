"""CPUs of the devices for which a governor chooses a frequency."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from edgesim.core.arrays import Arr, Ids


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

    def compute_s(self, cycles: Arr, frequency_hz: Arr) -> Arr:
        """Return seconds, shape (k,), of `cycles` on every core: FLOPs / (FLOPs per cycle x cores x efficiency).

        Where layers have speeds of their own or steps an overhead, cycles are seconds at the highest frequency x that
        frequency: all of it, memory traffic too, is taken to get slower with the clock.
        """
        seconds: Arr = cycles / frequency_hz
        return seconds

    def compute_w(self, frequency_hz: Arr) -> Arr:
        """Return watts, shape (k,), that computing adds to idle power."""
        watts: Arr = self.cores * self.capacitance * frequency_hz**3 + self.static_w
        return watts

    def optimal_hz(self) -> Arr:
        """Return the frequency within bounds at which a cycle takes the least joules, shape (k,).

        A cycle takes capacitance x cores x f^2 + static / f joules, least at (static / (2 capacitance cores))^(1/3).
        """
        free_hz = np.cbrt(self.static_w / (2.0 * self.capacitance * self.cores))
        optimal: Arr = np.clip(free_hz, self.min_hz, self.max_hz)
        return optimal
