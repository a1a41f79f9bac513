"""Importance sampling by the norms of updates, with weights that undo it.

Source: Horvitz and Thompson, "A Generalization of Sampling Without Replacement from a Finite Universe" (JASA 1952), for
the weights; Madow, "On the Theory of Systematic Sampling, II" (Ann. Math. Stat. 1949), for a draw of a fixed size with
given probabilities; Chen, Horvath, Richtarik, "Optimal Client Sampling for Federated Learning" (TMLR 2022), for
probabilities in proportion to data size times norm.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from edgesim.core.arrays import Arr, Ids
from edgesim.core.limits import PositiveShare
from edgesim.core.rng import Key
from edgesim.core.selection import Informed, Known, Want


@dataclass(frozen=True, kw_only=True)
class NormSampling(Informed):
    """Draw `count` devices with probabilities p in proportion to data size times norm; an update counts 1 / p.

    The norm of a device is that of its newest update, or the mean of the known norms. A share `floor` of the mean is
    added to each, so that no weight gets out of hand. With method `fedavg` and
    `aggregate_over = "all"` the new model's mean over draws is then exactly what averaging over all idle devices
    gives (Horvitz and Thompson's estimator). Any other mean by weights divides by the sum of the weights that came:
    that is right on average for many devices, but biased for few (Hajek's estimator), and of less variance.
    Differs: norms of earlier updates, as those of the round are not known before devices train. What is late or lost
    is missing from the mean.
    """

    needs: ClassVar[frozenset[Want]] = frozenset({"reports"})
    protocols: ClassVar[frozenset[str]] = frozenset({"sync", "deadline"})
    weighs: ClassVar[bool] = True

    floor: PositiveShare = 0.1

    def choose(self, idle: Ids, known: Known, key: Key) -> Ids:
        """Return the ids, ascending: a systematic draw over the devices in random order."""
        generator = key.numpy()
        order = generator.permutation(len(idle))
        ends = np.cumsum(self.probabilities(idle, known)[order])
        ticks = generator.uniform() + np.arange(min(self.count, len(idle)))
        places = np.searchsorted(ends / ends[-1] * len(ticks), ticks, side="right")
        return np.sort(idle[order[np.minimum(places, len(idle) - 1)]])

    def weights(self, idle: Ids, known: Known) -> Arr:
        """Return 1 / p of each idle device."""
        return 1.0 / self.probabilities(idle, known)

    def probabilities(self, idle: Ids, known: Known) -> Arr:
        """Return the probability that each idle device is drawn, shape (len(idle),); the sum is the number drawn."""
        return inclusion(self.importance(idle, known), min(self.count, len(idle)))

    def importance(self, idle: Ids, known: Known) -> Arr:
        """Return data size times norm of each idle device, above 0, shape (len(idle),)."""
        assert known.reported is not None
        norms = known.reported.norm[idle]
        mean = float(np.nanmean(norms)) if np.isfinite(norms).any() else 1.0
        norms = np.where(np.isnan(norms), mean, norms) + self.floor * mean
        importance: Arr = known.setting.samples[idle] * (norms if mean > 0 else 1.0)
        return importance.astype(np.float64)


def inclusion(sizes: Arr, count: int) -> Arr:
    """Return probabilities in proportion to sizes above 0, shape (k,), none above 1, which sum up to `count`.

    Whoever would have more than 1 is certain, and the others share the rest.
    """
    certain = np.zeros(len(sizes), dtype=bool)
    while True:
        rest = count - int(certain.sum())
        total = float(sizes[~certain].sum())
        found = np.where(certain, 1.0, rest * sizes / total if total else 1.0)
        if not (found > 1.0).any():
            return found
        certain |= found >= 1.0


PLUGINS = {"norm_sampling": NormSampling}
