"""Slow-downs: the laws of the factors, a background load that is one and the same whoever asks, and replayed speeds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError
from scipy import stats

from edgesim.config.units import reason
from edgesim.core.errors import ConfigError, DataError
from edgesim.core.rng import Draws, Key
from edgesim.world.compute.slowdowns.background import BackgroundLoad, MarkovLoad
from edgesim.world.compute.slowdowns.per_job import LogNormal, NoSlowdown, Pareto, ShiftedExponential
from edgesim.world.compute.slowdowns.replay import Replay
from edgesim.world.fleet import build_fleet
from tests.conftest import timing_scenario
from tests.sizes import examples, full

KEY = Key(17)
MANY = 40_000
DKW = float(np.sqrt(np.log(2 / 1e-9) / (2 * MANY)))  # see test_links


def plugin(cls: type, **fields: Any) -> Any:
    return TypeAdapter(cls).validate_python(fields)


def draws(n: int, nth: int = 0) -> Draws:
    return Draws(KEY, np.arange(n), np.full(n, nth))


def stretched(slowdown: Any, busy_s: Any, now_s: Any = 0.0, nth: int = 0) -> np.ndarray:
    """Stretch computations of the first devices."""
    busy_s = np.asarray(busy_s, dtype=float)
    seconds: np.ndarray = slowdown.stretch(np.arange(len(busy_s)), busy_s, now_s, draws(len(busy_s), nth))
    return seconds


# --- factors of a job -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "law"),
    [
        (plugin(LogNormal, sigma=0.6), stats.lognorm(0.6, scale=np.exp(-0.18))),
        (plugin(ShiftedExponential, scale=0.5), stats.expon(1, 0.5)),
        (plugin(Pareto, alpha=5.0), stats.pareto(5.0)),
    ],
    ids=["log_normal", "shifted_exponential", "pareto"],
)
def test_factors_have_their_law(given, law):
    """Kolmogorov-Smirnov against scipy, the documented means, one draw a job."""
    slowdown = given.build(MANY, KEY, "slowdown")
    factor = stretched(slowdown, np.full(MANY, 10.0)) / 10.0
    assert stats.kstest(factor, law.cdf).statistic < DKW
    means = {LogNormal: 1.0, ShiftedExponential: 1.5, Pareto: 1.25}  # 1; 1 + scale; alpha / (alpha - 1)
    assert law.mean() == pytest.approx(means[type(given)])
    assert factor.mean() == pytest.approx(law.mean(), abs=6 * law.std() / np.sqrt(MANY))
    assert np.array_equal(stretched(slowdown, np.full(MANY, 10.0), now_s=99.0) / 10.0, factor)
    assert abs(np.corrcoef(factor, stretched(slowdown, np.full(MANY, 1.0), nth=1))[0, 1]) < 5 / np.sqrt(MANY)


def test_parameters_may_differ_by_device():
    """A device with sigma 0 is never disturbed."""
    sigma = {"choice": [0.0, 1.0]}
    factor = stretched(plugin(LogNormal, sigma=sigma).build(200, KEY, "slowdown"), np.ones(200))
    assert 50 < (factor == 1).sum() < 150
    assert stretched(plugin(NoSlowdown).build(3, KEY, "slowdown"), [0, 1, 2.5]).tolist() == [0, 1, 2.5]


# --- background load --------------------------------------------------------------------------------------


def markov(n: int, **fields: Any) -> BackgroundLoad:
    load: BackgroundLoad = plugin(MarkovLoad, **{"idle": 3, "busy": 1, "factor": 4, **fields}).build(n, KEY, "slowdown")
    return load


def test_load_is_a_two_state_markov_process():
    """Stationary from the start; P(busy later | busy now) = p + (1 - p) exp(-(1/idle + 1/busy) t), p = 1/4."""
    load, rows = markov(MANY), np.arange(MANY)
    error = 5 * np.sqrt(0.25 / (MANY / 4))  # 5 standard errors of a share among those that are busy
    for start_s in (0.0, 7.3, 1e6):
        now = load.busy(rows, start_s)
        assert now.mean() == pytest.approx(0.25, abs=error)
        for wait_s in (0.05, 0.5, 1.5, 4.0, 40.0):
            later = load.busy(rows, start_s + wait_s)
            still = np.exp(-(1 / 3 + 1) * wait_s)
            assert later[now].mean() == pytest.approx(0.25 + 0.75 * still, abs=error)
            assert later[~now].mean() == pytest.approx(0.25 - 0.25 * still, abs=error)


@full
def test_times_under_load_are_exponential():
    """The idle and busy times seen by one device for 5,000 s, on a grid of 1/100 s, have the means asked for."""
    times_s = np.arange(0, 5e3, 0.01)
    busy = markov(1).busy(np.zeros(len(times_s), dtype=int), times_s)
    switches = np.flatnonzero(np.diff(busy)) + 1
    lengths = np.diff(switches) / 100
    for lasting, mean in ((lengths[busy[switches[:-1]]], 1.0), (lengths[~busy[switches[:-1]]], 3.0)):
        assert lasting.mean() == pytest.approx(mean, rel=5 / np.sqrt(len(lasting)) + 0.01)
        margin = np.sqrt(np.log(2 / 1e-9) / (2 * len(lasting))) + 0.01 / mean
        assert stats.kstest(lasting, stats.expon(0, mean).cdf).statistic < margin
    assert abs(stats.spearmanr(lengths[:-1:2], lengths[1::2]).statistic) < 5 / np.sqrt(len(lengths) / 2)


def test_stretch_integrates_the_states():
    """Work done at the speeds that `busy` reports on a grid of 1 ms is what was asked for, within a step a switch."""
    load, now_s = markov(40, factor={"uniform": [1, 6]}), 55.5
    work_s = np.linspace(0.01, 30, 40)
    seconds = stretched(load, work_s, now_s)
    for device in range(40):
        grid = np.arange(0, seconds[device], 1e-3)
        busy = load.busy(np.full(len(grid), device), now_s + grid + 5e-4)
        speed = np.where(busy, 1 / load.factor[device], 1.0)
        switches = np.count_nonzero(np.diff(busy)) + 1
        assert speed.sum() * 1e-3 == pytest.approx(work_s[device], abs=1e-3 * (switches + 1))


@settings(max_examples=examples(50), deadline=None)
@given(now_s=st.floats(0, 1e5), work_s=st.floats(0.001, 60), share=st.floats(0.05, 0.95))
def test_work_in_two_pieces_takes_as_long(now_s, work_s, share):
    """Half the job now and the other half when it is done end when the whole does, in whichever order one asks."""
    load = markov(3)
    works = np.full(3, work_s)
    first = stretched(load, works * share, now_s)
    second = stretched(load, works * (1 - share), now_s + first)
    assert first + second == pytest.approx(stretched(load, works, now_s), abs=1e-8)
    assert (first >= works * share - 1e-9).all()
    assert (first <= works * share * 4 + 1e-9).all()
    assert np.array_equal(stretched(markov(3), works * share, now_s), first)


def test_load_of_many_is_that_of_each():
    """Bit for bit, for different times of start, and more devices change nothing."""
    rows, work_s = np.array([5, 0, 3]), np.array([0.5, 40.0, 0.0])
    now_s = np.array([0.0, 1e4, 17.25])
    load = markov(6, idle={"uniform": [1, 9]}, busy={"uniform": [1, 2]})
    together = load.stretch(rows, work_s, now_s, draws(3))
    more = markov(60, idle={"uniform": [1, 9]}, busy={"uniform": [1, 2]})
    for i in (2, 0, 1):
        alone = more.stretch(rows[i : i + 1], work_s[i : i + 1], float(now_s[i]), draws(1))
        assert alone[0] == together[i]
    assert together[2] == 0


def test_load_that_hardly_rests_or_comes():
    """A share of 1e-6 without load, or with it, is felt in no more than a few of 200 jobs; factor 1 is not felt."""
    works = np.full(200, 3.0)
    for fields, seconds in (({"idle": 0.01, "busy": 1e4}, 12.0), ({"idle": 1e4, "busy": 0.01}, 3.0)):
        assert np.isclose(stretched(markov(200, **fields), works), seconds, rtol=1e-9).sum() >= 195
    assert stretched(markov(200, factor=1), works) == pytest.approx(works)


# --- replay -----------------------------------------------------------------------------------------------


def test_work_shorter_than_the_rounding_of_its_time_does_not_end_before_it_begins():
    load = markov(1000, idle=60.0, busy=20.0, factor=3.0)
    for now_s in np.linspace(0.0, 100.0, 50):
        assert (stretched(load, np.full(1000, 1e-26), now_s) >= 0).all()


def test_replayed_speeds_by_hand(tmp_path):
    """Full speed for 10 s, half for 10 s, none for 10 s; device 1 keeps a quarter."""
    file = tmp_path / "speed.csv"
    file.write_text("time_s,speed,device\n0,1,0\n10,0.5,0\n20,0,0\n0,0.25,1\n")
    slowdown = plugin(Replay, file=file).build(2, KEY, "slowdown")
    for work_s, now_s, seconds in ((4, 0, 4), (12, 0, 14), (15, 0, 20), (16, 0, 31), (1, 19, 11.5), (5, 25, 10)):
        assert stretched(slowdown, [work_s, work_s], float(now_s)).tolist() == pytest.approx([seconds, 4 * work_s])
    with pytest.raises(DataError, match=r"speed\.csv line 4: speed is 0 for ever"):
        plugin(Replay, file=file, repeat=False).build(2, KEY, "slowdown")


# --- steadiness -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "steady"),
    [
        (plugin(NoSlowdown), True),
        (plugin(LogNormal, sigma=0.5), False),
        (plugin(ShiftedExponential, scale=0.5), False),
        (plugin(Pareto, alpha=3.0), False),
        (plugin(MarkovLoad, idle="5 s", busy="5 s", factor=3.0), False),
    ],
    ids=str,
)
def test_only_undisturbed_devices_are_steady(given, steady):
    """A steady slow-down gives every job the same seconds at any time; the others do not."""
    slowdown = given.build(6, KEY, "slowdown")
    seconds = [stretched(slowdown, np.full(6, 10.0), now_s=30.0 * nth, nth=nth).tolist() for nth in range(3)]
    assert slowdown.steady == steady == (seconds[0] == seconds[1] == seconds[2])


def test_a_fleet_is_steady_if_all_of_it_is():
    """One jittering or disturbed block is enough to make its prices vary."""
    cpu = {"flops_per_s": 1e9}
    jittering = {"name": "fixed", "up": 1e6, "down": 1e6, "latency": 0.1, "jitter": 0.1}
    for other, steady in (
        ({}, True),
        ({"network": jittering}, False),
        ({"slowdown": {"name": "pareto", "alpha": 2}}, False),
    ):
        fleet = build_fleet(timing_scenario(fleet=[{"cpu": cpu}, {"cpu": cpu, **other}]))
        assert ([block.steady for block in fleet.blocks], fleet.steady) == ([True, steady], steady)


# --- bad input --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cls", "fields", "fault"),
    [
        (LogNormal, {"sigma": -1}, "must be greater than or equal to 0"),
        (ShiftedExponential, {"scale": -0.1}, "must be greater than or equal to 0"),
        (Pareto, {"alpha": 1.0}, "must be greater than 1"),
        (MarkovLoad, {"idle": 0, "busy": 1, "factor": 2}, "must be above 0 s"),
        (MarkovLoad, {"idle": 1, "busy": 1, "factor": 0.5}, "must be greater than or equal to 1"),
    ],
)
def test_impossible_slowdowns_are_refused(cls, fields, fault):
    """The reason says what is allowed."""
    with pytest.raises(ValidationError) as caught:
        plugin(cls, **fields)
    assert fault in reason(caught.value)


def test_impossible_draws_name_their_key():
    """A distribution that leaves its range says so when the fleet is built."""
    with pytest.raises(ConfigError, match=r"^fleet\.0\.slowdown\.factor: .* set `min`$"):
        markov_part = plugin(MarkovLoad, idle=1, busy=1, factor={"normal": [1.5, 3]})
        markov_part.build(50, KEY, "fleet.0.slowdown")
