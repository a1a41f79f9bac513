"""The simplest clock: FLOPs over one rate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from edgesim.core.arrays import Arr, Ids, compact
from edgesim.core.rng import Key
from edgesim.world.clocks.base import Clock, ClockPart, CpuSpeeds
from edgesim.world.compute.governors.cpu import CpuWork


@dataclass(frozen=True, eq=False)
class OneRate(Clock):
    """Every FLOP takes as many cycles as any other, and nothing else takes time."""

    flops_per_hz: Arr  # on all cores together

    @classmethod
    def of(cls, speeds: CpuSpeeds) -> OneRate:
        """Return the clocks of devices with these speeds."""
        return cls(compact(speeds.flops_per_s / speeds.max_hz))

    def work(self, rows: Ids, flops: Arr, amounts: Mapping[str, Arr] | None) -> CpuWork:
        """Return FLOPs as cycles, and no seconds of memory, both of shape (k,)."""
        return CpuWork(flops / self.flops_per_hz[rows], np.zeros(len(flops)))


@dataclass(frozen=True, kw_only=True)
class FlopsClock(ClockPart):
    """All FLOPs at `flops_per_s`: nothing else takes time, and all of it follows the clock frequency."""

    needs_kinds: ClassVar[bool] = False

    def build(self, n: int, speeds: CpuSpeeds, key: Key, path: str) -> Clock:
        """Return the clocks of n devices."""
        return OneRate.of(speeds)


PLUGINS = {"flops": FlopsClock}
