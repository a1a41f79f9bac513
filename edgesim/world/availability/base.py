"""Interface of availabilities, which tell when each device can be reached, and combinations of several."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import ClassVar

import numpy as np

from edgesim.core.arrays import Arr, Ids
from edgesim.core.errors import ConfigError
from edgesim.core.rng import Key

# Availabilities that have not agreed on an instant after so many changes are taken never to agree.
_MOST_CHANGES = 10_000


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Availability(ABC):
    """The times in which each of n devices can be reached: intervals [start, end), pure functions of device and time.

    Asking changes nothing. All instants are finite and at least 0.
    """

    unbroken: ClassVar[bool] = False  # every device is on for ever

    n: int
    retry_s: float = inf  # after which a device may be reached though nothing has changed; inf: no chance is involved

    @abstractmethod
    def on_from_s(self, ids: Ids, from_s: Arr) -> Arr:
        """Return the first instants from `from_s` on, itself included, at which devices are on, shape (k,); inf: never.

        Chance that is drawn anew at every occasion is left out.
        """

    @abstractmethod
    def until_s(self, ids: Ids, now_s: Arr | float) -> Arr:
        """Return the first instants after `now_s` at which devices that are on go off, shape (k,); inf: never.

        Of a device that is off at `now_s` the value means nothing, except that it is later than `now_s`.
        """

    def on(self, now_s: float, occasion: int) -> np.ndarray:
        """Return which devices can be reached at `now_s`, bool, shape (n,).

        `occasion`, from 0, counts how often the server has asked.
        """
        on: np.ndarray = self.on_from_s(np.arange(self.n), np.full(self.n, now_s)) <= now_s
        return on

    def next_on_s(self, now_s: float) -> float:
        """Return the first instant after `now_s` at which a device that is off may have come on; inf: never again."""
        ids = np.arange(self.n)
        ready_s = self.on_from_s(ids, np.full(self.n, now_s))
        next_s = ready_s[ready_s > now_s].min(initial=inf)
        if self.retry_s < inf:
            next_s = min(next_s, self.on_from_s(ids, np.full(self.n, now_s + self.retry_s)).min(initial=inf))
        return float(next_s)

    def off_s(self, now_s: float) -> Arr:
        """Return seconds of [0, now_s] in which each device was off, shape (n,); visits every change up to now_s."""
        at_s, total_s = np.zeros(self.n), np.zeros(self.n)
        todo = np.flatnonzero(at_s < now_s)
        while len(todo):
            on_s = np.minimum(self.on_from_s(todo, at_s[todo]), now_s)
            total_s[todo] += on_s - at_s[todo]
            todo, on_s = todo[on_s < now_s], on_s[on_s < now_s]
            at_s[todo] = self.until_s(todo, on_s)
            todo = todo[at_s[todo] < now_s]
        return total_s


class AvailabilityPart(ABC):
    """An availability as a scenario names it: a frozen dataclass."""

    @abstractmethod
    def build(self, n: int, key: Key, path: str) -> Availability:
        """Return when n devices can be reached. Raises ConfigError that names a key below `path`, or DataError.

        A larger fleet leaves the first devices as they were.
        """


def all_of(several: Sequence[Availability]) -> Availability:
    """Return the availability of devices that are on where all of `several`, for the same devices, are on.

    Raises ConfigError if there is none.
    """
    if not several:
        raise ConfigError("availability: an empty list; give at least one, such as { name = 'always' }")
    if len(several) == 1:
        return several[0]
    return _AllOf(n=several[0].n, retry_s=min(each.retry_s for each in several), several=tuple(several))


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class _AllOf(Availability):
    several: tuple[Availability, ...]

    def on(self, now_s: float, occasion: int) -> np.ndarray:
        on: np.ndarray = np.logical_and.reduce([each.on(now_s, occasion) for each in self.several])
        return on

    def until_s(self, ids: Ids, now_s: Arr | float) -> Arr:
        until_s: Arr = np.minimum.reduce([each.until_s(ids, now_s) for each in self.several])
        return until_s

    def on_from_s(self, ids: Ids, from_s: Arr) -> Arr:
        at_s = np.array(from_s, dtype=np.float64)
        todo = np.arange(len(ids))
        for _ in range(_MOST_CHANGES):
            # none of them lets a device on earlier, so nothing is skipped; where none waits, all are on
            later_s = np.maximum.reduce([each.on_from_s(ids[todo], at_s[todo]) for each in self.several])
            waits = later_s > at_s[todo]
            at_s[todo] = later_s
            todo = todo[waits & (later_s < inf)]
            if not len(todo):
                return at_s
        at_s[todo] = inf
        return at_s
