"""Devices whose battery has most left after the job.

Source: Arouj and Abdelmoniem, "Towards Energy-Aware Federated Learning on Battery-Powered Clients" (EAFL, FedEdge
2022): a device's power is its battery level minus what the job is expected to use.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from edgesim.core.arrays import Arr, Ids
from edgesim.core.limits import Share
from edgesim.core.rng import Key
from edgesim.core.selection import Informed, Known, Want, highest


@dataclass(frozen=True, kw_only=True)
class BatteryAware(Informed):
    """The devices whose battery is expected to be fullest after an undisturbed job, as a share of its capacity.

    Devices that would then hold less than `reserve` are asked only if no other can be; devices without a battery
    count as full. Chance decides between equal devices.
    Differs: EAFL adds Oort's utility to this; idle power during the job is not counted.
    """

    needs: ClassVar[frozenset[Want]] = frozenset({"battery"})

    reserve: Share = 0.0

    def choose(self, idle: Ids, known: Known, key: Key) -> Ids:
        """Return the ids, ascending."""
        left = left_after(known)[idle]
        spared = left >= self.reserve
        if not spared.any():
            return highest(idle, left, self.count, key)
        return highest(idle[spared], left[spared], self.count, key)


def left_after(known: Known) -> Arr:
    """Return the share of its capacity that each battery holds after a job, shape (devices,); may be below 0."""
    assert known.battery is not None
    stored_j, capacity_j = known.battery
    left_j = stored_j - known.expected.joules
    share: Arr = np.divide(left_j, capacity_j, out=np.ones(len(left_j)), where=np.isfinite(capacity_j))
    return share


PLUGINS = {"battery_aware": BatteryAware}
