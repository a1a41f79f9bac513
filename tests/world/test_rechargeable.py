"""Batteries: hand-made days, a brute-force integrator, and devices that go off and come back."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from edgesim.config.units import reason
from edgesim.core.errors import ConfigError
from edgesim.core.rng import Key
from edgesim.world.batteries.base import Batteries, BatteryArrays
from edgesim.world.batteries.rechargeable import Rechargeable
from edgesim.world.processes.daily_profile import DAY_S, DailyWindows
from tests.sizes import examples, full, grows, sized

HOUR_S = 3600.0
KEY = Key(2)
ZERO = np.array([0])
Windows = list[tuple[float, float]]


def battery(windows: Windows | None = None, **columns: Any) -> Batteries:
    """Return one battery: 36 kJ, full, 1 W idle, not charged, unless said otherwise."""
    usual = {"capacity_j": 36e3, "level_j": 36e3, "charge_w": 0, "idle_w": 1, "phase_s": 0, "restart_j": 7.2e3}
    arrays = {name: np.atleast_1d(np.array(value, dtype=float)) for name, value in {**usual, **columns}.items()}
    n = max(len(array) for array in arrays.values())
    arrays = {name: np.broadcast_to(array, n).copy() for name, array in arrays.items()}
    return Batteries(BatteryArrays(**arrays), DailyWindows.of(windows or []))


def level(of: Batteries, now_s: float) -> float:
    return float(of.level(ZERO, now_s)[0])


def on(of: Batteries, now_s: float) -> list[bool]:
    return of.condition(np.arange(len(of)), now_s).on.tolist()


# --- by hand ----------------------------------------------------------------------------------------------


def test_a_battery_that_is_never_charged():
    """36 kJ at 1 W last 10 h, at 1 + 9 W 1 h; then the device is off for ever, and idle power no longer flows."""
    one = battery()
    assert one.empty_after(ZERO, 0.0, 0.0).tolist() == [36e3]
    assert one.empty_after(ZERO, 9.0, 0.0).tolist() == [3600]
    assert one.empty_after(ZERO, 9.0, 18e3).tolist() == [1800]
    assert [level(one, t) for t in (0, 9e3, 36e3, 1e7)] == [36e3, 27e3, 0, 0]
    assert [on(one, t) for t in (0.0, 35999.0, 36e3, 1e7, 5.0)] == [
        [True],
        [True],
        [False],
        [False],
        [True],
    ]
    assert one.next_available(ZERO, 100.0).tolist() == [100]
    assert one.next_available(ZERO, 4e4).tolist() == [math.inf]
    assert [one.off_s(ZERO, t)[0] for t in (100.0, 36e3, 40e3)] == [0, 0, 4e3]


def test_death_in_the_middle_of_a_job_takes_exactly_the_capacity():
    """A job of 2 h at 9 W above idle dies after 1 h: 10 W x 3600 s = 36 kJ; the device has nothing left to give."""
    one = battery()
    lasted_s = one.drain(ZERO, 9.0, 7200.0, 0.0)
    assert lasted_s.tolist() == [3600]
    assert (lasted_s[0] * (9 + 1), level(one, 3600.0)) == (36e3, 0)
    assert on(one, 3600.0) == [False]
    assert one.drain(ZERO, 9.0, 10.0, 5000.0).tolist() == [0]
    assert one.empty_after(ZERO, 0.0, 5000.0).tolist() == [0]


def test_a_dead_device_comes_back_after_charging():
    """Empty at 1 h; plugged in from 22 h on with 4 W; restart at 7.2 kJ, 30 minutes later; then 4 - 1 W come in."""
    one = battery([(22 * HOUR_S, 6 * HOUR_S)], charge_w=4)
    one.drain(ZERO, 13.0, 3 * HOUR_S, 6 * HOUR_S)  # at 6 h it is full; 36 kJ / 14 W = 2571 s
    death_s = 6 * HOUR_S + 36e3 / 14
    assert one.next_available(ZERO, 7 * HOUR_S).tolist() == [22.5 * HOUR_S]
    assert [level(one, t * HOUR_S) for t in (7, 22, 22.25)] == pytest.approx([0, 0, 3600])
    assert on(one, 22.4 * HOUR_S) == [False]
    assert on(one, 22.5 * HOUR_S) == [True]
    assert level(one, 22.5 * HOUR_S) == pytest.approx(7.2e3)
    assert level(one, 23.5 * HOUR_S) == pytest.approx(7.2e3 + 3 * HOUR_S)
    assert level(one, 26.5 * HOUR_S) == pytest.approx(36e3)  # full at 22.5 h + 28.8 kJ / 3 W = 25.17 h
    assert level(one, 31 * HOUR_S) == pytest.approx(36e3 - 1 * HOUR_S)  # unplugged at 30 h
    assert one.off_s(ZERO, 31 * HOUR_S)[0] == pytest.approx(22.5 * HOUR_S - death_s)


def test_a_full_battery_takes_no_more():
    """Plugged in all day it stays full, under any load that the charger carries."""
    one = battery([(0, DAY_S)], charge_w=5)
    assert level(one, 1e6) == 36e3
    assert one.empty_after(ZERO, 4.0, 1e6).tolist() == [math.inf]
    assert one.empty_after(ZERO, 7.0, 1e6).tolist() == [36e3 / 3]
    assert one.drain(ZERO, 4.0, 1e5, 0.0).tolist() == [1e5]
    assert level(one, 1e5) == 36e3


def test_a_slow_decline_is_found_far_ahead():
    """-1 W for 14 h and +1.5 W for 10 h make +3600 J... less 1.1 J/s of load: days are skipped, the last one is exact.

    Plugged in from 0 to 10 h with 2.5 W, idle 1 W, load 0.1 W: +1.4 W x 36 ks - 1.1 W x 50.4 ks = -5040 J a day.
    From 360 kJ: lowest at midnight. After n days 360000 - 5040 n > 0 up to n = 71 (2160 J); on day 72 it rises by
    50.4 kJ and falls at 1.1 W to 0 after 36000 + 52560 / 1.1 s.
    """
    one = battery([(0, 10 * HOUR_S)], charge_w=2.5, capacity_j=500e3, level_j=360e3)
    expected = 71 * DAY_S + 36e3 + (2160 + 50400) / 1.1
    assert one.empty_after(ZERO, 0.1, 0.0)[0] == pytest.approx(expected, abs=1e-5)
    # full after 10 h when it starts full, so the first day ends 55440 J below; the same slope from there
    brim = battery([(0, 10 * HOUR_S)], charge_w=2.5, capacity_j=500e3, level_j=500e3)
    after_one_day = 500e3 - 1.1 * 50.4e3
    days = math.floor(after_one_day / 5040)
    expected = (1 + days) * DAY_S + 36e3 + (after_one_day - 5040 * days + 50400) / 1.1
    assert brim.empty_after(ZERO, 0.1, 0.0)[0] == pytest.approx(expected, abs=1e-5)


def test_clocks_of_devices_may_be_ahead():
    """Of three equal devices each sees the night at its own time; windows may overlap and span midnight."""
    windows: Windows = [(22 * HOUR_S, 2 * HOUR_S), (1 * HOUR_S, 6 * HOUR_S)]
    three = battery(windows, charge_w=3, level_j=18e3, phase_s=[0, 12 * HOUR_S, 21 * HOUR_S])
    found = three.level(np.arange(3), 2 * HOUR_S)
    # + 2 W in the night until full; - 1 W by day; the third is plugged in from its second hour on
    assert found.tolist() == pytest.approx([18e3 + 14.4e3, 18e3 - 7.2e3, 18e3 - 3.6e3 + 7.2e3])
    assert three.level(np.array([2, 0]), 2 * HOUR_S).tolist() == [found[2], found[0]]


def test_drains_may_follow_one_another_but_not_overlap():
    """Download, compute and upload in turn; a time before the end of the last is refused."""
    one = battery()
    assert one.drain(ZERO, 1.0, 100.0, 0.0).tolist() == [100]
    assert one.drain(ZERO, 4.0, 200.0, 100.0).tolist() == [200]
    assert level(one, 300.0) == 36e3 - 2 * 100 - 5 * 200
    with pytest.raises(ValueError, match=r"^device 0 is drained until 300\.0 s, asked for 299\.0 s$"):
        one.level(ZERO, 299.0)


def test_an_empty_battery_starts_off():
    """Level 0 at the start: nothing until it is charged."""
    one = battery([(0, DAY_S)], charge_w=2, level_j=0)
    assert on(one, 0.0) == [False]
    assert one.next_available(ZERO, 0.0).tolist() == [3600]
    assert on(one, 3600.0) == [True]


def test_a_job_of_several_phases_can_be_tried_first():
    """How long download, compute and upload would last is what draining them in turn gives; trying draws nothing."""
    phases = [(1.0, np.array([100.0, 600.0])), (np.array([9.0, 4.0]), 3000.0), (2.0, 5e3)]
    ids = np.array([1, 0])
    two = battery(level_j=[3e4, 2e4])
    lasted_s = two.lasting(ids, phases, 50.0)
    assert two.lasting(ids, phases, 50.0).tolist() == lasted_s.tolist()
    # device 1: 19950 - 2 x 100 J last 1975 s of 10 W; device 0: 29950 - 2 x 600 - 5 x 3000 J last 4583.3 s of 3 W
    assert lasted_s.tolist() == pytest.approx([2075, 3600 + 13750 / 3])
    now_s = np.full(2, 50.0)
    for watts, seconds in phases:
        now_s = now_s + two.drain(ids, watts, seconds, now_s)
    assert (now_s - 50).tolist() == pytest.approx(lasted_s.tolist())
    assert on(two, 1e4) == [False, False]


def test_a_job_that_a_battery_outlasts():
    """To be empty at the very end of a phase is to have lasted for it; whoever is off lasts for no seconds at all."""
    two = battery(level_j=[36e3, 0.0])
    ids = np.arange(2)
    assert two.lasting(ids, [(9.0, 1800.0), (9.0, 1800.0)], 0.0).tolist() == [math.inf, 0]
    assert two.lasting(ids, [(9.0, 3600.0), (0.0, 0.0)], 0.0).tolist() == [math.inf, 0]
    assert two.lasting(ids, [(9.0, 3600.0), (0.0, 1.0)], 0.0).tolist() == [3600, 0]
    assert two.lasting(ids, [(9.0, 0.0)], 0.0).tolist() == [math.inf, math.inf]


# --- brute force ------------------------------------------------------------------------------------------

STEP_S = 60.0


class BruteForce:
    """One battery advanced minute by minute; a minute in which it becomes empty or restarts is split there."""

    def __init__(self, columns: dict[str, float], windows: Windows) -> None:
        self.c, self.windows = columns, windows
        self.level, self.off, self.off_s = columns["level_j"], columns["level_j"] <= 0, 0.0
        self.dead_at_s = math.inf

    def on_edge(self) -> bool:
        """Whether rounding decides if the device is on."""
        to_go = self.c["restart_j"] - self.level if self.off else self.level
        return abs(to_go) < 1e-6 * self.c["capacity_j"]

    def plugged(self, now_s: float) -> bool:
        clock = (now_s + self.c["phase_s"] + STEP_S / 2) % DAY_S
        return any(s <= clock < e if s < e else (clock >= s or clock < e) for s, e in self.windows)

    def run(self, start_s: float, end_s: float, watts: float) -> None:
        for minute in range(round((end_s - start_s) / STEP_S)):
            watts = self.minute(start_s + minute * STEP_S, watts)

    def minute(self, now_s: float, watts: float) -> float:
        """Advance by a minute and return the load that is left: none once the device has died of it."""
        gain = self.c["charge_w"] if self.plugged(now_s) else 0.0
        left = STEP_S
        while left > 0:
            net = gain if self.off else gain - self.c["idle_w"] - watts
            goal = self.c["restart_j"] if self.off else 0.0
            until = (goal - self.level) / net if (net > 0) == self.off and net != 0 else math.inf
            step = min(left, max(until, 0.0))
            self.off_s += step if self.off else 0.0
            self.level = min(self.level + net * step, self.c["capacity_j"])
            left -= step
            if until <= step:
                self.level = goal
                self.off = not self.off
                if self.off:
                    self.dead_at_s = min(self.dead_at_s, now_s + STEP_S - left)
                    watts = 0.0
        return watts


minutes = st.integers(0, 24 * 60 - 1).map(lambda m: m * STEP_S)
windows_lists = st.lists(st.tuples(minutes, minutes).filter(lambda w: w[0] != w[1]), max_size=3)
batteries = st.fixed_dictionaries(
    {
        "capacity_j": st.floats(1e4, 4e5),
        "share": st.floats(0.0, 1.0),
        "charge_w": st.floats(0, 20),
        "idle_w": st.floats(0.2, 6),
        "phase_s": minutes,
        "restart": st.floats(0.15, 0.9),
    }
)


def numbers(drawn: dict[str, float]) -> dict[str, float]:
    shared = {name: drawn[name] for name in ("capacity_j", "charge_w", "idle_w", "phase_s")}
    capacity = drawn["capacity_j"]
    return {**shared, "level_j": capacity * drawn["share"], "restart_j": capacity * drawn["restart"]}


@settings(max_examples=examples(60), deadline=None)
@given(
    drawn=batteries,
    windows=windows_lists,
    jobs=st.lists(st.tuples(st.integers(0, 900), st.integers(1, 400), st.floats(0, 40)), max_size=3),
    rest=st.integers(0, 3000),
)
def test_levels_equal_those_of_small_steps(drawn, windows, jobs, rest):
    """Random days with random jobs: level, condition and seconds off, after each wait and each job."""
    columns = numbers(drawn)
    slow, quick = BruteForce(columns, windows), battery(windows, **columns)
    now_s = 0.0
    for wait, length, watts in [*jobs, (rest, 0, 0.0)]:
        slow.run(now_s, now_s + wait * STEP_S, 0.0)
        now_s += wait * STEP_S
        if slow.on_edge():
            return
        for _ in range(2):
            assert level(quick, now_s) == pytest.approx(slow.level, abs=1e-6 * columns["capacity_j"])
        assert on(quick, now_s) == [not slow.off]
        assert quick.off_s(ZERO, now_s)[0] == pytest.approx(slow.off_s, abs=1e-3)
        if not length:
            continue
        was_off, slow.dead_at_s = slow.off, math.inf
        slow.run(now_s, now_s + length * STEP_S, 0.0 if was_off else watts)
        expected = 0.0 if was_off else min(slow.dead_at_s - now_s, length * STEP_S)
        assert quick.drain(ZERO, watts, length * STEP_S, now_s)[0] == pytest.approx(expected, abs=1e-3)
        now_s += length * STEP_S


@settings(max_examples=examples(60), deadline=None)
@given(drawn=batteries, windows=windows_lists, watts=st.floats(0, 30), start=st.integers(0, 2000))
def test_times_of_death_and_return_equal_those_of_small_steps(drawn, windows, watts, start):
    """`empty_after` and `next_available` against four days of small steps; later answers have to lie beyond."""
    columns = numbers(drawn)
    slow, quick = BruteForce(columns, windows), battery(windows, **columns)
    now_s = start * STEP_S
    slow.run(0.0, now_s, 0.0)
    if slow.on_edge():
        return
    end_s = now_s + 4 * DAY_S
    found = quick.empty_after(ZERO, watts, now_s)[0]
    back_s = quick.next_available(ZERO, now_s)[0]
    assert found == quick.empty_after(ZERO, watts, now_s)[0]
    if slow.off:
        assert found == 0
        minute = now_s
        while slow.off and minute < end_s:
            slow.minute(minute, 0.0)
            minute += STEP_S
        assert back_s > end_s - STEP_S if slow.off else minute - STEP_S - 1e-3 <= back_s <= minute + 1e-3
    else:
        assert back_s == now_s
        slow.dead_at_s = math.inf
        slow.run(now_s, end_s, watts)
        dead_s = slow.dead_at_s - now_s
        assert found > 4 * DAY_S - 1e-3 if math.isinf(dead_s) else found == pytest.approx(dead_s, abs=1e-3)


@full
@grows
def test_what_was_asked_before_changes_no_bit():
    """Three devices go off and on hundreds of times: asked often, now and then back, or once, they are equal."""
    ids, arrays = np.arange(3), {"capacity_j": 3, "level_j": [3, 0, 1.3], "restart_j": 0.7, "phase_s": [0, 7e3, 5e4]}
    often, seldom = (battery([(0, 0.9 * DAY_S)], charge_w=0.4, **arrays) for _ in range(2))
    generator = Key(3).numpy()
    now_s = 0.0
    for _ in range(sized(8, 40, 40)):
        ahead_s = np.sort(generator.uniform(0, 60, 6))
        for asked_s in now_s + ahead_s[generator.permutation(6)]:
            on(often, float(asked_s))
            often.next_available(ids, float(asked_s))
        now_s += float(generator.uniform(0, 60))
        for found, alone in ((often.level, seldom.level), (often.off_s, seldom.off_s)):
            assert found(ids, now_s).tolist() == alone(ids, now_s).tolist()
        seconds = generator.uniform(0, 1)
        lasted_s = [one.drain(ids[:2], 0.1, seconds, now_s).tolist() for one in (often, seldom)]
        assert lasted_s[0] == lasted_s[1]
        now_s += 1.0
    assert often.off_s(ids, now_s).min() > 0


def test_changes_are_gone_through_once(monkeypatch):
    """Off and on 25 times a minute: asking ever later looks at each change about once, not at all every time."""
    one = battery([(0, DAY_S)], charge_w=0.5, capacity_j=3, level_j=3, restart_j=0.6)
    looked = []
    really = Batteries._day
    monkeypatch.setattr(Batteries, "_day", lambda *given: looked.append(1) or really(*given))
    for minute in range(1, 101):
        one.off_s(ZERO, 60.0 * minute)
    changes = 100 * 60 * 2 / (0.6 / 0.5 + 0.6 / 0.5)
    assert changes < len(looked) < 1.1 * changes


def test_many_batteries_are_each_their_own():
    """Arrays give what single batteries give, bit for bit, and asking in another order changes nothing."""
    draw = KEY.numpy()
    n, windows = 30, [(22 * HOUR_S, 7 * HOUR_S), (12 * HOUR_S, 13 * HOUR_S)]
    columns = {
        "capacity_j": draw.uniform(2e4, 2e5, n),
        "level_j": draw.uniform(0, 2e4, n),
        "charge_w": draw.uniform(0, 9, n),
        "idle_w": draw.uniform(0.1, 3, n),
        "phase_s": draw.uniform(0, DAY_S, n),
        "restart_j": np.full(n, 5e3),
    }
    ids, now_s = np.arange(n), 2.3 * DAY_S
    many = battery(windows, **columns)
    order = draw.permutation(n)
    together = {
        "level": many.level(order, now_s),
        "empty": many.empty_after(order, 2.0, now_s),
        "next": many.next_available(order, now_s),
        "lasted": many.drain(order, 2.0, 5e3, now_s),
    }
    available = [on(many, t) for t in (4 * DAY_S, now_s + 5e3)]
    for place, i in enumerate(order):
        one = battery(windows, **{name: column[i] for name, column in columns.items()})
        assert one.next_available(ZERO, now_s)[0] == together["next"][place]
        assert one.empty_after(ZERO, 2.0, now_s)[0] == together["empty"][place]
        assert level(one, now_s) == together["level"][place]
        assert one.drain(ZERO, 2.0, 5e3, now_s)[0] == together["lasted"][place]
        assert [mask[i] for mask in available] == [on(one, t)[0] for t in (4 * DAY_S, now_s + 5e3)]
    assert 0 < sum(available[0]) < n
    assert len(many) == len(ids)


# --- the scenario's table ---------------------------------------------------------------------------------


def table(**fields: Any) -> Rechargeable:
    part: Rechargeable = TypeAdapter(Rechargeable).validate_python({"capacity": "10 Wh", **fields})
    return part


def test_a_table_becomes_batteries():
    """10 Wh at 40 % last 4 Wh / 2 W = 2 h; the charger comes at 22 h of a clock that is 3 h ahead."""
    part = table(level=0.4, charge="8 W", windows=[["22 h", "24 h"]], phase="3 h", restart=0.5)
    built = part.build(np.full(2, 2.0), KEY, "battery")
    assert built.empty_after(np.arange(2), 0.0, 0.0).tolist() == [2 * HOUR_S] * 2
    # 5 Wh to restart at 8 W: 37.5 minutes after 19 h of the run
    assert built.next_available(np.arange(2), 3 * HOUR_S).tolist() == pytest.approx([19.625 * HOUR_S] * 2)


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"capacity": "-1 Wh"}, "must be above 0 J"),
        ({"level": 1.1}, "must be less than or equal to 1"),
        ({"level": -0.1}, "must be greater than or equal to 0"),
        ({"charge": "-1 W"}, "must be at least 0 W"),
        ({"restart": 0}, "must be greater than 0"),
    ],
)
def test_impossible_batteries_are_refused(fields, fault):
    """The reason says what is allowed."""
    with pytest.raises(ValidationError) as caught:
        table(**fields)
    assert fault in reason(caught.value)


@pytest.mark.parametrize("window", [["0 h", "25 h"], ["24 h", "1 h"], ["5 h", "5 h"]])
def test_impossible_windows_are_refused(window):
    """A window lies within a day and lasts."""
    with pytest.raises(ConfigError, match=r"^battery\.windows: must lie within 24 h and last, got \["):
        table(windows=[window])
