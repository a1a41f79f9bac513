"""Batteries: levels between 0 and capacity, charging at certain hours, devices that go off and come back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from edgesim.core.arrays import Arr, Ids
from edgesim.core.job import ON_TIME_S
from edgesim.core.rng import Key
from edgesim.world.processes.daily_profile import DailyWindows, seconds_until_zero, stored_after

_ROUNDINGS = 8  # of a time, as the seconds of a job are added up in several ways; late in a long run they are more


_FAR_ENOUGH = 1.0 - 4 * _ROUNDINGS * np.finfo(np.float64).eps


def _about_now_s(now_s: Arr) -> Arr:
    """Return how far from an instant a time may be that is meant to be the same, shape of `now_s`."""
    near_s: Arr = ON_TIME_S + _ROUNDINGS * np.spacing(now_s)
    return near_s


class _State(NamedTuple):
    """Batteries at an instant. A store falls to 0 in both conditions of a device, which then changes to the other.

    On: the level. Off: what is missing to the level of restart. All arrays have shape (k,).
    """

    store_j: Arr
    off: np.ndarray
    off_s: Arr

    def of(self, rows: np.ndarray) -> _State:
        """Return a copy of some of the batteries."""
        return _State(self.store_j[rows], self.off[rows], self.off_s[rows])

    def put(self, rows: np.ndarray, new: _State) -> None:
        """Replace some of the batteries."""
        self.store_j[rows], self.off[rows], self.off_s[rows] = new


class Condition(NamedTuple):
    """Conditions of batteries at an instant; all arrays have shape (k,)."""

    on: np.ndarray  # bool
    until_s: Arr  # `on` holds at least so long, if nothing but idle power is drawn
    level_j: Arr
    since_s: Arr  # an instant since which `on` has held
    off_s: Arr  # seconds off until then


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BatteryArrays:
    """Batteries of n devices at the start of a run; all arrays have shape (n,)."""

    capacity_j: Arr
    level_j: Arr
    charge_w: Arr  # while plugged in
    idle_w: Arr  # while on
    phase_s: Arr  # how far the device's clock is ahead of the run's
    restart_j: Arr  # above 0


class Batteries:
    """Batteries of n devices, advanced lazily: asking changes nothing.

    A device that is on draws idle power and what its jobs draw, and charges while plugged in; a full battery stays
    full. A device whose battery is empty goes off: it draws nothing, charges while plugged in and comes back when the
    restart level is reached. So a level is piecewise linear in time. Times are seconds since the start of the run.
    """

    def __init__(self, arrays: BatteryArrays, windows: DailyWindows) -> None:
        n = len(arrays.capacity_j)
        empty = arrays.level_j <= 0
        self._a = arrays
        self._windows = windows
        # the first n rows: devices when they were last drained; the others: at the last change of condition before the
        # latest time asked for, if nothing is drawn meanwhile
        store_j = np.where(empty, arrays.restart_j, arrays.level_j)
        self._state, self._since_s = _State(np.tile(store_j, 2), np.tile(empty, 2), np.zeros(2 * n)), np.zeros(2 * n)

    def __len__(self) -> int:
        return len(self._a.capacity_j)

    @property
    def capacity_j(self) -> Arr:
        """The joules that batteries hold when they are full, shape (n,)."""
        return self._a.capacity_j

    def level(self, ids: Ids, now_s: Arr | float) -> Arr:
        """Return the joules stored, shape (k,)."""
        return self._level(ids, self._at(ids, now_s))

    def off_s(self, ids: Ids, now_s: Arr | float) -> Arr:
        """Return seconds so far, shape (k,), in which devices were off and drew no idle power."""
        return self._at(ids, now_s).off_s

    def condition(self, ids: Ids, now_s: float) -> Condition:
        """Return the conditions of devices at `now_s`, with their battery levels."""
        state = self._at(ids, now_s)
        change_s = now_s + self._change_after(ids, state, np.full(len(ids), now_s), 0.0)
        since_s, then = self._start(ids, now_s)
        # near a change a device is on or off by what the question says, and not by who asked before
        until_s = _FAR_ENOUGH * change_s - 2.0 * ON_TIME_S
        return Condition(~state.off, until_s, self._level(ids, state), since_s, then.off_s)

    def empty_after(self, ids: Ids, watts: Arr | float, now_s: Arr | float) -> Arr:
        """Return seconds, shape (k,), until empty under `watts` on top of idle power: inf if never, 0 if off."""
        return self._empty_after(ids, self._at(ids, now_s), np.full(len(ids), now_s), watts)

    def next_available(self, ids: Ids, now_s: Arr | float) -> Arr:
        """Return the time, shape (k,), from which devices are on: `now_s` if they are, inf if never again."""
        state = self._at(ids, now_s)
        back_s = now_s + self._change_after(ids, state, np.full(len(ids), now_s), 0.0)
        return np.where(state.off, back_s, now_s)

    def lasting(self, ids: Ids, phases: Sequence[tuple[Arr | float, Arr | float]], now_s: Arr | float) -> Arr:
        """Return after how many seconds from `now_s` on devices would be empty, shape (k,); nothing is drawn.

        `phases`: watts on top of idle power, and seconds, one after the other. It is inf for those that last for all.
        """
        state, at_s = self._at(ids, now_s), np.full(len(ids), now_s)
        total_s, outlasts = np.zeros(len(ids)), np.ones(len(ids), dtype=bool)
        for watts, seconds in phases:
            lasted_s, state = self._drained(ids, state, at_s, watts, seconds)
            at_s, total_s = at_s + lasted_s, total_s + lasted_s
            outlasts &= lasted_s == seconds  # sums of seconds cannot tell, as they are rounded
        return np.where(outlasts, np.inf, total_s)

    def drain(self, ids: Ids, watts: Arr | float, seconds: Arr | float, now_s: Arr | float) -> Arr:
        """Draw `watts` on top of idle power for `seconds` from `now_s` on, and return for how long, shape (k,).

        It is less for devices that empty before, which go off then, having drawn all they had. `ids` are distinct.
        Later calls may not ask for times before the end of the draining. Raises ValueError for such times.
        """
        lasted_s, state = self._drained(ids, self._at(ids, now_s), np.full(len(ids), now_s), watts, seconds)
        self._put(ids, now_s + lasted_s, state)
        return lasted_s

    def drain_in_turn(self, ids: Ids, phases: Iterable[tuple[Arr, Arr]], now_s: Arr) -> None:
        """Drain devices for phases of (joules on top of idle power, seconds), shape (k,), that follow one another.

        The first begins at `now_s`. A phase of 0 s draws nothing.
        """
        at_s, state, begins_s, drained = now_s.copy(), self._at(ids, now_s), now_s, np.zeros(len(ids), dtype=bool)
        for joules, seconds in phases:
            those = np.flatnonzero(seconds > 0)
            if not len(those):
                continue
            rows, from_s = ids[those], begins_s[those]
            then = self._moved(rows, at_s[those], state.of(those), from_s)
            lasted_s, then = self._drained(rows, then, from_s, joules[those] / seconds[those], seconds[those])
            state.put(those, then)
            at_s[those] = from_s + lasted_s
            begins_s = begins_s + seconds
            drained[those] = True
        self._put(ids[drained], at_s[drained], state.of(drained))

    def _drained(
        self, ids: Ids, state: _State, at_s: Arr, watts: Arr | float, seconds: Arr | float
    ) -> tuple[Arr, _State]:
        """Return for how long devices last, and their state then."""
        day = self._day(ids, state.off, at_s, watts)
        within_s = seconds + _about_now_s(at_s)
        empty_s = np.where(state.off, 0.0, seconds_until_zero(state.store_j, *day, within_s.max(initial=0.0)))
        dies = empty_s <= within_s
        lasted_s = np.minimum(empty_s, seconds)
        kept_j = _store_after(state.store_j, lasted_s, *day)
        left_j = np.where(state.off, state.store_j, np.where(dies, self._a.restart_j[ids], kept_j))
        return lasted_s, _State(left_j, dies, state.off_s)

    def _at(self, ids: Ids, now_s: Arr | float) -> _State:
        """Return the state of devices at `now_s`, past every change of condition up to then."""
        since_s, until_s = self._since_s[ids], np.full(len(ids), now_s)
        early = since_s > until_s + _about_now_s(until_s)
        if np.count_nonzero(early):
            raise ValueError(
                f"device {ids[early][0]} is drained until {since_s[early][0]} s, asked for {until_s[early][0]} s"
            )
        return self._moved(ids, *self._start(ids, until_s), until_s)

    def _moved(self, ids: Ids, at_s: Arr, state: _State, until_s: Arr) -> _State:
        """Return the state of devices at `until_s`, past every change of condition.

        `state` is that at `at_s`; both change in place.
        """
        todo = np.flatnonzero(at_s < until_s)
        while len(todo):
            rows, then, then_s, end_s = ids[todo], state.of(todo), at_s[todo], until_s[todo]
            about_s = end_s + _about_now_s(end_s)
            day = self._day(rows, then.off, then_s, 0.0)
            after_s = seconds_until_zero(then.store_j, *day, (about_s - then_s).max())
            changes = then_s + after_s <= about_s
            step_s = np.where(changes, after_s, end_s - then_s)
            kept_j = _store_after(then.store_j, step_s, *day)
            left_j = np.where(changes, self._a.restart_j[rows], kept_j)
            state.put(todo, _State(left_j, then.off ^ changes, then.off_s + np.where(then.off, step_s, 0.0)))
            at_s[todo] = np.where(changes, then_s + step_s, end_s)
            todo = todo[changes]
            new = todo[at_s[todo] > self._since_s[len(self) + ids[todo]]]
            self._note(len(self) + ids[new], at_s[new], state.of(new))
            todo = todo[at_s[todo] < until_s[todo]]
        return state

    def _start(self, ids: Ids, until_s: Arr | float) -> tuple[Arr, _State]:
        """Return when devices were last drained, or last known to change condition before `until_s`, and as what.

        Whichever it is, the way from there to `until_s` goes through the same changes.
        """
        changed = len(self) + ids
        known = np.where(self._since_s[changed] <= until_s, changed, ids)
        return self._since_s[known], self._state.of(known)

    def _put(self, ids: Ids, since_s: Arr, state: _State) -> None:
        """Let devices have been drained until `since_s`."""
        for at in (ids, len(self) + ids):
            self._note(at, since_s, state)

    def _note(self, at: Ids, since_s: Arr, state: _State) -> None:
        self._since_s[at] = since_s
        self._state.put(at, state)

    def _level(self, ids: Ids, state: _State) -> Arr:
        level_j: Arr = np.where(state.off, self._a.restart_j[ids] - state.store_j, state.store_j)
        return level_j

    def _empty_after(self, ids: Ids, state: _State, at_s: Arr, watts: Arr | float) -> Arr:
        return np.where(state.off, 0.0, self._change_after(ids, state, at_s, watts))

    def _change_after(self, ids: Ids, state: _State, at_s: Arr, watts: Arr | float) -> Arr:
        """Return seconds, shape (k,), until the stores are 0."""
        return seconds_until_zero(state.store_j, *self._day(ids, state.off, at_s, watts))

    def _day(self, ids: Ids, off: np.ndarray, at_s: Arr, watts: Arr | float) -> tuple[Arr, Arr, Arr]:
        """Return lengths and net powers of the sections of a day from `at_s` on, (sections, k), and what fits, (k,)."""
        lengths_s, plugged = self._windows.day_from(at_s + self._a.phase_s[ids])
        charge_w, load_w = plugged * self._a.charge_w[ids], self._a.idle_w[ids] + watts
        net_w = np.where(off, -charge_w, charge_w - load_w)
        return lengths_s, net_w, np.where(off, np.inf, self._a.capacity_j[ids])


def _store_after(store_j: Arr, seconds: Arr, lengths_s: Arr, net_w: Arr, capacity_j: Arr) -> Arr:
    """Return the joules of stores after so many seconds of a day, see `stored_after`, never below 0."""
    left_j: Arr = np.maximum(stored_after(seconds, store_j, lengths_s, net_w, capacity_j), 0.0)
    return left_j


class BatteryPart(ABC):
    """Batteries of a fleet block as a scenario names them: a frozen dataclass."""

    plugged_in: ClassVar[bool] = False  # True: there is no battery, and `build` is not called

    @abstractmethod
    def build(self, idle_w: Arr, key: Key, path: str) -> Batteries:
        """Return batteries, at the start of a run, of devices with these idle powers, shape (n,).

        Raises ConfigError that names a key below `path`.
        """
