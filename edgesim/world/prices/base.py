"""Abstract class of tariffs: a price, or a carbon intensity, as a piecewise constant function of simulated time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import inf, nextafter

import numpy as np

from edgesim.core.arrays import Arr


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """Bands of prices, low, typical and high, that hold from one instant to the next; the last for ever or a period."""

    start_s: Arr  # when each begins, rising from 0, shape (k,)
    values: Arr  # of one unit, shape (k, 3)
    period_s: float = inf  # after which it begins anew

    def mean(self, from_s: float, to_s: float) -> Arr:
        """Return the mean band over [from_s, to_s], shape (3,); of an instant that from then on.

        Within one step it is that step's, to the last bit.
        """
        if len(self.values) == 1:
            only: Arr = self.values[0]
            return only
        place, ends_s = self._place(from_s)
        if to_s <= ends_s:
            first: Arr = self.values[place]
            return first
        total, at_s = self.values[place] * (ends_s - from_s), ends_s
        if self.period_s < inf and to_s - at_s > self.period_s:  # whole periods at once
            periods = float(np.floor((to_s - at_s) / self.period_s))
            total, at_s = total + periods * self._of_period(), at_s + periods * self.period_s
        while at_s < to_s:
            place, ends_s = self._place(at_s)
            total = total + self.values[place] * (min(ends_s, to_s) - at_s)
            at_s = ends_s
        mean: Arr = total / (to_s - from_s)
        return mean

    def next_change_s(self, now_s: float) -> float:
        """Return the first instant after `now_s` at which another step begins; inf: never."""
        return inf if len(self.values) == 1 else self._place(now_s)[1]

    def _place(self, now_s: float) -> tuple[int, float]:
        """Return the step that holds from `now_s` on, and its end, which is later than that."""
        begun_s = 0.0 if self.period_s == inf else self.period_s * np.floor(now_s / self.period_s)
        place = int(np.searchsorted(self.start_s, now_s - begun_s, side="right")) - 1
        last = place + 1 == len(self.start_s)
        ends_s = float(begun_s + (self.period_s if last else self.start_s[place + 1]))
        return place, max(ends_s, nextafter(now_s, inf))  # rounding may let a step end where it is asked for

    def _of_period(self) -> Arr:
        lengths_s = np.diff(np.append(self.start_s, self.period_s))
        of_period: Arr = lengths_s @ self.values
        return of_period


class Tariff(ABC):
    """Price of a joule, or its carbon intensity, as a scenario names it: a frozen dataclass."""

    @property
    @abstractmethod
    def unit(self) -> str:
        """Return the unit of its prices: a currency, or "g"."""

    @abstractmethod
    def steps(self, path: str) -> Steps:
        """Return it over simulated time, of one joule.

        Raises ConfigError that names a key below `path`, or DataError.
        """
