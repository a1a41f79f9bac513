"""Devices that stop before they have taken all of their local steps, and return what they have."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
from annotated_types import Ge, Lt

from edgesim.config.units import PerDevice, draw
from edgesim.core.arrays import Arr
from edgesim.core.limits import Share
from edgesim.core.rng import Draws, Key
from edgesim.world.failures.base import Failure, FailurePart

_WHETHER, _SHARE = 0, 1  # streams; never renumber


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class EarlyStops(Failure):
    """Each job stops early with the probability of its device, shape (n,)."""

    key: Key
    probability: Arr
    least: float

    def work_share(self, draws: Draws) -> Arr:
        """Return the share of the local steps taken, shape (k,), in (0, 1]."""
        own = replace(draws, key=self.key)
        stops = own.uniform(_WHETHER) < self.probability[draws.ids]
        share = self.least + (1.0 - self.least) * own.uniform(_SHARE)
        # rounding must not make it a whole job
        return np.where(stops, np.minimum(share, np.nextafter(1.0, 0.0)), 1.0)


@dataclass(frozen=True, kw_only=True)
class PartialWork(FailurePart):
    """With `probability` a job stops after a share of its local steps, uniform between `least` and 1, and delivers.

    Source: Li et al., "Federated Optimization in Heterogeneous Networks" (MLSys 2020), Section 5.2, where 0, 50 or
    90 % of the chosen devices do a number of epochs drawn uniformly between 1 and all.
    """

    probability: PerDevice[Share]
    least: Annotated[float, Ge(0), Lt(1)] = 0.0  # as in the paper, down to the first step

    @property
    def fits_app(self) -> bool:
        """False: an app cannot take part in it."""
        return False

    @property
    def shortens_work(self) -> bool:
        """True: that is all it does."""
        return True

    def build(self, n: int, key: Key, path: str) -> Failure:
        """Return the early stops of n devices. Raises ConfigError that names a key below `path`."""
        probability = draw(self.probability, n, key.at(0).numpy(), f"{path}.probability")
        return EarlyStops(key=key.at(1), probability=probability, least=self.least)


PLUGINS = {"partial_work": PartialWork}
