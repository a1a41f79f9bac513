"""Slow-downs by a factor that is drawn anew for every job."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from annotated_types import Gt

from edgesim.config.units import PerDevice, draw
from edgesim.core.arrays import Arr, Ids
from edgesim.core.limits import NonNegativeNumber
from edgesim.core.rng import Draws, Key
from edgesim.world.compute.slowdowns.base import Slowdown, SlowdownPart


@dataclass(frozen=True, slots=True, eq=False)
class Factors(Slowdown):
    """Seconds times a factor of the job; `shape` is the distribution's parameter of each device, shape (n,)."""

    shape: Arr
    factor: Callable[[Arr, Draws], Arr]

    def stretch(self, rows: Ids, busy_s: Arr, now_s: Arr | float, draws: Draws) -> Arr:
        """Return the stretched seconds, shape (k,)."""
        stretched: Arr = busy_s * self.factor(self.shape[rows], draws)
        return stretched


@dataclass(frozen=True, slots=True)
class Undisturbed(Slowdown):
    """Nothing else runs."""

    steady: ClassVar[bool] = True

    def stretch(self, rows: Ids, busy_s: Arr, now_s: Arr | float, draws: Draws) -> Arr:
        """Return `busy_s`."""
        return busy_s


@dataclass(frozen=True, kw_only=True)
class NoSlowdown(SlowdownPart):
    """Every computation takes as long as its FLOPs say."""

    def build(self, n: int, key: Key, path: str) -> Slowdown:
        """Return the slow-downs of n devices."""
        return Undisturbed()


@dataclass(frozen=True, kw_only=True)
class LogNormal(SlowdownPart):
    """Factor exp(sigma z - sigma^2 / 2), above or below 1, with mean 1, so that devices keep their mean speed.

    z is standard normal, so that the median of the factor is exp(-sigma^2 / 2).
    """

    sigma: PerDevice[NonNegativeNumber]  # standard deviation of the factor's logarithm

    def build(self, n: int, key: Key, path: str) -> Slowdown:
        """Return the slow-downs of n devices."""

        def factor(sigma: Arr, draws: Draws) -> Arr:
            stretch: Arr = np.exp(sigma * draws.normal(0) - sigma**2 / 2.0)
            return stretch

        return Factors(draw(self.sigma, n, key.at(0).numpy(), f"{path}.sigma"), factor)


@dataclass(frozen=True, kw_only=True)
class ShiftedExponential(SlowdownPart):
    """Factor 1 + scale x e with e exponential of mean 1: never faster than undisturbed, 1 + scale on average.

    Source: Lee et al., "Speeding Up Distributed Machine Learning Using Codes", IEEE Trans. Inf. Theory 64 (2018).
    """

    scale: PerDevice[NonNegativeNumber]  # mean of the factor above 1

    def build(self, n: int, key: Key, path: str) -> Slowdown:
        """Return the slow-downs of n devices."""

        def factor(scale: Arr, draws: Draws) -> Arr:
            stretch: Arr = 1.0 - scale * np.log(draws.uniform(0))
            return stretch

        return Factors(draw(self.scale, n, key.at(0).numpy(), f"{path}.scale"), factor)


@dataclass(frozen=True, kw_only=True)
class Pareto(SlowdownPart):
    """Factor above x with probability x^-alpha for x >= 1: alpha / (alpha - 1) on average, without end above.

    Source: Wang, Joshi and Wornell, "Efficient Straggler Replication in Large-Scale Parallel Computing", ACM
    TOMPECS 4 (2019).
    """

    alpha: PerDevice[Annotated[float, Gt(1)]]  # up to 1 the mean is infinite

    def build(self, n: int, key: Key, path: str) -> Slowdown:
        """Return the slow-downs of n devices."""

        def factor(alpha: Arr, draws: Draws) -> Arr:
            stretch: Arr = draws.uniform(0) ** (-1.0 / alpha)
            return stretch

        return Factors(draw(self.alpha, n, key.at(0).numpy(), f"{path}.alpha"), factor)


PLUGINS = {"none": NoSlowdown, "log_normal": LogNormal, "shifted_exponential": ShiftedExponential, "pareto": Pareto}
