"""Early ends of jobs: the device leaves, or it crashes. Both are known when the job is sent."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import NamedTuple

import numpy as np

from edgesim.core.arrays import Arr, Ids
from edgesim.core.job import Job, Outcome, Prices
from edgesim.core.rng import Draws
from edgesim.world.availability.base import Availability
from edgesim.world.failures.base import SENT, Failure


class Interruption(NamedTuple):
    """When a device leaves, and when its job crashes: seconds after a phase, or the job, began."""

    leaves_s: float = inf  # absolute
    phase: int = SENT
    crashes_s: float = inf


UNINTERRUPTED = Interruption()


class Interruptions:
    """Foresees what will end jobs before their time."""

    def __init__(self, availability: Availability, failures: Failure | None) -> None:
        self._availability = availability
        self._failures = failures
        self.unbroken = failures is None and availability.unbroken  # nothing ever happens to any job

    def of(self, devices: Ids, prices: Prices[Arr], draws: Draws | None, now_s: float) -> Sequence[Interruption] | None:
        """Return the interruption of each job sent now; None: nothing can happen to any of them.

        `draws`: of these jobs, if there are failures.
        """
        if self.unbroken:
            return None
        leaves_s = self._availability.until_s(devices, now_s)
        if self._failures is None or draws is None:
            if not np.isfinite(leaves_s).any():
                return None
            return [Interruption(at_s) for at_s in leaves_s.tolist()]
        phases_s = np.stack([prices.down_s, prices.compute_s, prices.up_s])
        phases, after_s = self._failures.strikes(draws, phases_s)
        return list(map(Interruption, leaves_s.tolist(), phases.tolist(), after_s.tolist()))


def first_end(job: Job, interruption: Interruption, battery_s: float) -> tuple[float, Outcome]:
    """Return after how many seconds a job over dedicated links ends before its time, and how; inf: it does not.

    `battery_s`: seconds until its battery is empty.
    """
    down_s, compute_s = job.prices.down_s, job.prices.compute_s
    begins_s = (0.0, down_s, down_s + compute_s, 0.0)[interruption.phase]
    ends: list[tuple[float, Outcome]] = [
        (battery_s, "battery"),
        (interruption.leaves_s - job.sent_s, "offline"),
        (begins_s + interruption.crashes_s, "crashed"),
    ]
    return min(ends, key=lambda end: end[0])
