"""Ends of jobs without an update: the device leaves, crashes, or is not received. All are known at the start."""

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
from edgesim.world.fleet import Fleet


class Interruption(NamedTuple):
    """When a device leaves, when its job crashes, in seconds after a phase, or the job, began, and a lost update."""

    leaves_s: float = inf  # absolute
    phase: int = SENT
    crashes_s: float = inf
    lost: bool = False  # the whole upload, on the air


UNINTERRUPTED = Interruption()


class Interruptions:
    """Foresees what will end jobs before their time."""

    def __init__(self, fleet: Fleet, availability: Availability, failures: Failure | None) -> None:
        self._fleet = fleet
        self._availability = availability
        self._failures = failures
        # nothing ever happens to any job
        self.unbroken = failures is None and availability.unbroken and not fleet.loses_updates

    def of(self, devices: Ids, prices: Prices[Arr], draws: Draws | None, now_s: float) -> Sequence[Interruption] | None:
        """Return the interruption of each job sent now; None: nothing can happen to any of them.

        `draws`: of these jobs, if there are failures or lost updates.
        """
        if self.unbroken:
            return None
        leaves_s = self._availability.until_s(devices, now_s)
        lost = np.zeros(len(devices), dtype=bool)
        if self._fleet.loses_updates and draws is not None:
            lost = self._fleet.lost_updates(draws)
        if self._failures is None or draws is None:
            if not np.isfinite(leaves_s).any() and not lost.any():
                return None
            return [Interruption(at_s, lost=gone) for at_s, gone in zip(leaves_s.tolist(), lost.tolist(), strict=True)]
        phases_s = np.stack([prices.down_s, prices.compute_s, prices.up_s])
        phases, after_s = self._failures.strikes(draws, phases_s)
        return list(map(Interruption, leaves_s.tolist(), phases.tolist(), after_s.tolist(), lost.tolist()))


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
