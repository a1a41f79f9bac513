"""Availability: laws, edges of the intervals, answers that do not depend on who asks when, and traces."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf, nextafter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError
from scipy import stats

from edgesim.core.errors import ConfigError, DataError
from edgesim.core.rng import Key
from edgesim.world.availability.always import Always
from edgesim.world.availability.base import Availability, all_of
from edgesim.world.availability.bernoulli import Bernoulli
from edgesim.world.availability.diurnal import Diurnal
from edgesim.world.availability.lifetime import Lifetime
from edgesim.world.availability.sessions import Groups, Sessions
from edgesim.world.availability.trace import AvailabilityTrace, Intervals
from edgesim.world.processes.on_off import OnOff, cell_of
from tests.sizes import examples

KEY = Key(23)
MANY = 20_000
# Dvoretzky-Kiefer-Wolfowitz: an empirical distribution function of k draws is this / sqrt(k) close but once in 10^9
DKW = float(np.sqrt(np.log(2 / 1e-9) / 2))


def built(cls: Any, n: int = 6, **fields: Any) -> Any:
    return TypeAdapter(cls).validate_python(fields).build(n, KEY, "availability")


def intervals(n: int, *rows: tuple[int, float, float]) -> Intervals:
    """Build a trace without a file: rows sorted, disjoint and not touching."""
    device, start_s, end_s = (np.array(column, dtype=float) for column in zip(*rows, (n, inf, inf), strict=True))
    return Intervals(n=n, device=device.astype(np.int64), start_s=start_s, end_s=end_s)


def near(share: float, draws: int) -> Any:
    """Expect a share of so many independent draws, within 6 standard deviations."""
    return pytest.approx(share, abs=6 * np.sqrt(share * (1 - share) / draws))


# Every kind, with changes every few seconds, as a function of the size of the fleet.
EXAMPLES: dict[str, Callable[[int], Availability]] = {
    "always": lambda n: built(Always, n),
    "bernoulli": lambda n: built(Bernoulli, n, p={"uniform": [0.2, 0.8]}, retry=7),
    "sessions": lambda n: built(Sessions, n, on={"uniform": [5, 20]}, off=10),
    "groups": lambda n: built(Groups, n, size=2, on=12, off=6),
    "diurnal": lambda n: built(Diurnal, n, mean=0.4, amplitude=0.6, period=50, zones=3, slot=3),
    "lifetime": lambda n: built(Lifetime, n, join={"uniform": [0, 60]}, leave={"uniform": [61, 150]}),
    "trace": lambda n: intervals(n, (0, 5, 50), (1, 0, 10), (1, 20, 30), (1, 30.5, 40), (3, 99, 160)),
    "all of": lambda n: all_of([EXAMPLES[name](n) for name in ("sessions", "diurnal", "lifetime")]),
}
EXAMPLES["all, by chance"] = lambda n: all_of([EXAMPLES[name](n) for name in ("bernoulli", "sessions")])
TIMED = [name for name in EXAMPLES if name not in ("bernoulli", "all, by chance")]
example = pytest.mark.parametrize("name", EXAMPLES)
timed = pytest.mark.parametrize("name", TIMED)
INSTANTS = st.one_of(st.integers(0, 200).map(float), st.floats(0, 200), st.floats(0, 1e9))


# --- what all of them promise -----------------------------------------------------------------------------


def answers(there: Availability, now_s: float, occasion: int) -> list[Any]:
    """Ask everything that costs little at any time."""
    ids = np.arange(there.n)
    from_s = there.on_from_s(ids, np.full(there.n, now_s))
    return [there.on(now_s, occasion).tolist(), from_s.tolist(), there.until_s(ids, now_s).tolist(),
            there.next_on_s(now_s)]  # fmt: skip


@example
@settings(deadline=None, max_examples=examples(8, short=4))
@given(asked=st.lists(st.tuples(INSTANTS, st.integers(0, 9)), min_size=1, max_size=4), data=st.data())
def test_answers_do_not_depend_on_what_was_asked_before(name, asked, data):
    """One object asked in any order, each question twice, answers as new objects do; so do single rows."""
    there = EXAMPLES[name](6)
    for question in data.draw(st.permutations(asked * 2)):
        assert answers(there, *question) == answers(EXAMPLES[name](6), *question)
    ids = data.draw(st.lists(st.integers(0, 5), min_size=1, max_size=4))
    times_s = np.array([data.draw(INSTANTS) for _ in ids])
    from_s, until_s = there.on_from_s(np.array(ids), times_s), there.until_s(np.array(ids), times_s)
    for row, (device, now_s) in enumerate(zip(ids, times_s.tolist(), strict=True)):
        assert from_s[row] == answers(there, now_s, 0)[1][device]
        assert until_s[row] == answers(there, now_s, 0)[2][device] > now_s


@example
def test_answers_are_arrays_of_their_kind(name):
    """Types and shapes as promised; off_s asked early, late and early again is the same."""
    there = EXAMPLES[name](6)
    assert (there.on(3.0, 0).dtype, there.on(3.0, 0).shape) == (np.dtype(bool), (6,))
    assert there.until_s(np.array([4, 1]), 3.0).shape == (2,)
    assert isinstance(there.next_on_s(3.0), float)
    first = there.off_s(40.0)
    assert (first.dtype, first.shape) == (np.dtype(float), (6,))
    assert there.off_s(0.0).tolist() == [0.0] * 6
    assert (there.off_s(160.0) >= first).all()
    assert there.off_s(40.0).tolist() == first.tolist()


@example
def test_a_larger_fleet_leaves_the_first_devices_as_they_were(name):
    """The first 5 of 9 devices are the 5 of a smaller fleet."""
    small, large, ids = EXAMPLES[name](5), EXAMPLES[name](9), np.arange(5)
    for occasion, now_s in enumerate([0.0, 3.0, 17.5, 63.0, 120.0]):
        assert small.on(now_s, occasion).tolist() == large.on(now_s, occasion)[:5].tolist()
        assert small.until_s(ids, now_s).tolist() == large.until_s(ids, now_s).tolist()
    assert small.off_s(150.0).tolist() == large.off_s(150.0)[:5].tolist()


@timed
def test_instants_of_change_are_those_at_which_the_state_changes(name):
    """Half open: on up to just before until_s and off at it; the reverse at on_from_s and next_on_s."""
    there, ids = EXAMPLES[name](6), np.arange(6)

    def at(device: int, now_s: float) -> bool:
        return bool(there.on(now_s, 0)[device])

    for now_s in np.linspace(0.0, 170.0, 29).tolist():
        on, next_s = there.on(now_s, 0), there.next_on_s(now_s)
        until_s, from_s = there.until_s(ids, now_s), there.on_from_s(ids, np.full(6, now_s))
        assert (from_s == now_s).tolist() == on.tolist()
        assert next_s == from_s[~on].min(initial=inf)
        for device in ids[on & (until_s < inf)].tolist():
            assert at(device, nextafter(until_s[device], 0)) and not at(device, until_s[device])
        for device in ids[~on & (from_s < inf)].tolist():
            assert at(device, from_s[device]) and not at(device, nextafter(from_s[device], 0))
        for before_s in np.linspace(now_s, min(next_s, now_s + 40), 5)[:-1].tolist():
            assert not (there.on(before_s, 0) & ~on).any()  # nobody comes back earlier
            assert there.on(before_s, 0)[on & (until_s > before_s)].all()  # nobody goes earlier


@timed
def test_seconds_off_are_the_integral_of_the_state(name):
    """Midpoints of a grid miss at most half a step at each change, and changes are counted one by one."""
    there, step_s, end_s = EXAMPLES[name](6), 0.25, 170.0
    grid_off = sum(~there.on((i + 0.5) * step_s, 0) for i in range(int(end_s / step_s)))
    changes = np.zeros(6)
    for device in range(6):
        one, at_s = np.array([device]), 0.0
        while at_s < end_s:
            came_s = there.on_from_s(one, np.array([at_s]))
            at_s = float(there.until_s(one, came_s)[0]) if came_s[0] < end_s else inf
            changes[device] += 2
    assert (np.abs(there.off_s(end_s) - grid_off * step_s) <= changes * step_s / 2 + 1e-9).all()


@pytest.mark.parametrize("name", ["always", "bernoulli", "diurnal"])
def test_a_million_devices(name):
    """Answers of a fleet of a million begin with those of a fleet of ten."""
    assert EXAMPLES[name](1_000_000).on(7.0, 3)[:10].tolist() == EXAMPLES[name](10).on(7.0, 3).tolist()


# --- alternating processes --------------------------------------------------------------------------------


def process(n: int, on_s: float = 30.0, off_s: float = 10.0) -> OnOff:
    return OnOff(KEY, np.full(n, on_s), np.full(n, off_s))


@pytest.mark.parametrize(("on_s", "off_s"), [(1.7e308, 0.1), (0.1, 1.7e308), (1.7e308, 1.7e308)])
def test_times_near_the_largest_number_are_gone_through(on_s: float, off_s: float) -> None:
    """A row changes in the end or, as no float can hold that, never."""
    rows, several = np.arange(200), process(200, on_s, off_s)
    change_s = several.next_change_s(rows, 3.2e7)
    assert (change_s > 3.2e7).all()
    off = ~several.on(rows, 3.2e7)
    assert (change_s[off] < 3.3e7).all() if off_s == 0.1 else (change_s[off] > 1e300).all()


@pytest.mark.parametrize("now_s", [0.0, 17.0, 1e12])
def test_the_process_is_stationary(now_s):
    """On with probability 30 / (30 + 10) at any time, and from then on for exponential times of mean 30 or 10.

    A question whose cost grew with its time would not end at 10^12 s.
    """
    rows, onoff = np.arange(MANY), process(MANY)
    on = onoff.on(rows, now_s)
    assert on.mean() == near(0.75, MANY)
    first_s = onoff.next_change_s(rows, now_s)
    spans_s = [(first_s - now_s, on), (onoff.next_change_s(rows, first_s) - first_s, ~on)]
    for span_s, state in spans_s:
        for of, mean_s in ((state, 30.0), (~state, 10.0)):
            k = of.sum()
            assert stats.kstest(span_s[of], stats.expon(scale=mean_s).cdf).statistic < DKW / np.sqrt(k)
            # a mean of k exponential times has the deviation mean / sqrt(k)
            assert span_s[of].mean() == pytest.approx(mean_s, abs=6 * mean_s / np.sqrt(k))
    # what comes next forgets what was
    assert abs(np.corrcoef(spans_s[0][0][on], spans_s[1][0][on])[0, 1]) < 6 / np.sqrt(on.sum())


def test_states_some_time_apart_are_as_alike_as_they_should_be():
    """P(on at t | on at 0) = p + (1 - p) exp(-(1/30 + 1/10) t), of the two-state Markov chain."""
    rows, onoff = np.arange(MANY), process(MANY)
    began = onoff.on(rows, 100.0)
    for later_s in (2.0, 10.0):
        expected = 0.75 + 0.25 * np.exp(-later_s * (1 / 30 + 1 / 10))
        assert onoff.on(rows[began], 100.0 + later_s).mean() == near(expected, began.sum())


@settings(deadline=None, max_examples=examples(25, short=6))
@given(now_s=INSTANTS, on_s=st.sampled_from([0.3, 7.0, 1e4]), off_s=st.sampled_from([0.1, 7.0, 333.0]))
def test_the_state_changes_at_the_next_change_and_not_before(now_s, on_s, off_s):
    """The next change of any instant up to it is that change, to the last bit."""
    rows, onoff = np.arange(8), process(8, on_s, off_s)
    on, change_s = onoff.on(rows, now_s), onoff.next_change_s(rows, now_s)
    just_before_s = np.nextafter(change_s, 0)
    assert (change_s > now_s).all()
    assert (onoff.on(rows, change_s) == ~on).all()
    for between_s in (just_before_s, np.maximum((now_s + change_s) / 2, now_s)):
        inside = (between_s >= now_s) & (between_s < change_s)
        assert (onoff.on(rows, between_s) == on)[inside].all()
        assert (onoff.next_change_s(rows, between_s) == change_s)[inside].all()


def test_seconds_on_add_up():
    """on_s between two instants without a change grows by all or nothing; on average it is 3/4 of the time."""
    rows, onoff = np.arange(2000), process(2000)
    assert onoff.on_s(rows, 0.0).tolist() == [0.0] * 2000
    at_s = np.zeros(2000)
    total_s = np.zeros(2000)
    for _ in range(5):
        later_s, on = onoff.next_change_s(rows, at_s), onoff.on(rows, at_s)
        total_s += np.where(on, later_s - at_s, 0.0)
        at_s = later_s
        assert onoff.on_s(rows, at_s) == pytest.approx(total_s, rel=1e-12)
    # the integral to T of the chain's covariance p q exp(-r |s|) is below 2 p q T / r, here with 1 / r = 7.5 s
    deviation_s = np.sqrt(2 * 0.75 * 0.25 * 400 * 7.5 / 2000)
    assert onoff.on_s(rows, 400.0).mean() == pytest.approx(300.0, abs=6 * deviation_s)


@settings(max_examples=examples(200))
@given(number=st.integers(0, 2**40), cell_s=st.floats(1e-3, 1e6), now_s=st.floats(0, 1e12))
def test_cells_hold_their_instants(number, cell_s, now_s):
    """An instant lies in its cell, and a multiple of the length begins a cell, in floats."""
    cell = float(cell_of(now_s, cell_s))
    assert cell * cell_s <= now_s < (cell + 1) * cell_s
    assert cell_of(number * cell_s, cell_s) == number
    assert cell_of(nextafter((number + 1) * cell_s, 0), cell_s) == number


def test_sessions_and_groups_follow_their_means():
    """Devices have means of their own; a group goes together, and groups do not."""
    share = built(Sessions, MANY, on={"choice": [10, 90]}, off=30).on(5e5, 0)
    assert share.mean() == near((10 / 40 + 90 / 120) / 2, MANY)
    groups = built(Groups, 3 * MANY - 1, size=3, on=8, off=24).on(777.0, 0)
    assert (groups[0:-2:3] == groups[1:-1:3]).all()
    assert (groups[2::3] == groups[:-2:3]).all()
    assert groups[::3].mean() == near(0.25, MANY)
    together = (groups[0:-3:3] == groups[3::3]).mean()
    # neighbouring groups agree with probability 0.25^2 + 0.75^2, pairs that overlap only by one group
    assert together == pytest.approx(0.625, abs=6 * np.sqrt(2 * 0.625 * 0.375 / MANY))


# --- by chance and by the hour ----------------------------------------------------------------------------


def test_bernoulli_draws_once_an_occasion():
    """p of the devices, the same at all times of an occasion, independent between occasions; jobs are not broken."""
    there = built(Bernoulli, MANY, p=0.3, retry="2 min")
    first, second = there.on(0.0, 0), there.on(0.0, 1)
    assert there.on(1e6, 0).tolist() == first.tolist()
    assert (first.mean(), second.mean()) == (near(0.3, MANY), near(0.3, MANY))
    assert (first & second).mean() == near(0.09, MANY)
    assert (first[1:] & first[:-1]).mean() == near(0.09, MANY / 2)  # pairs overlap
    assert (there.until_s(np.arange(3), 9.0) == inf).all()
    assert (there.next_on_s(50.0), there.off_s(1e9).sum()) == (170.0, 0.0)
    assert built(Bernoulli, 500, p=1).on(0.0, 4).all()


def test_diurnal_follows_its_sine():
    """Shares of each slot against mean + amplitude sin(2 pi (t / period + zone / zones)), cut to [0, 1]."""
    there = built(Diurnal, MANY, mean=0.5, amplitude=0.7, zones=4)  # day of 86400 s in slots of 900 s
    sizes = np.bincount(there.zone)
    assert [size / MANY for size in sizes] == [near(0.25, MANY)] * 4
    for slot in (0, 8, 24, 51, 72, 96 * 365):
        on = there.on(slot * 900.0, 0)
        for zone in range(4):
            sine = np.sin(2 * np.pi * (slot / 96 + zone / 4))
            expected = min(max(0.5 + 0.7 * sine, 0.0), 1.0)
            assert on[there.zone == zone].mean() == near(expected, sizes[zone])
        assert there.on(slot * 900.0 + 899.9, 1).tolist() == on.tolist()
    # a slot of another day is drawn anew: both on with probability 1/4 where p = 1/2
    level = there.zone == 0
    assert (there.on(0.0, 0) & there.on(86400.0, 0))[level].mean() == near(0.25, sizes[0])


def test_diurnal_finds_the_next_morning():
    """With p = 0 for half a day nobody comes back before it ends; what never happens is told from what does."""
    there = built(Diurnal, 50, mean=0.01, amplitude=1, period=1000, slot=100)
    # 0.01 + sin(2 pi t / 1000) > 0 at the slots 0 to 5, as sin(pi) counts as 0, and not at 6 to 9
    assert not there.on(600.0, 0).any()
    assert 1000.0 <= there.next_on_s(600.0) < 1400.0
    steady = built(Diurnal, 3, mean=1, amplitude=0)
    assert steady.on(5.0, 0).all()
    assert (steady.until_s(np.arange(3), 5.0).tolist(), steady.next_on_s(5.0)) == ([inf] * 3, inf)


# --- lives and traces -------------------------------------------------------------------------------------


def test_lifetimes_join_and_leave():
    """On in [join, leave); by default for ever."""
    there = built(Lifetime, 2, join="10 s", leave=25)
    assert [there.on(now_s, 0).any() for now_s in (0.0, nextafter(10, 0), 10.0, nextafter(25, 0), 25.0, 1e9)] == [
        False, False, True, True, False, False,
    ]  # fmt: skip
    assert [there.next_on_s(now_s) for now_s in (0.0, 10.0, 25.0)] == [10.0, inf, inf]
    assert [there.until_s(np.array([1]), now_s).tolist() for now_s in (12.0, 25.0)] == [[25.0], [inf]]
    assert there.off_s(40.0).tolist() == [25.0, 25.0]
    assert built(Lifetime).on(0.0, 0).all()
    spread = {"join": {"choice": [1, 50]}, "leave": {"choice": [20]}}
    with pytest.raises(ConfigError, match=r"availability\.leave: must be after join; device \d joins at 50 s and"):
        built(Lifetime, 9, **spread)
    with pytest.raises(ConfigError, match="device 0 joins at 5 s and leaves at 5 s"):
        built(Lifetime, join=5, leave=5)


def written(path: Path, rows: list[tuple[Any, ...]]) -> Path:
    """Write a trace in the format of the path."""
    frame = pd.DataFrame(rows, columns=["device", "start", "end"])
    if path.suffix == ".parquet":
        frame.to_parquet(path)
    else:
        frame.to_csv(path, index=False)
    return path


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_ten_thousand_questions_to_a_trace_equal_a_scan(tmp_path, ending):
    """Whole-second intervals of 30 devices, some touching, in random order of rows and questions."""
    generator, rows = np.random.default_rng(5), []
    for device in range(0, 30, 2):
        edges = np.cumsum(generator.integers(0, 40, size=60) + [0, 1] * 30)  # an end may be the next start
        rows += [(device, int(s), int(e)) for s, e in zip(edges[::2], edges[1::2], strict=True)]
    generator.shuffle(rows)
    there = built(AvailabilityTrace, 30, file=written(tmp_path / f"trace.{ending}", rows))
    ids = generator.integers(0, 30, size=10_000)
    times_s = generator.choice([0.0, 0.25], size=10_000) + generator.integers(0, 1300, size=10_000)
    spans = {device: sorted((s, e) for d, s, e in rows if d == device) for device in range(30)}

    def scan(device: int, now_s: float) -> tuple[bool, float, float]:
        on, until_s, ends = False, inf, [(s, e) for s, e in spans[device] if e > now_s]
        for start_s, end_s in ends:
            if start_s <= (until_s if on else now_s):
                on, until_s = True, end_s
        return on, (now_s if on else min((s for s, _ in ends), default=inf)), until_s

    expected = [scan(device, now_s) for device, now_s in zip(ids.tolist(), times_s.tolist(), strict=True)]
    on = [bool(there.on(now_s, 0)[device]) for device, now_s in zip(ids.tolist(), times_s.tolist(), strict=True)]
    found = zip(on, there.on_from_s(ids, times_s).tolist(), there.until_s(ids, times_s).tolist(), strict=True)
    assert list(found) == expected
    assert 0.1 < np.mean(on) < 0.5  # half of the devices have rows, and are on for about half of the time
    total_s = [2000 - sum(e - s for s, e in spans[device]) for device in range(30)]
    assert there.off_s(2000.0).tolist() == total_s


BAD_ROWS = [
    ((1, 9, 4), "end must be after start, got '?4'?"),
    ((1, 9, 9), "end must be after start, got '?9'?"),
    ((1, 5, 8), r"overlaps the interval of \w+ 3"),
    ((1, 3, 4), r"overlaps the interval of \w+ 3"),
    ((4, 8, 9), "device must be a number from 0 to 3, got '?4'?"),
    ((-1, 8, 9), "device must be a number from 0 to 3, got '?-1'?"),
    ((0.5, 8, 9), r"device must be a number from 0 to 3, got '?0\.5'?"),
    ((1, -8, 9), "start must be a finite number of seconds of at least 0, got '?-8'?"),
    ((1, 8, inf), "end must be a finite number of seconds of at least 0, got '?inf'?"),
    ((1, None, 9), "start must be a finite number of seconds of at least 0, got ('nan'|''|nan|None)"),
]


@pytest.mark.parametrize(("row", "fault"), BAD_ROWS, ids=str)
def test_bad_rows_are_refused_by_file_and_line(tmp_path, row, fault):
    """Row 4 of a parquet file; line 5 of a CSV file, blank lines counted."""
    file = written(tmp_path / "trace.parquet", [(0, 1, 2), (1, 10, 12), (1, 2, 6), row])
    with pytest.raises(DataError, match=rf"trace\.parquet row 4: {fault}".replace(r"\w+ 3", "row 3")):
        built(AvailabilityTrace, 4, file=file)
    text = "device,start,end\n0,1,2\n\n1,2,6\n" + ",".join("" if v is None else str(v) for v in row) + "\n\n"
    (tmp_path / "trace.csv").write_text(text)
    with pytest.raises(DataError, match=rf"trace\.csv line 5: {fault}".replace(r"\w+ 3", "line 4")):
        built(AvailabilityTrace, 4, file=tmp_path / "trace.csv")


BAD_FILES = [
    ("", "needs the columns device, start, end; got $"),
    ("device,start,end\n", "holds no rows"),
    ("device,start,end\n\n\n", "holds no rows"),
    ("device,start\n0,1\n", "needs the columns device, start, end; got device, start"),
    ("device,start,end,end\n0,1,2,2\n", "needs the columns device, start, end; got device, start, end, end"),
    ("device,start,end\n0,1,2\n0,3\n", "line 3: has not as many values as the header has names: 2, not 3"),
    ("device,start,end\n0,1,2\n0,noon,3\n", "line 3: start must be a finite number .*, got 'noon'"),
    ("device,start,end\n0,1,2\nbus,1,3\n", "line 3: device must be a number from 0 to 5, got 'bus'"),
    (b"device,start,end\n0,\xff,2\n", r"not UTF-8 text: byte 0xff \(invalid start byte\)"),
]


@pytest.mark.parametrize(("content", "fault"), BAD_FILES)
def test_bad_files_are_refused(tmp_path, content, fault):
    """One line that names the file."""
    file = tmp_path / "trace.csv"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(DataError, match=rf"^\S*trace\.csv:? {fault}"):
        built(AvailabilityTrace, file=file)


def test_files_that_are_not_there_or_something_else(tmp_path):
    """A missing file, a folder, and parquet that is none, or of dates."""
    for name in ("missing.csv", "missing.parquet", "."):
        with pytest.raises(DataError, match="cannot be read"):
            built(AvailabilityTrace, file=tmp_path / name)
    (tmp_path / "text.parquet").write_text("device,start,end\n")
    with pytest.raises(DataError, match=r"text\.parquet: not a readable parquet file, truncated or damaged: "):
        built(AvailabilityTrace, file=tmp_path / "text.parquet")
    dates = written(tmp_path / "dates.parquet", [(0, 1.0, pd.Timestamp("2024-01-01"))])
    with pytest.raises(DataError, match=r"dates\.parquet: column end is timestamp\[us\], numbers are needed"):
        built(AvailabilityTrace, file=dates)


# --- several at once --------------------------------------------------------------------------------------

SPANS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 30), st.integers(1, 6)), max_size=8)


def spread_out(spans: list[tuple[int, int, int]]) -> Intervals:
    """Put intervals of given gaps and lengths behind one another, those of each device from 0 on."""
    rows: list[tuple[int, float, float]] = []
    for device, gap_s, length_s in sorted(spans, key=lambda span: span[0]):
        free_s = rows[-1][2] + 1 if rows and rows[-1][0] == device else 0
        rows.append((device, free_s + gap_s, free_s + gap_s + length_s))
    return intervals(3, *rows)


@settings(deadline=None, max_examples=examples(30, short=6))
@given(traces=st.lists(SPANS, min_size=2, max_size=3), now_s=st.integers(0, 60))
def test_a_combination_is_on_where_all_are(traces, now_s):
    """Whole seconds, so that a table of all of them is the whole truth."""
    several = [spread_out(spans) for spans in traces]
    there, ids, end_s = all_of(several), np.arange(3), 400
    table = np.array([np.all([each.on(float(t), 0) for each in several], axis=0) for t in range(end_s)])
    assert [there.on(float(t), 0).tolist() for t in range(0, end_s, 7)] == table[::7].tolist()
    coming = table[now_s:].any(axis=1) if not table[now_s].any() else (table[now_s:] & ~table[now_s]).any(axis=1)
    assert there.next_on_s(float(now_s)) == (now_s + coming.argmax() if coming.any() else inf)
    assert there.off_s(float(now_s)).tolist() == (~table[:now_s]).sum(axis=0).tolist()
    on = ids[table[now_s]]
    expected = [now_s + int((~table[now_s:, device]).argmax()) for device in on]
    assert there.until_s(on, float(now_s)).tolist() == expected


def test_a_combination_with_chance_asks_again_when_somebody_is_there():
    """Chance is tried after its retry, but not before a device is there that could answer."""
    chance = built(Bernoulli, 2, p=0.5, retry=10)
    there = all_of([chance, intervals(2, (0, 0, 5), (1, 30, 40))])
    # at 0 device 0 may not have answered, but at 10 it is gone; at 20 the next to come is device 1
    assert [there.next_on_s(now_s) for now_s in (0.0, 20.0, 32.0, 40.0)] == [30.0, 30.0, inf, inf]
    assert there.next_on_s(30.0) == inf  # at 40 it has gone
    steady = all_of([chance, intervals(2, (0, 0, 100), (1, 30, 40))])
    assert [steady.next_on_s(now_s) for now_s in (0.0, 25.0, 60.0)] == [10.0, 30.0, 70.0]
    assert steady.on(1.0, 6).tolist() == [chance.on(1.0, 6)[0], False]
    assert steady.off_s(50.0).tolist() == [0.0, 40.0]  # chance breaks nothing off


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Turns(Availability):
    """On in every other second, from `first` on: a class that defines no more than it must."""

    first: int

    def on_from_s(self, ids: np.ndarray, from_s: np.ndarray) -> np.ndarray:
        return np.where(np.floor(from_s) % 2 == self.first, from_s, np.floor(from_s) + 1.0)

    def until_s(self, ids: np.ndarray, now_s: np.ndarray | float) -> np.ndarray:
        return np.broadcast_to(np.floor(now_s) + 1.0, ids.shape)


def test_those_who_never_agree_never_come():
    """The search ends; each alone comes back at once."""
    even, odd = Turns(n=3, first=0), Turns(n=3, first=1)
    assert (even.next_on_s(1.5), odd.next_on_s(0.0)) == (2.0, 1.0)
    assert even.off_s(6.5).tolist() == [3.0] * 3
    assert all_of([even, odd]).next_on_s(0.0) == inf
    assert not all_of([even, odd]).on(7.0, 0).any()


def test_a_list_of_one_is_that_one_and_an_empty_list_is_refused():
    """No wrapping without need."""
    alone = built(Always)
    assert all_of([alone]) is alone
    with pytest.raises(ConfigError, match="availability: an empty list"):
        all_of([])


@pytest.mark.parametrize(
    ("cls", "fields"),
    [
        (Bernoulli, {"p": 0}), (Bernoulli, {"p": 1.5}), (Bernoulli, {}), (Bernoulli, {"p": 0.5, "retry": 0}),
        (Sessions, {"on": 0, "off": 5}), (Sessions, {"on": "inf", "off": 5}), (Sessions, {"on": 5}),
        (Groups, {"size": 0, "on": 1, "off": 1}), (Groups, {"size": 1.5, "on": 1, "off": 1}),
        (Diurnal, {"mean": 0}), (Diurnal, {"mean": 1.1}), (Diurnal, {"amplitude": -0.1}), (Diurnal, {"amplitude": 2}),
        (Diurnal, {"zones": 0}), (Diurnal, {"slot": 0}), (Diurnal, {"period": "0 s"}),
        (Lifetime, {"join": -1}), (Lifetime, {"leave": 0}), (AvailabilityTrace, {}),
    ],
    ids=str,
)  # fmt: skip
def test_values_out_of_range_are_refused(cls, fields):
    """By pydantic, when a scenario is read."""
    with pytest.raises(ValidationError):
        TypeAdapter(cls).validate_python(fields)
