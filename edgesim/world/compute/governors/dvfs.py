"""Governors of dynamic voltage and frequency scaling: time of cycles falls as 1 / f, power rises faster than f."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from edgesim.config.units import Hertz
from edgesim.core.arrays import Arr
from edgesim.core.errors import ConfigError
from edgesim.world.compute.governors.cpu import CpuArrays, CpuWork


class Governor(ABC):
    """Chooses the frequency of each job; a pure function of its arguments."""

    def check(self, cpu: CpuArrays, path: str) -> None:
        """Raise ConfigError that names a key below `path` if these CPUs cannot be governed so."""

    @abstractmethod
    def choose(self, work: CpuWork, comm_s: Arr, deadline_s: Arr | float, cpu: CpuArrays) -> Arr:
        """Return a frequency within bounds of each CPU, Hz, shape (k,).

        `work`: its cycles get slower with the frequency, its seconds of memory do not; `comm_s`: seconds of the job
        that are not computing; `deadline_s`: seconds the whole job may take, inf if any.
        """


@dataclass(frozen=True, kw_only=True)
class Max(Governor):
    """As fast as possible."""

    def choose(self, work: CpuWork, comm_s: Arr, deadline_s: Arr | float, cpu: CpuArrays) -> Arr:
        """Return the highest frequencies, Hz, shape (k,)."""
        return cpu.max_hz


@dataclass(frozen=True, kw_only=True)
class FixedFrequency(Governor):
    """One frequency for all."""

    frequency: Hertz  # at most the highest frequency of each device

    def check(self, cpu: CpuArrays, path: str) -> None:
        """Raise ConfigError if some CPU cannot run at the frequency."""
        unable = (self.frequency < cpu.min_hz) | (self.frequency > cpu.max_hz)
        if unable.any():
            bounds = f"{cpu.min_hz[unable][0]:g} Hz to {cpu.max_hz[unable][0]:g} Hz"
            raise ConfigError(f"{path}.frequency: {self.frequency:g} Hz is not what every CPU can do, one has {bounds}")

    def choose(self, work: CpuWork, comm_s: Arr, deadline_s: Arr | float, cpu: CpuArrays) -> Arr:
        """Return the frequency, Hz, shape (k,)."""
        return np.full(len(work.cycles), self.frequency)


@dataclass(frozen=True, kw_only=True)
class EnergyOptimal(Governor):
    """The frequency of the fewest joules, whatever the deadline.

    It is (static power / (2 capacitance cores))^(1/3) for dynamic power of capacitance x f^3 and work whose seconds all
    follow the clock. Work that waits for memory has a lower one, and a voltage curve another one.
    """

    def check(self, cpu: CpuArrays, path: str) -> None:
        """Raise ConfigError if some CPU has no dynamic power to weigh against its static power."""
        _check_capacitance(cpu, path)

    def choose(self, work: CpuWork, comm_s: Arr, deadline_s: Arr | float, cpu: CpuArrays) -> Arr:
        """Return the frequencies, Hz, shape (k,)."""
        return cpu.best_hz(work)


@dataclass(frozen=True, kw_only=True)
class JustInTime(Governor):
    """The fewest joules with which the job meets its deadline; as fast as possible if it cannot.

    Joules fall with f up to the optimum and rise beyond it, so it is the optimum or, if that is too slow, the least
    frequency that is fast enough.
    """

    def check(self, cpu: CpuArrays, path: str) -> None:
        """Raise ConfigError if some CPU has no dynamic power to weigh against its static power."""
        _check_capacitance(cpu, path)

    def choose(self, work: CpuWork, comm_s: Arr, deadline_s: Arr | float, cpu: CpuArrays) -> Arr:
        """Return the frequencies, Hz, shape (k,)."""
        left_s = deadline_s - comm_s - work.memory_s
        # without time left even no work is late, and the highest frequency loses least
        needed_hz = np.divide(work.cycles, left_s, out=np.full(len(left_s), np.inf), where=left_s > 0)
        return cpu.best_hz(work, needed_hz)


def _check_capacitance(cpu: CpuArrays, path: str) -> None:
    unknown = ~(cpu.capacitance > 0)
    if unknown.any():
        found = f"found {cpu.capacitance[unknown][0]:g} J s^2"
        raise ConfigError(f"{path}.name: needs an energy model with a capacitance above 0 in every block, {found}")


PLUGINS = {"max": Max, "fixed": FixedFrequency, "energy_optimal": EnergyOptimal, "just_in_time": JustInTime}
