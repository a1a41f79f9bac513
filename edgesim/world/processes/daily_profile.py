"""A store that fills and empties with powers that repeat every day: when it is empty, and what it holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from edgesim.core.arrays import Arr

DAY_S = 86400.0


@dataclass(frozen=True, slots=True, eq=False)
class DailyWindows:
    """Hours of a day, cut into sections that lie inside or outside of windows.

    Columns of `lengths_s` and `inside` are the 24 hours from the start of each section on.
    """

    edges_s: Arr  # from 0 to DAY_S, shape (sections + 1,)
    lengths_s: Arr  # shape (sections + 1, sections)
    inside: Arr  # 1 or 0, shape (sections + 1, sections)

    @classmethod
    def of(cls, windows: Sequence[tuple[float, float]]) -> DailyWindows:
        """Return the union of windows [start, end) in seconds; one that ends before it starts spans midnight."""
        spans = [part for s, e in windows for part in ([(s, e)] if s < e else [(s, DAY_S), (0.0, e)])]
        edges_s = np.unique([0.0, DAY_S, *(edge for span in spans for edge in span)])
        inside = np.array([float(any(s <= edge < e for s, e in spans)) for edge in edges_s[:-1]])
        count = len(inside)
        section = (np.arange(count + 1)[:, None] + np.arange(count)) % count
        return cls(edges_s, np.diff(edges_s)[section], inside[section])

    def day_from(self, clock_s: Arr) -> tuple[Arr, Arr]:
        """Return lengths (s) and insides of the sections of the 24 hours from `clock_s` on, shape (sections + 1, k)."""
        clock_s = np.mod(clock_s, DAY_S)
        now = self.edges_s.searchsorted(clock_s, side="right") - 1
        lengths_s = self.lengths_s.take(now, axis=1)
        lengths_s[0] = self.edges_s[now + 1] - clock_s
        lengths_s[-1] = clock_s - self.edges_s[now]
        return lengths_s, self.inside.take(now, axis=1)


def seconds_until_zero(store: Arr, lengths_s: Arr, net_w: Arr, capacity: Arr, within_s: float = np.inf) -> Arr:
    """Return seconds, shape (k,), until `store` (k,) is 0, inf if never, 0 if it is and nothing flows in.

    Where it is later than `within_s` seconds, it may be any later time.

    `lengths_s` and `net_w`, shape (sections, k): the sections of a day, which repeats, and the watts that flow in.
    The store never exceeds `capacity`, shape (k,).
    """
    within_s *= 2.0  # far more than what rounding does to it
    found_s, store = _one_day(store, lengths_s, net_w, capacity, within_s)
    if within_s > DAY_S:
        later = np.flatnonzero(np.isinf(found_s))
        if len(later):
            days = (store[later], lengths_s[:, later], net_w[:, later], capacity[later])
            found_s[later] = _seconds_after_a_day(*days)
    return found_s


def _seconds_after_a_day(store: Arr, lengths_s: Arr, net_w: Arr, capacity: Arr) -> Arr:
    """Return the same of stores that have lasted for a day, from the beginning of that day on."""
    # After one day the store has met the capacity or never will, and from then on changes by the same amount a day.
    found_s = np.full(len(store), np.inf)
    flow = np.cumsum(lengths_s * net_w, axis=0)
    lowest, daily = np.minimum(flow.min(axis=0), 0.0), flow[-1]
    days = np.zeros(len(store))
    with np.errstate(over="ignore"):  # a trickle may need more days than a float can count: that is never
        np.divide(store + lowest, -daily, out=days, where=daily < 0)
        days = np.maximum(np.ceil(days) - 1.0, 0.0)
        passed_s = DAY_S * (1.0 + days)
    store = store + days * daily
    # the day of the end, with one before and after it in case of rounding
    for _ in range(3):
        zero_s, store = _one_day(store, lengths_s, net_w, capacity)
        found_s = np.minimum(found_s, passed_s + zero_s)
        passed_s = passed_s + DAY_S
    return found_s


def stored_after(seconds: Arr, store: Arr, lengths_s: Arr, net_w: Arr, capacity: Arr) -> Arr:
    """Return the stored amount after `seconds`, shape (k,), given that the store is not empty before."""
    longest_s = seconds.max(initial=0.0)
    if longest_s >= DAY_S:
        days, seconds = np.divmod(seconds, DAY_S)
        # added up for many stores in the same order as for one
        daily = np.ascontiguousarray((lengths_s * net_w).T).sum(axis=1)
        # a day maps a store x to min(x + daily, what is left of a full one), hence so do several
        most = _one_day(capacity, lengths_s, net_w, capacity)[1]
        first = _one_day(store, lengths_s, net_w, capacity)[1]
        store = np.where(days > 0, np.minimum(first + (days - 1.0) * daily, most), store)
    ends_s = np.zeros(len(store))
    for length_s, watts in zip(lengths_s, net_w, strict=True):
        ends_s = ends_s + length_s
        partial_s = np.minimum(np.maximum(seconds - (ends_s - length_s), 0.0), length_s)
        store = np.minimum(store + partial_s * watts, capacity)
        if ends_s.min(initial=np.inf) > longest_s:
            break
    return store


def _one_day(store: Arr, lengths_s: Arr, net_w: Arr, capacity: Arr, within_s: float = np.inf) -> tuple[Arr, Arr]:
    """Return seconds until the store is 0 (inf: not within the sections), and the store at the end if it never is.

    Times later than `within_s`, if that is below a day, may be any later ones, and the store then means nothing.
    """
    zero_s, passed_s = np.full(len(store), np.inf), np.zeros(len(store))
    for length_s, watts in zip(lengths_s, net_w, strict=True):
        ends = store + np.minimum(length_s, within_s) * watts <= 0
        if np.count_nonzero(ends):
            ends &= (watts <= 0) & (length_s > 0) & np.isinf(zero_s)
            # an empty store into which nothing flows is at 0 already
            wait_s = np.divide(store, -watts, out=np.zeros(len(store)), where=ends & (watts < 0))
            zero_s = np.where(ends, passed_s + np.maximum(wait_s, 0.0), zero_s)
        passed_s = passed_s + length_s
        if passed_s.min(initial=np.inf) > within_s:
            break
        store = np.minimum(store + length_s * watts, capacity)
    return zero_s, store
