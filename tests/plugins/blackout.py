"""A failure that strikes all devices at one instant."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgesim.core.arrays import Arr, Ids
from edgesim.core.rng import Draws, Key
from edgesim.world.failures.base import SENT, Failure, FailurePart


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class _AllAtOnce(Failure):
    after_s: float

    def strikes(self, draws: Draws, phases_s: np.ndarray) -> tuple[Ids, Arr]:
        after_s = np.where(draws.nth == 0, self.after_s, np.inf)
        return np.full(len(draws.ids), SENT), after_s


@dataclass(frozen=True, kw_only=True)
class Blackout(FailurePart):
    """Every device crashes `after` seconds into its first job, and in no other."""

    after: float

    def build(self, n: int, key: Key, path: str) -> Failure:
        """Return the failures of n devices."""
        return _AllAtOnce(after_s=self.after)
