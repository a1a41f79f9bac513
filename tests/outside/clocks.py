"""A clock of its own and a cost model that knows amounts by kind, both by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgesim.config.units import BytesPerSecond, PerDevice, draw
from edgesim.core.arrays import Arr, Ids
from edgesim.core.cost_model import CostModel
from edgesim.core.rng import Key
from edgesim.core.task import Pass, Submodel
from edgesim.learning.cost_models.measured import Measured
from edgesim.world.clocks.base import Clock, ClockPart, CpuSpeeds
from edgesim.world.compute.governors.cpu import CpuWork


@dataclass(frozen=True, kw_only=True)
class Roofline(ClockPart):
    """Arithmetic and memory traffic at the same time: a job takes the longer of the two."""

    bandwidth: PerDevice[BytesPerSecond]

    def build(self, n: int, speeds: CpuSpeeds, key: Key, path: str) -> Clock:
        """Return the clocks of n devices."""
        return Roofs(speeds, draw(self.bandwidth, n, key.numpy(), f"{path}.bandwidth"))


@dataclass(frozen=True, eq=False)
class Roofs(Clock):
    """Speeds and bandwidths of n devices."""

    speeds: CpuSpeeds
    bandwidth: Arr  # bytes/s

    def work(self, rows: Ids, flops: Arr, amounts: Mapping[str, Arr]) -> CpuWork:
        flops_s, memory_s = flops / self.speeds.flops_per_s[rows], amounts["bytes"] / self.bandwidth[rows]
        return CpuWork(flops_s * self.speeds.max_hz[rows], np.maximum(memory_s - flops_s, 0.0))


@dataclass(frozen=True, kw_only=True)
class ByKind(CostModel):
    """Measured FLOPs, and so many bytes for each of them; other FLOPs are those of work without layers."""

    bytes_per_flop: float = 0.5

    def flops(self, cost_profile: Any, work: Pass, submodel: Submodel, samples: Arr, steps: Arr) -> Arr:
        return Measured().flops(cost_profile, work, submodel, samples, steps)

    def amounts(self, cost_profile: Any, work: Pass, submodel: Submodel, samples: Arr, steps: Arr) -> Mapping[str, Arr]:
        flops = self.flops(cost_profile, work, submodel, samples, steps)
        if work.kind not in ("train", "forward"):
            return {"other_flops": flops}
        return {"flops": flops, "bytes": self.bytes_per_flop * flops, "samples": samples, "steps": steps}
