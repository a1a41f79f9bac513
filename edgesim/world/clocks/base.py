"""Abstract classes of device clocks: the seconds that a device's processor takes for its work."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from edgesim.core.arrays import Arr, Ids
from edgesim.core.rng import Key
from edgesim.world.compute.governors.cpu import CpuWork


class CpuSpeeds(NamedTuple):
    """CpuSpeeds of n devices at their highest frequencies, both of shape (n,)."""

    flops_per_s: Arr  # attained, on all cores together
    max_hz: Arr  # 1 Hz where the frequency is unknown


class Clock(ABC):
    """The clocks of a block of n devices. A pure function: asking changes nothing."""

    @abstractmethod
    def work(self, rows: Ids, flops: Arr, amounts: Mapping[str, Arr]) -> CpuWork:
        """Return the cycles of every core, which a governor stretches, and the seconds that follow no clock.

        `rows`: positions in the block; `flops`: all FLOPs of the jobs; `amounts`: of the kinds of work of
        `edgesim.core.work.KINDS`; one that is missing is 0. All arrays have shape (k,). At the highest frequency
        a job takes cycles / max_hz + memory_s seconds. It is not called where the cost model knows FLOPs alone: these
        jobs take FLOPs / `flops_per_s` on every clock.
        """


@dataclass(frozen=True, eq=False)
class WrongClock(Clock):
    """Clocks that take `factor` times the seconds of others: a draw of the error of the other clocks."""

    right: Clock
    factor: float

    def work(self, rows: Ids, flops: Arr, amounts: Mapping[str, Arr]) -> CpuWork:
        """Return the cycles and the seconds that follow no clock, both `factor` times as many."""
        work = self.right.work(rows, flops, amounts)
        return CpuWork(self.factor * work.cycles, self.factor * work.memory_s)


class ClockPart(ABC):
    """A device clock as a scenario names it: a frozen dataclass."""

    needs_kinds: ClassVar[bool] = True  # False: FLOPs at one rate are all that it knows, and no other work is measured

    @abstractmethod
    def build(self, n: int, speeds: CpuSpeeds, key: Key, path: str) -> Clock:
        """Return the clocks of n devices. Raises ConfigError that names a key below `path`."""
