"""Failures: laws of crashes, early stops, outages and restarts; purity of all of them; which of several is first."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, sqrt
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError
from scipy import stats

from edgesim.config.units import reason
from edgesim.core.errors import ConfigError
from edgesim.core.rng import Draws, Key
from edgesim.world.failures.base import Failure, combine, stretched_s
from edgesim.world.failures.crash import Crash
from edgesim.world.failures.link_outage import LinkOutage
from edgesim.world.failures.partial_work import PartialWork
from edgesim.world.failures.server_restart import ServerRestart
from edgesim.world.processes.on_off import BothOn
from tests.sizes import examples

KEY = Key(23)
MANY = 20_000
PHASES_S = (2.0, 5.0, 3.0)  # download, computation, upload


def built(cls: type, n: int = MANY, key: Key = KEY, **fields: Any) -> Failure:
    failure: Failure = TypeAdapter(cls).validate_python(fields).build(n, key, "failures.0")
    return failure


def draws(ids: Any, nth: int = 0) -> Draws:
    return Draws(KEY, np.asarray(ids), np.full(len(ids), nth))


def strikes(failure: Failure, ids: Any, nth: int = 0, phases_s: Any = PHASES_S) -> tuple[np.ndarray, np.ndarray]:
    """Strike jobs that all have the same phases."""
    return failure.strikes(draws(ids, nth), np.tile(np.array(phases_s)[:, None], len(ids)))


def sigmas_off(hits: int, trials: int, probability: float) -> float:
    """Return how many standard deviations a binomial count is from its mean."""
    return float(abs(hits - trials * probability) / sqrt(trials * probability * (1 - probability)))


def margin(trials: int) -> float:
    """Return the Kolmogorov-Smirnov distance exceeded with probability 1e-9 (Dvoretzky-Kiefer-Wolfowitz)."""
    return sqrt(np.log(2 / 1e-9) / (2 * trials))


# --- crashes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("phase", "first_s", "last_s"), [("any", 0, 10), ("download", 0, 2), ("training", 2, 7), ("upload", 7, 10)]
)
def test_crashes_come_by_chance_at_a_uniform_moment(phase, first_s, last_s):
    """Three jobs in ten, uniform over the seconds of the phase; another part or another job crashes on its own."""
    crash, ids = built(Crash, probability=0.3, phase=phase), np.arange(MANY)
    which, after_s = strikes(crash, ids)
    hit = after_s < inf
    assert sigmas_off(hit.sum(), MANY, 0.3) < 4
    assert (which[~hit] == -1).all()
    assert (after_s[hit] < np.array(PHASES_S)[which[hit]]).all()
    moment_s = np.array([0, 2, 7])[which[hit]] + after_s[hit]
    law = stats.uniform(first_s, last_s - first_s)
    assert stats.kstest(moment_s, law.cdf).statistic < margin(hit.sum())
    other = built(Crash, key=KEY.at(1), probability=0.3, phase=phase)
    for again in (strikes(crash, ids, nth=1), strikes(other, ids)):
        assert sigmas_off((hit & (again[1] < inf)).sum(), MANY, 0.3 * 0.3) < 4


@pytest.mark.parametrize(
    ("phase", "phases_s", "struck"),
    [
        ("download", (0, 5, 3), 0),
        ("upload", (2, 5, 0), 2),
        ("any", (0, 5, 0), 1),
        ("any", (0, 0, 3), 2),
        ("any", (0, 0, 0), 0),
        ("any", (0, 5e-324, 0), 1),
        ("training", (0, 5e-324, 0), 1),
    ],
)
def test_crashes_lie_inside_their_phase(phase, phases_s, struck):
    """Also where rounding would carry half of the strikes to the end: in a phase of the shortest time there is."""
    which, after_s = strikes(built(Crash, 100, probability=1, phase=phase), np.arange(100), phases_s=phases_s)
    assert (which == struck).all()
    assert (after_s >= 0).all()
    assert ((after_s < phases_s[struck]) if phases_s[struck] else (after_s == 0)).all()


@pytest.mark.parametrize(("n", "share", "prone"), [(10, 0.3, 3), (7, 0.4, 3), (3, 0.1, 0), (5, 1.0, 5), (4, 0, 0)])
@pytest.mark.parametrize("law", [{"probability": 1.0, "phase": "training"}, {"mean_time": "4 s"}])
def test_as_many_devices_are_prone_as_was_said(n, share, prone, law):
    """The same ones in every job."""
    crash = built(Crash, n, share=share, **law)
    sets = {tuple(np.flatnonzero(strikes(crash, np.arange(n), nth)[1] < inf)) for nth in range(5)}
    assert [len(devices) for devices in sets] == [prone]


def test_who_is_prone_is_random():
    """Each of 4 devices is in a random pair with probability 1/2, and another key gives another pair."""
    crashes = [built(Crash, 4, Key(seed), probability=1, share=0.5) for seed in range(400)]
    hits = np.sum([strikes(crash, np.arange(4))[1] < inf for crash in crashes], axis=0)
    assert all(sigmas_off(count, 400, 0.5) < 4 for count in hits)


def test_times_to_a_crash_are_exponential():
    """From sending on, with the mean of the device."""
    crash = built(Crash, mean_time={"choice": [2, 50]})
    which, after_s = strikes(crash, np.arange(MANY))
    assert (which == -1).all()
    mean_s = crash.mean_s
    assert set(mean_s) == {2.0, 50.0}
    for mean in (2.0, 50.0):
        times_s = after_s[mean_s == mean]
        assert stats.kstest(times_s, stats.expon(0, mean).cdf).statistic < margin(len(times_s))
        assert times_s.mean() == pytest.approx(mean, rel=4 / sqrt(len(times_s)))  # deviation = mean


@pytest.mark.parametrize(
    ("cls", "fields"),
    [
        (Crash, {"probability": {"uniform": [0.2, 0.9]}}),
        (Crash, {"probability": 0.5, "phase": "upload"}),
        (Crash, {"mean_time": {"log_normal": [5, 1]}}),
        (PartialWork, {"probability": {"choice": [0, 1]}, "least": 0.1}),
    ],
)
def test_a_job_fails_alike_whoever_else_is_asked(cls, fields):
    """Alone, in another order, asked twice, in a larger fleet."""
    ids, few = np.arange(50), np.array([30, 4, 4, 49])
    failure, more = built(cls, 50, **fields), built(cls, 500, **fields)
    all_of = (*strikes(failure, ids, 3), failure.work_share(draws(ids, 3)))
    for other in (more, failure, failure):
        again = (*strikes(other, few, 3), other.work_share(draws(few, 3)))
        assert all(np.array_equal(whole[few], part) for whole, part in zip(all_of, again, strict=True))
    assert not np.array_equal(all_of[1], strikes(failure, ids, 4)[1]) or cls is PartialWork


def test_hardly_anybody_changes_sides_as_a_fleet_grows():
    """Of 1,000 devices of which 30 % are prone, ten newcomers change no more than ten."""
    before = strikes(built(Crash, 1000, probability=1, share=0.3), np.arange(1000))[1]
    after = strikes(built(Crash, 1010, probability=1, share=0.3), np.arange(1000))[1]
    assert ((before < inf) != (after < inf)).sum() <= 10


# --- early stops ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("least", [0.0, 0.4])
def test_early_stops_do_a_uniform_share_of_the_work(least):
    """With probability 0.7; the others do all of it."""
    early = built(PartialWork, probability=0.7, least=least)
    share = early.work_share(draws(np.arange(MANY)))
    stopped = share[share < 1]
    assert share.max() == 1
    assert share.min() > least
    assert sigmas_off(len(stopped), MANY, 0.7) < 4
    assert stats.kstest(stopped, stats.uniform(least, 1 - least).cdf).statistic < margin(len(stopped))
    assert (strikes(early, np.arange(9))[1] == inf).all()


def test_an_early_stop_is_never_a_whole_job():
    """Not even where all the shares allowed round to 1."""
    least = float(np.nextafter(1, 0))
    share = built(PartialWork, 100, probability=1, least=least).work_share(draws(np.arange(100)))
    assert (share == least).all()


# --- links ------------------------------------------------------------------------------------------------


@dataclass
class Schedule:
    """Links that start up and change at given instants, in the place of an OnOff."""

    changes_s: list[list[float]]

    def on(self, rows: np.ndarray, now_s: Any) -> np.ndarray:
        passed = [sum(c <= t for c in self.changes_s[r]) for r, t in zip(rows, now_s, strict=True)]
        return np.array([count % 2 == 0 for count in passed])

    def next_change_s(self, rows: np.ndarray, now_s: Any) -> np.ndarray:
        return np.array(
            [min((c for c in self.changes_s[r] if c > t), default=inf) for r, t in zip(rows, now_s, strict=True)]
        )


def ticks_of(changes: list[float], seconds: int, start: int) -> int:
    """Return whole seconds until a transfer has had as many seconds with its link up as it needs, one by one."""
    now = start
    while seconds > 0:
        seconds -= sum(c <= now for c in changes) % 2 == 0
        now += 1
    return now - start


def test_transfers_stand_still_while_their_link_is_down():
    """Link 0 is down in [10, 14) and [15, 20), link 1 from 5 on."""
    links = Schedule([[10, 14, 15, 20], [5]])
    cases = [
        (0, 3.5, 0, 3.5),  # (row, seconds, start, takes)
        (0, 10, 0, 10),  # done as the link goes down
        (0, 10.25, 0, 14.25),
        (0, 4, 8, 2 + 4 + 1 + 5 + 1),
        (0, 1, 14, 1),
        (0, 1, 15, 6),
        (0, 1, 12.5, 2.5),
        (0, 0, 12.5, 0),
        (1, 5, 0, 5),
        (1, 6, 0, inf),
        (0, inf, 0, inf),
    ]
    rows, seconds, start_s, takes_s = map(np.array, zip(*cases, strict=True))
    assert stretched_s(links, rows, seconds, start_s).tolist() == takes_s.tolist()


@settings(max_examples=examples(60), deadline=None)
@given(
    changes=st.lists(st.lists(st.integers(1, 40), max_size=6, unique=True).map(sorted), min_size=1, max_size=4),
    seconds=st.integers(0, 20),
    start=st.integers(0, 45),
)
def test_pauses_add_up_as_second_by_second(changes, seconds, start):
    """In whole seconds, which a naive clock steps through; links have come back after an even number of changes."""
    changes = [instants[: len(instants) // 2 * 2] for instants in changes]
    rows = np.arange(len(changes))
    taken_s = stretched_s(Schedule(changes), rows, np.full(len(rows), float(seconds)), float(start))
    assert taken_s.tolist() == [ticks_of(instants, seconds, start) for instants in changes]


PAIR = st.lists(st.lists(st.integers(1, 40), max_size=6, unique=True).map(sorted), min_size=2, max_size=2)


@settings(max_examples=examples(60), deadline=None)
@given(changes=PAIR, seconds=st.integers(0, 20), start=st.integers(0, 45))
def test_a_pair_is_on_while_both_its_ends_are(changes, seconds, start):
    """In whole seconds, against a clock that goes through one after the other; pairs in both orders are the same."""
    changes = [instants[: len(instants) // 2 * 2] for instants in changes]
    both, pairs = BothOn(Schedule(changes)), np.array([[0, 1], [1, 0]])

    def up(second):
        return all(sum(c <= second for c in instants) % 2 == 0 for instants in changes)

    now, left = start, seconds
    while left:
        left -= up(now)
        now += 1
    taken_s = stretched_s(both, pairs, np.full(2, float(seconds)), float(start))
    assert taken_s.tolist() == [now - start] * 2
    ends_s = np.full(2, float(start + 10))
    assert both.on_s(pairs, ends_s, np.full(2, float(start))).tolist() == [sum(map(up, range(start, start + 10)))] * 2
    assert both.on(pairs, ends_s).tolist() == [up(start + 10)] * 2


def test_links_go_down_and_come_back():
    """Up with probability 3 / (3 + 1) at any time; transfers have their links up as long as they need, on a grid."""
    failure = built(LinkOutage, up=3, down=1)
    links, rows = failure.links, np.arange(MANY)
    for now_s in (0.0, 17.5, 1e5):
        assert sigmas_off(links.on(rows, now_s).sum(), MANY, 0.75) < 4
    assert (strikes(failure, np.arange(9))[1] == inf).all()
    seconds = np.linspace(0.5, 20, 20)
    taken_s = stretched_s(links, rows[:20], seconds, 17.5)
    for row, needed_s, passed_s in zip(rows, seconds, taken_s, strict=False):
        grid_s = np.arange(0, passed_s, 1e-3)
        up = links.on(np.full(len(grid_s), row), 17.5 + grid_s + 5e-4)
        assert up.sum() * 1e-3 == pytest.approx(needed_s, abs=1e-3 * (np.count_nonzero(np.diff(up)) + 2))
    assert (taken_s > seconds).any()


def test_a_link_may_be_worse_than_others():
    """Means by device; those of the first stay as the fleet grows."""
    few, more = (built(LinkOutage, n, up={"choice": [1, 99]}, down=1).links for n in (200, 300))
    rows = np.arange(200)
    on = np.array([few.on(rows, float(now_s)) for now_s in range(0, 2000, 20)])
    share = on.mean(axis=0)  # near 1/2 or 99/100
    assert 50 < (share < 0.75).sum() < 150
    assert np.array_equal(on[-1], more.on(rows, 1980.0))


# --- the server -------------------------------------------------------------------------------------------


def test_planned_restarts_come_in_order():
    """Each of them once, whatever the order in which they are written."""
    server = built(ServerRestart, at=["1 h", 20, 20.0, 0.5])
    asked_s = (0, 0.5, 19.9, 20, 3599, 3600, 1e9)
    assert [server.next_restart_s(now_s) for now_s in asked_s] == [0.5, 20, 20, 3600, 3600, inf, inf]


def test_restarts_are_a_poisson_process():
    """Exponential, independent times between them."""
    server, restarts_s = built(ServerRestart, mean_time="2 min"), [0.0]
    while len(restarts_s) < 3000:
        restarts_s.append(server.next_restart_s(restarts_s[-1]))
    gaps_s = np.diff(restarts_s)
    assert (gaps_s > 0).all()
    assert gaps_s.mean() == pytest.approx(120, rel=4 / sqrt(len(gaps_s)))
    assert stats.kstest(gaps_s, stats.expon(0, 120).cdf).statistic < margin(len(gaps_s))
    assert abs(stats.spearmanr(gaps_s[:-1], gaps_s[1:]).statistic) < 4 / sqrt(len(gaps_s))


@settings(max_examples=examples(100), deadline=None)
@given(times_s=st.lists(st.floats(0, 1e9), min_size=1, max_size=4))
def test_restarts_are_those_whoever_asks(times_s):
    """The next one after a time is the next one after all times in between, in any fleet."""
    server, other = built(ServerRestart, mean_time=7), built(ServerRestart, 1, mean_time=7)
    nexts_s = [server.next_restart_s(t) for t in times_s]
    for now_s, next_s in reversed(list(zip(times_s, nexts_s, strict=True))):
        assert next_s > now_s
        assert other.next_restart_s((now_s + next_s) / 2) == next_s
        assert other.next_restart_s(float(np.nextafter(next_s, 0))) == next_s
        assert other.next_restart_s(next_s) > next_s


# --- several at once --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Fixed(Failure):
    """Failures written down."""

    phase: tuple[int, ...] = ()
    after_s: tuple[float, ...] = ()
    share: tuple[float, ...] = ()
    restart_s: float = inf

    def strikes(self, draws: Draws, phases_s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.array(self.phase), np.array(self.after_s)

    def work_share(self, draws: Draws) -> np.ndarray:
        return np.array(self.share)

    def next_restart_s(self, now_s: float) -> float:
        return self.restart_s


def test_the_first_strike_counts():
    """Seconds of download, computation and upload are 2, 5 and 3: upload starts 7 s after sending."""
    by_phase = Fixed(phase=(2, 1, 0, -1, 1), after_s=(1, 1, 1.5, inf, 2), share=(1, 0.2, 0.5, 1, 1), restart_s=9)
    by_time = Fixed(phase=(-1, -1, 1, -1, 0), after_s=(7.5, 3.5, 0, inf, 4), share=(1, 0.3, 0.4, 0.9, 1), restart_s=8)
    both = combine([by_phase, Failure(), by_time])
    phase, after_s = strikes(both, np.arange(5))
    # 7.5 before 7 + 1; 2 + 1 before 3.5; 1.5 before 2 + 0; never; 2 + 2 and 0 + 4 are equal, the first part has it
    assert phase.tolist() == [-1, 1, 0, -1, 1]
    assert after_s.tolist() == [7.5, 1, 1.5, inf, 2]
    assert both.work_share(draws(np.arange(5))).tolist() == [1, 0.2, 0.4, 0.9, 1]
    assert both.next_restart_s(0.0) == 8
    assert both.links is None


def test_nothing_fails_without_failures():
    """A run without failures asks the same questions."""
    for nothing in (combine([]), Failure()):
        phase, after_s = strikes(nothing, np.arange(3))
        assert phase.tolist() == [-1, -1, -1]
        assert after_s.tolist() == [inf, inf, inf]
        assert nothing.work_share(draws(np.arange(3))).tolist() == [1, 1, 1]
        assert nothing.next_restart_s(5.0) == inf
        assert nothing.links is None


def test_links_are_cut_by_one_part_only():
    """It keeps its links beside other failures."""
    outage = built(LinkOutage, 5, up=10, down=1)
    assert combine([built(ServerRestart, 5, at=[3]), outage]).links is outage.links
    with pytest.raises(ConfigError, match=r"^failures: only one of them may cut the links, found 2$"):
        combine([outage, Failure(), built(LinkOutage, 5, KEY.at(1), up=1, down=1)])


# --- bad input --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cls", "fields", "fault"),
    [
        (Crash, {"probability": -0.1}, "must be greater than or equal to 0"),
        (Crash, {"probability": float("nan")}, "got nan"),
        (Crash, {"mean_time": 0}, "must be above 0 s"),
        (Crash, {"mean_time": "inf"}, "must be finite"),
        (Crash, {"probability": 0.5, "share": 1.5}, "must be less than or equal to 1"),
        (Crash, {"probability": 0.5, "phase": "compute"}, "must be 'any', 'download', 'training' or 'upload'"),
        (PartialWork, {"probability": 0.5, "least": 1}, "must be less than 1"),
        (LinkOutage, {"up": 0, "down": 1}, "must be above 0 s"),
        (LinkOutage, {"up": 1, "down": "3 Mbit"}, "is not a time"),
        (ServerRestart, {"mean_time": 0}, "must be above 0 s"),
        (ServerRestart, {"at": [5, -1]}, "must be above 0 s"),
        (ServerRestart, {"at": []}, "at least 1 value"),
    ],
)
def test_impossible_failures_are_refused(cls, fields, fault):
    """The reason says what is allowed."""
    with pytest.raises(ValidationError) as caught:
        built(cls, **fields)
    assert fault in reason(caught.value)


@pytest.mark.parametrize(
    ("cls", "fields", "fault"),
    [
        (Crash, {}, r"^failure: crash needs probability or mean_time, and not both$"),
        (Crash, {"probability": 0.1, "mean_time": 5}, r"^failure: crash needs probability or mean_time, and not both$"),
        (Crash, {"mean_time": 5, "phase": "upload"}, r"^failure\.phase: goes with probability, .* got 'upload'$"),
        (ServerRestart, {}, r"^failure: server_restart needs mean_time or at, and not both$"),
        (ServerRestart, {"mean_time": 5, "at": [1]}, r"^failure: server_restart needs mean_time or at, and not both$"),
        (Crash, {"probability": {"normal": [0.9, 0.5], "min": 0}}, r"^failures\.0\.probability: .* set `max`$"),
        (Crash, {"mean_time": {"normal": [1, 5]}}, r"^failures\.0\.mean_time: .* set `min`$"),
        (PartialWork, {"probability": {"normal": [0.1, 0.5], "max": 1}}, r"^failures\.0\.probability: .* set `min`$"),
        (LinkOutage, {"up": {"normal": [1, 5]}, "down": 1}, r"^failures\.0\.up: .* set `min`$"),
        (LinkOutage, {"up": 1, "down": {"normal": [1, 5]}}, r"^failures\.0\.down: .* set `min`$"),
    ],
)
def test_contradictions_and_impossible_draws_name_their_key(cls, fields, fault):
    """Of the part as it is read, or of the fleet as it is built."""
    with pytest.raises(ConfigError, match=fault):
        built(cls, 200, **fields)
