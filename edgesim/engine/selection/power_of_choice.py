"""Power of choice: of some random candidates those with the highest loss.

Source: Cho, Wang, Joshi, "Towards Understanding Biased Client Selection in Federated Learning" (AISTATS 2022),
variants pow-d, cpow-d and rpow-d.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from edgesim.core.arrays import Ids
from edgesim.core.limits import Count
from edgesim.core.rng import Key
from edgesim.core.selection import FromCandidates, Known, Poll, Want, drawn, highest

_HIGHEST = 2  # stream below a rule's key, of equal losses; never renumber


@dataclass(frozen=True, kw_only=True)
class PowerOfChoice(FromCandidates):
    """Draw `candidates` by data size, without replacement; ask the `count` of them with the highest loss.

    The loss of a device is the mean over its newest job, as variant rpow-d has it, so that no device is asked
    twice. The loss of a device that never delivered counts as infinite, so it comes first.
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


@dataclass(frozen=True, kw_only=True)
class PowD(FromCandidates):
    """Draw `candidates` by data size, poll their losses of the newest model, and ask the `count` highest to train.

    The variant pow-d has losses on all samples of a device, cpow-d on a random `batch` of them. A poll is charged: it
    sends the model down and 4 bytes up, and computes a forward pass. Those that train keep the model of the poll, so
    that it is not sent again, unless downloads are encoded or the method sends more than the model.
    """

    protocols: ClassVar[frozenset[str]] = frozenset({"sync"})  # a deadline would pass in waiting for losses

    candidates: Count  # d of the paper
    batch: Count | None = None  # b of the paper's cpow-d; None: all samples, as in pow-d

    @property
    def poll(self) -> Poll:
        """Poll of the candidates."""
        return Poll(self.count, self.batch)

    def most(self, idle: Ids, level: Ids, key: Key) -> int:
        """Return the largest number of devices that a round selects if only `idle` are idle."""
        return min(self.candidates, len(idle))

    def choose(self, idle: Ids, known: Known, key: Key) -> Ids:
        """Return the ids of the candidates, ascending."""
        return drawn(idle, known.setting.samples[idle].astype(np.float64), self.candidates, key)


PLUGINS = {"power_of_choice": PowerOfChoice, "pow_d": PowD}
