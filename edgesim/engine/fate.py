"""What can end a job before its time: its device leaves, or it crashes. Both are known when the job is sent."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import NamedTuple

import numpy as np

from edgesim.contracts import Ids, Job, Outcome
from edgesim.rng import Draws
from edgesim.world.availability import Availability
from edgesim.world.failure import COMPUTATION, DOWNLOAD, SENT, UPLOAD, Failure

DOWN, COMPUTE, UP, SENDING = DOWNLOAD, COMPUTATION, UPLOAD, SENT


class Fate(NamedTuple):
    """When a device leaves, and when its job crashes: seconds after a phase, or the job, began."""

    leaves_s: float = inf  # absolute
    phase: int = SENDING
    crashes_s: float = inf


UNHARMED = Fate()


class Fates:
    """Foresees the fates of jobs."""

    def __init__(self, availability: Availability, failures: Failure | None) -> None:
        self._availability = availability
        self._failures = failures
        self.unbroken = failures is None and availability.unbroken  # nothing ever happens to any job

    def of(self, devices: Ids, prices: np.ndarray, draws: Draws, now_s: float) -> Sequence[Fate] | None:
        """Return the fate of each job sent now; None: nothing can happen to any of them. Prices as in `pricing`."""
        if self.unbroken:
            return None
        leaves_s = self._availability.until_s(devices, now_s)
        if self._failures is None:
            if not np.isfinite(leaves_s).any():
                return None
            return [Fate(at_s) for at_s in leaves_s.tolist()]
        phases, after_s = self._failures.strikes(draws, prices[:3])
        return list(map(Fate, leaves_s.tolist(), phases.tolist(), after_s.tolist()))


def first_end(job: Job, fate: Fate, battery_s: float) -> tuple[float, Outcome]:
    """Return after how many seconds a job over links of its own ends before its time, and how; inf: it does not.

    `battery_s`: seconds until its battery is empty.
    """
    begins_s = (0.0, job.down_s, job.down_s + job.compute_s, 0.0)[fate.phase]
    ends: list[tuple[float, Outcome]] = [
        (battery_s, "battery"),
        (fate.leaves_s - job.sent_s, "offline"),
        (begins_s + fate.crashes_s, "crashed"),
    ]
    return min(ends, key=lambda end: end[0])
