"""Abstract class of tariffs: a price, or a carbon intensity, as a piecewise constant function of simulated time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import inf

import numpy as np

from edgesim.core.arrays import Arr, Ids


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """Bands of prices, low, typical and high, that hold from one instant to the next; the last for ever or a period."""

    start_s: Arr  # when each begins, rising from 0, shape (k,)
    values: Arr  # of one unit, shape (k, 3)
    period_s: float = inf  # after which it begins anew

    def mean(self, from_s: Arr | float, to_s: Arr | float) -> Arr:
        """Return the mean bands over [from_s, to_s], shape (..., 3); of an instant that from then on.

        Within one step it is that step's, to the last bit.
        """
        from_s, to_s = np.broadcast_arrays(np.asarray(from_s, np.float64), to_s)
        if len(self.values) == 1:
            return np.broadcast_to(self.values[0], (*from_s.shape, 3))
        step = self._step(from_s)
        means: Arr = self.values[step % len(self.values)].astype(np.float64)  # a copy
        ends_s = self._ends_s(step, from_s)
        if (long := to_s > ends_s).any():
            means[long] = self._mean(from_s[long], to_s[long], means[long], ends_s[long])
        return means

    def _mean(self, from_s: Arr, to_s: Arr, first: Arr, at_s: Arr) -> Arr:
        """Return the means over intervals that go on after `at_s`, the end of their first step, shape (k, 3)."""
        total = first * (at_s - from_s)[:, np.newaxis]
        if self.period_s < inf:  # whole periods at once
            periods = np.where(to_s - at_s > self.period_s, np.floor((to_s - at_s) / self.period_s), 0.0)
            total, at_s = total + periods[:, np.newaxis] * self._of_period(), at_s + periods * self.period_s
        step = self._step(at_s)
        steps = np.where(at_s < to_s, self._step(to_s) + 1 - step, 0)
        row = np.repeat(np.arange(len(step)), steps)
        nth = np.arange(len(row)) - np.repeat(np.cumsum(steps) - steps, steps)
        begins_s = np.where(nth, self._ends_s(step[row] + nth - 1, at_s[row]), at_s[row])
        lengths_s = np.minimum(self._ends_s(step[row] + nth, begins_s), to_s[row]) - begins_s
        # one after the other, as sums depend on the order
        np.add.at(total, row, self.values[(step[row] + nth) % len(self.values)] * lengths_s[:, np.newaxis])
        mean: Arr = total / (to_s - from_s)[:, np.newaxis]
        return mean

    def next_change_s(self, now_s: float) -> float:
        """Return the first instant after `now_s` at which another step begins; inf: never."""
        at_s = np.asarray(now_s, np.float64)
        return inf if len(self.values) == 1 else float(self._ends_s(self._step(at_s), at_s))

    def _step(self, now_s: Arr) -> Ids:
        """Return the number of the step that holds from each instant on; those of later periods count on."""
        turn = np.floor(now_s / self.period_s)  # 0 for ever if there is no period
        begun_s = turn * self.period_s if self.period_s < inf else 0.0
        place = np.searchsorted(self.start_s, now_s - begun_s, side="right") - 1
        return np.asarray(turn * len(self.start_s), np.int64) + place

    def _ends_s(self, step: Ids, now_s: Arr) -> Arr:
        """Return the ends of steps, each later than `now_s`: rounding may let one end where it is asked for."""
        turn, place = np.divmod(step, len(self.start_s))
        begun_s = turn * self.period_s if self.period_s < inf else 0.0
        ends_s: Arr = np.maximum(begun_s + np.append(self.start_s, self.period_s)[place + 1], np.nextafter(now_s, inf))
        return ends_s

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
