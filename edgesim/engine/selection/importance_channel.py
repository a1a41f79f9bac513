"""Scheduling by the importance of updates and by the channel, with weights that undo it.

Source: Ren, He, Wen, Yu, Huang and Guo, "Scheduling for Cellular Federated Edge Learning with Importance and Channel
Awareness" (IEEE TWC 19(11), 2020): the closed form for one device a round.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from annotated_types import Ge, Lt
from scipy.optimize import brentq

from edgesim.core.arrays import Arr, Ids
from edgesim.core.selection import Known, Want
from edgesim.engine.selection.norm_sampling import NormSampling


@dataclass(frozen=True, kw_only=True)
class ImportanceChannel(NormSampling):
    """Draw devices with probabilities that balance seconds of upload and variance; an update counts 1 / p.

    Probabilities p minimise rho sum p T + (1 - rho) sum s^2 / p, where T are the seconds of the next upload if the
    device has the whole band, and s is data size times norm. So p = s sqrt((1 - rho) / (rho T + lambda)), lambda such
    that they sum up to `count`. With `rho` 0 this is `norm_sampling`, whose `floor` and weights it has.
    Differs: T and s are divided by their means (ours), so that rho has no unit; the paper does not say what its rho
    would be then, so its default is ours. Norms are those of earlier updates. The paper draws several devices one
    after the other; here p are probabilities of being drawn at all, none above 1, which keeps the weights exact.
    """

    needs: ClassVar[frozenset[Want]] = frozenset({"reports", "channel"})

    rho: Annotated[float, Ge(0), Lt(1)] = 0.5

    def probabilities(self, idle: Ids, known: Known) -> Arr:
        """Return the probability that each idle device is drawn, shape (len(idle),); the sum is the number drawn."""
        assert known.up_bps is not None
        importance, upload_s = self.importance(idle, known), 8.0 * known.expected.up_bytes / known.up_bps[idle]
        mean_s = upload_s.mean() or 1.0  # endless rates take no time
        return balanced(importance / importance.mean(), upload_s / mean_s, self.rho, min(self.count, len(idle)))


def balanced(importance: Arr, seconds: Arr, rho: float, count: int) -> Arr:
    """Return the probabilities that ImportanceChannel explains, shape (k,), none above 1, which sum up to `count`."""
    if count == len(importance):
        return np.ones(count)

    def at(level: float) -> Arr:
        """Return the probabilities for a lambda: 1 where the formula would give more, or nothing real."""
        price = rho * seconds + level
        root = np.sqrt(np.divide(1.0 - rho, price, out=np.full(len(price), np.inf), where=price > 0))
        found: Arr = np.minimum(importance * root, 1.0)
        return found

    lowest = -rho * float(seconds.max())  # where all are certain
    highest = (1.0 - rho) * float(importance.max() * len(importance) / count) ** 2  # where none has its mean share
    return at(brentq(lambda level: at(level).sum() - count, lowest, highest, xtol=1e-300, rtol=1e-15))


PLUGINS = {"importance_channel": ImportanceChannel}
