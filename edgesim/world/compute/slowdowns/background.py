"""Background load that comes and goes, whatever jobs there are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, NamedTuple

import numpy as np
from annotated_types import Ge

from edgesim.config.units import PerDevice, Seconds, draw
from edgesim.core.arrays import Arr, Ids
from edgesim.core.limits import check_steps
from edgesim.core.rng import Draws, Key
from edgesim.world.compute.slowdowns.base import Slowdown, SlowdownPart

# Time is cut into cells of 8 refreshes on average; a cell has fewer than 64 (the probability of more is below 1e-30).
_MEAN_COUNT, _MAX_COUNT = 8.0, 64
_COUNTS = np.cumsum(np.exp(-_MEAN_COUNT) * np.cumprod([1.0, *(_MEAN_COUNT / np.arange(1, _MAX_COUNT))]))
_COUNT, _PLACE, _STATE = 0, 1, 2  # streams; never renumber


class _Cell(NamedTuple):
    """The refreshes of one cell of each of k devices, those beyond a device's number at the end of the cell."""

    start_s: Arr  # since the start of the cell, ascending, shape (k, refreshes)
    busy: np.ndarray  # from then on, bool, shape (k, refreshes)


@dataclass(frozen=True, slots=True, eq=False)
class BackgroundLoad(Slowdown):
    """Two-state Markov load of each device; the state at any time is a pure function of device and time.

    The process with rates a (to busy) and b (to idle) is the same in law as one that at the points of a Poisson
    process of rate a + b forgets its state and becomes busy with probability a / (a + b). Points and states of a cell
    of time need no other cell, so any time can be looked at without what came before it; a job costs as much as the
    points that it sees.
    """

    key: Key
    cell_s: Arr  # shape (n,)
    busy_share: Arr
    factor: Arr
    path: str = "slowdown"  # of the part, in the scenario

    def stretch(self, rows: Ids, busy_s: Arr, now_s: Arr | float, draws: Draws) -> Arr:
        """Return seconds, shape (k,), in which the work is done at full speed and, under load, at 1 / factor of it."""
        cells = busy_s * self.factor[rows] / self.cell_s[rows]
        check_steps(self.path, float(cells.max(initial=0.0)), "a job under a load that comes and goes so fast")
        cell = np.floor(now_s / self.cell_s[rows])
        begin_s = now_s - cell * self.cell_s[rows]
        busy = self._at_start(rows, cell)
        left_s, stretched = np.array(busy_s, dtype=np.float64), np.zeros(len(rows))
        todo = np.flatnonzero(left_s > 0)
        while len(todo):
            spent_s, done_s, busy[todo] = self._work(rows[todo], cell[todo], begin_s[todo], left_s[todo], busy[todo])
            stretched[todo] += spent_s
            left_s[todo] -= done_s
            cell[todo] += 1.0
            begin_s[todo] = 0.0
            todo = todo[left_s[todo] > 0]
        return stretched

    def busy(self, rows: Ids, now_s: Arr | float) -> np.ndarray:
        """Return which devices are under load at `now_s`, bool, shape (k,)."""
        number = np.floor(now_s / self.cell_s[rows])
        since_s = now_s - number * self.cell_s[rows]
        before = self._at_start(rows, number)
        cell = self._cell(rows, number, before)
        past = (cell.start_s <= since_s[:, None]).sum(axis=1)
        state: np.ndarray = np.where(past > 0, cell.busy[np.arange(len(rows)), past - 1], before)
        return state

    def _work(self, rows: Ids, number: Arr, begin_s: Arr, left_s: Arr, busy: np.ndarray) -> tuple[Arr, Arr, np.ndarray]:
        """Return seconds spent in a cell from `begin_s` on, work done in them and the last state."""
        cell = self._cell(rows, number, busy)
        end_s = self.cell_s[rows][:, None]
        edges_s = np.maximum(np.hstack([begin_s[:, None], cell.start_s, end_s]), begin_s[:, None])
        # a refresh before the beginning leaves a stretch of no length
        states = np.hstack([busy[:, None], cell.busy])
        speed = np.where(states, 1.0 / self.factor[rows][:, None], 1.0)
        done_s = np.cumsum(np.diff(edges_s, axis=1) * speed, axis=1)
        reached = done_s >= left_s[:, None]
        at = np.where(reached.any(axis=1), reached.argmax(axis=1), states.shape[1] - 1)
        row = np.arange(len(rows))
        finish_s = edges_s[row, at + 1] - np.maximum(done_s[row, at] - left_s, 0.0) / speed[row, at]
        # what is shorter than the rounding of its cell must not end before it begins
        return np.maximum(finish_s - begin_s, 0.0), np.minimum(done_s[:, -1], left_s), states[:, -1]

    def _cell(self, rows: Ids, number: Arr, before: np.ndarray) -> _Cell:
        count = self._count(rows, number)
        place = np.arange(count.max(initial=1))
        there = place < count[:, None]
        draws = self._draws(rows[:, None], number[:, None], place)
        start_s = self.cell_s[rows][:, None] * np.where(there, draws.uniform(_PLACE), 1.0)
        # states do not depend on places, so places can be sorted alone
        busy = draws.uniform(_STATE) < self.busy_share[rows][:, None]
        # those beyond the count repeat the last, so that the last column is the state at the end of the cell
        last = np.minimum(place, np.maximum(count - 1, 0)[:, None])
        busy = np.where(count[:, None] > 0, np.take_along_axis(busy, last, axis=1), before[:, None])
        return _Cell(np.sort(start_s, axis=1), busy)

    def _at_start(self, rows: Ids, number: Arr) -> np.ndarray:
        """Return the state at the start of a cell: of the last refresh before, or of the start of all."""
        share = self.busy_share[rows]
        before = number.copy()
        todo = np.arange(len(rows))
        latest = np.zeros(len(rows))
        while len(todo):
            before[todo] -= 1.0
            count = np.where(before[todo] < 0, 1, self._count(rows[todo], before[todo]))
            latest[todo] = np.maximum(count - 1, 0)
            todo = todo[count == 0]
        busy: np.ndarray = self._draws(rows, before, latest).uniform(_STATE) < share
        return busy

    def _count(self, rows: Ids, number: Arr) -> Ids:
        return np.searchsorted(_COUNTS, self._draws(rows, number, 0).uniform(_COUNT))

    def _draws(self, rows: Ids, number: Arr, place: Arr | int) -> Draws:
        """Return the draws of places in cells; cell -1 holds the state at time 0."""
        return Draws(self.key, rows, ((number + 1.0) * _MAX_COUNT + place).astype(np.int64))


@dataclass(frozen=True, kw_only=True)
class MarkovLoad(SlowdownPart):
    """A background load that comes and goes: a job takes `factor` times as long under load.

    Times without and with load are exponential with the means `idle` and `busy`; at the start a device is under load
    with probability busy / (idle + busy).
    """

    idle: PerDevice[Seconds]
    busy: PerDevice[Seconds]
    factor: PerDevice[Annotated[float, Ge(1)]]

    def build(self, n: int, key: Key, path: str) -> Slowdown:
        """Return the slow-downs of n devices."""
        idle_s = draw(self.idle, n, key.at(0).numpy(), f"{path}.idle")
        busy_s = draw(self.busy, n, key.at(1).numpy(), f"{path}.busy")
        factor = draw(self.factor, n, key.at(2).numpy(), f"{path}.factor")
        refresh_hz = 1.0 / idle_s + 1.0 / busy_s
        return BackgroundLoad(key.at(3), _MEAN_COUNT / refresh_hz, busy_s / (idle_s + busy_s), factor, path)


PLUGINS = {"markov": MarkovLoad}
