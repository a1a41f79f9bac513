"""Power of choice: of some random candidates those with the highest loss.

Source: Cho, Wang, Joshi, "Towards Understanding Biased Client Selection in Federated Learning" (AISTATS 2022),
variant rpow-d.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from edgesim.core.arrays import Ids
from edgesim.core.limits import Count
from edgesim.core.rng import Key
from edgesim.core.selection import FromCandidates, Known, Want, drawn, highest

_HIGHEST = 2  # stream below a rule's key, of equal losses; never renumber


@dataclass(frozen=True, kw_only=True)
class PowerOfChoice(FromCandidates):
    """Draw `candidates` by data size, without replacement; ask the `count` of them with the highest loss.

    The loss of a device is the mean over its newest job, as variant rpow-d has it, so that no device is asked
    twice. The loss of a device that never delivered counts as infinite, so it comes first. The
    variants pow-d and cpow-d ask all candidates for their loss under the newest model before they choose. They need a
    second exchange and are not here.
    """

    needs: ClassVar[frozenset[Want]] = frozenset({"reports"})

    candidates: Count  # d of the paper

    def choose(self, idle: Ids, known: Known, key: Key) -> Ids:
        """Return the ids, ascending."""
        assert known.reported is not None
        sizes = known.setting.samples[idle].astype(np.float64)
        candidates = drawn(idle, sizes, self.candidates, key)
        loss = known.reported.loss[candidates]
        return highest(candidates, np.where(np.isnan(loss), np.inf, loss), self.count, key.at(_HIGHEST))


PLUGINS = {"power_of_choice": PowerOfChoice}
