"""Processes that alternate between on and off; the state at any time is a pure function of row and time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgesim.core.arrays import Arr, Ids
from edgesim.core.rng import Draws, Key

# Time is cut into cells of 2 points on average; a cell has fewer than 32 (the probability of more is below 1e-26).
_MEAN_COUNT, _MAX_COUNT = 2.0, 32
_COUNTS = np.cumsum(np.exp(-_MEAN_COUNT) * np.cumprod([1.0, *(_MEAN_COUNT / np.arange(1, _MAX_COUNT))]))
LAST_CELL = 2.0**52  # beyond it floats cannot tell a cell from the next, and nothing changes any more
_MOST = float(np.finfo(np.float64).max)  # seconds: there is no later instant
_COUNT, _PLACE = 0, 1  # streams; never renumber


def cell_of(now_s: Arr | float, cell_s: Arr | float) -> Arr:
    """Return the number i of the cell of time that holds `now_s`: i x cell_s <= now_s < (i + 1) x cell_s.

    True of the very floats, so that an instant computed as i x cell_s lies in cell i although divisions are rounded.
    """
    number = np.floor(np.divide(now_s, cell_s))
    number = number - (number * cell_s > now_s)
    corrected: Arr = number + ((number + 1.0) * cell_s <= now_s)
    return corrected


@dataclass(frozen=True, slots=True, eq=False)
class _Points:
    """A Poisson process a row; the points of a cell of time need no other cell."""

    key: Key
    cell_s: Arr  # shape (n,)

    @np.errstate(over="ignore")  # of what lies beyond the largest float: infinity is right
    def nearest_s(self, rows: Ids, now_s: Arr, step: int) -> Arr:
        """Return the first point after `now_s` (step 1) or the last up to it (step -1; -inf: none since 0)."""
        cell = np.minimum(cell_of(now_s, self.cell_s[rows]), LAST_CELL)
        found_s = np.full(len(rows), step * np.inf)
        todo = np.arange(len(rows))
        while len(todo):
            point_s, since_s = self._points_s(rows[todo], cell[todo]), now_s[todo][:, None]
            fits = point_s > since_s if step > 0 else point_s <= since_s
            found_s[todo] = step * np.where(fits, step * point_s, np.inf).min(axis=1)
            cell[todo] += step
            cells = (cell[todo] >= 0) & (cell[todo] <= np.minimum(LAST_CELL, _MOST / self.cell_s[rows[todo]]))
            todo = todo[np.isinf(found_s[todo]) & cells]
        return found_s

    def _points_s(self, rows: Ids, cell: Arr) -> Arr:
        """Return the points of a cell of each row, unsorted, inf beyond their number, shape (k, places)."""
        rows, cell, cell_s = rows[:, None], cell[:, None], self.cell_s[rows][:, None]
        count = np.searchsorted(_COUNTS, self._draws(rows, cell, 0).uniform(_COUNT))
        place = np.arange(count.max(initial=1))
        point_s = cell * cell_s + self._draws(rows, cell, place).uniform(_PLACE) * cell_s
        # rounding must not carry a point beyond the end of its cell, where nobody would look for it
        point_s = np.minimum(point_s, (cell + 1.0) * cell_s)
        return np.where(place < count, point_s, np.inf)

    def _draws(self, rows: Ids, cell: Arr, place: Ids | int) -> Draws:
        return Draws(self.key, rows, (cell * _MAX_COUNT + place).astype(np.int64))


@dataclass(frozen=True, slots=True, eq=False)
class OnOff:
    """n independent processes with exponential times on and off; at the start a row is on in the long-run share.

    The points of one Poisson process switch a row on and those of another switch it off: a point that finds the row
    switched already changes nothing. So the state is the kind of the latest point, and it ends with the first point
    of the other kind, after an exponential time. A question looks at a few cells near its time, whatever that is.
    """

    key: Key
    mean_on_s: Arr  # finite and above 0, shape (n,)
    mean_off_s: Arr

    def on(self, rows: Ids, now_s: Arr | float) -> np.ndarray:
        """Return which rows are on at `now_s` (finite, at least 0), bool, shape (k,); on in [change, next change)."""
        now_s = np.broadcast_to(np.float64(now_s), rows.shape)
        switched_on_s = self._points(on=True).nearest_s(rows, now_s, -1)
        switched_off_s = self._points(on=False).nearest_s(rows, now_s, -1)
        half_on_s, half_off_s = self.mean_on_s[rows] / 2.0, self.mean_off_s[rows] / 2.0  # their sum is finite
        share = half_on_s / (half_on_s + half_off_s)
        at_start = Draws(self.key.at(2), rows, np.zeros_like(rows)).uniform(0) < share
        untouched = np.isneginf(np.maximum(switched_on_s, switched_off_s))
        state: np.ndarray = np.where(untouched, at_start, switched_on_s > switched_off_s)
        return state

    def next_change_s(self, rows: Ids, now_s: Arr | float) -> Arr:
        """Return the first instant after `now_s` at which each row changes its state, shape (k,)."""
        now_s = np.broadcast_to(np.float64(now_s), rows.shape)
        return self._next_s(rows, now_s, self.on(rows, now_s))

    def on_s(self, rows: Ids, now_s: Arr | float, since_s: Arr | float = 0.0) -> Arr:
        """Return seconds of [since_s, now_s] in the state on, shape (k,); visits every change between the two."""
        end_s = np.broadcast_to(np.float64(now_s), rows.shape)
        at_s, total_s = np.array(np.broadcast_to(np.float64(since_s), rows.shape)), np.zeros(len(rows))
        on = self.on(rows, at_s)
        todo = np.flatnonzero(at_s < end_s)
        while len(todo):
            until_s = np.minimum(self._next_s(rows[todo], at_s[todo], on[todo]), end_s[todo])
            total_s[todo] += np.where(on[todo], until_s - at_s[todo], 0.0)
            at_s[todo], on[todo] = until_s, ~on[todo]
            todo = todo[until_s < end_s[todo]]
        return total_s

    def _next_s(self, rows: Ids, now_s: Arr, on: np.ndarray) -> Arr:
        change_s = np.empty(len(rows))
        for state in (True, False):
            at = np.flatnonzero(on == state)
            change_s[at] = self._points(on=not state).nearest_s(rows[at], now_s[at], 1)
        return change_s

    def _points(self, on: bool) -> _Points:
        # a row stays off until it is switched on: those points are as far apart as its times off are long
        mean_s = self.mean_off_s if on else self.mean_on_s
        return _Points(self.key.at(int(on)), np.minimum(mean_s, _MOST / _MEAN_COUNT) * _MEAN_COUNT)


@dataclass(frozen=True, slots=True, eq=False)
class BothOn:
    """Pairs of rows of on/off processes, on while both rows are; pairs have shape (k, 2) where rows have (k,)."""

    each: OnOff

    def on(self, pairs: Ids, now_s: Arr | float) -> np.ndarray:
        """Return which pairs are on at `now_s`, bool, shape (k,)."""
        ends = self.each.on(pairs.ravel(), self._of_ends(now_s, pairs)).reshape(-1, 2)
        both: np.ndarray = np.logical_and(ends[:, 0], ends[:, 1])
        return both

    def next_change_s(self, pairs: Ids, now_s: Arr | float) -> Arr:
        """Return the first instant after `now_s` at which a row of each pair changes, shape (k,).

        A pair that is off may stay so.
        """
        change_s = self.each.next_change_s(pairs.ravel(), self._of_ends(now_s, pairs))
        soonest_s: Arr = change_s.reshape(-1, 2).min(axis=1)
        return soonest_s

    def on_s(self, pairs: Ids, now_s: Arr | float, since_s: Arr | float = 0.0) -> Arr:
        """Return seconds of [since_s, now_s] in which pairs are on, shape (k,); visits every change between the two."""
        end_s = np.broadcast_to(np.float64(now_s), len(pairs))
        at_s, total_s = np.array(np.broadcast_to(np.float64(since_s), len(pairs))), np.zeros(len(pairs))
        todo = np.flatnonzero(at_s < end_s)
        while len(todo):
            on = self.on(pairs[todo], at_s[todo])
            until_s = np.minimum(self.next_change_s(pairs[todo], at_s[todo]), end_s[todo])
            total_s[todo] += np.where(on, until_s - at_s[todo], 0.0)
            at_s[todo] = until_s
            todo = todo[until_s < end_s[todo]]
        return total_s

    @staticmethod
    def _of_ends(now_s: Arr | float, pairs: Ids) -> Arr:
        """Return the time at both ends of each pair, shape (2 k,): a call for all ends takes half the time of two."""
        return np.repeat(np.broadcast_to(np.float64(now_s), len(pairs)), 2)
