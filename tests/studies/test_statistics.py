"""Intervals, censored targets and paired comparisons: against numbers by hand, printed ones, and by simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from edgesim.studies.statistics import (
    MedianEstimate,
    Readings,
    bootstrap_interval,
    compare,
    holm,
    least_bound,
    least_p,
    median,
    ratio_of_means,
    restricted_mean,
    share_at_least,
    share_interval,
    signed_rank,
    student_interval,
)
from tests.sizes import full, sized, spread, thinned
from tests.studies.coverage import CASES, HONEST, SIZES, Case, covered

NAN, INF = math.nan, math.inf
SAMPLE = np.array([12.0, 15.0, 11.0, 19.0, 34.0, 13.0, 14.0, 22.0])


# --- intervals --------------------------------------------------------------------------------------------------


def test_the_bca_interval_by_hand() -> None:
    """Efron's formula in a few lines, on resamples of our own: bias from the median, skew from the jackknife."""
    n = len(SAMPLE)
    drawn = np.sort(np.random.default_rng(7).choice(SAMPLE, (200_000, n)).mean(axis=1))
    bias = stats.norm.ppf((drawn < SAMPLE.mean()).mean() + (drawn == SAMPLE.mean()).mean() / 2)
    left_out = (SAMPLE.sum() - SAMPLE) / (n - 1)
    away = left_out.mean() - left_out
    acceleration = (away**3).sum() / (6 * (away**2).sum() ** 1.5)
    assert acceleration > 0.05  # the sample is skewed, so that this is not the interval of percentiles
    ends = []
    for z in stats.norm.ppf([0.025, 0.975]):
        at = stats.norm.cdf(bias + (bias + z) / (1 - acceleration * (bias + z)))
        ends.append(np.quantile(drawn, at))
    few = 0.3  # what 9,999 resamples may be off by
    assert bootstrap_interval([SAMPLE]) == pytest.approx(tuple(ends), abs=few)
    assert bootstrap_interval([SAMPLE]) != pytest.approx(tuple(np.quantile(drawn, [0.025, 0.975])), abs=few)


def test_the_same_runs_give_the_same_interval() -> None:
    assert bootstrap_interval([SAMPLE]) == bootstrap_interval([SAMPLE.copy()])
    assert bootstrap_interval([SAMPLE, SAMPLE[::-1]], ratio_of_means) == bootstrap_interval(
        [SAMPLE, SAMPLE[::-1]], ratio_of_means
    )


def test_too_little_for_an_interval() -> None:
    """One run has none; runs that are all alike are certain, as far as runs can tell."""
    for interval in (bootstrap_interval([SAMPLE[:1]]), student_interval(SAMPLE[:1]), share_interval(0, 0)):
        assert interval == pytest.approx((NAN, NAN), nan_ok=True)
    alike = np.full(5, 0.1)
    assert bootstrap_interval([alike]) == student_interval(alike) == (0.1, 0.1)
    assert bootstrap_interval([alike, 2 * alike], ratio_of_means) == (0.5, 0.5)


def test_a_ratio_that_is_the_same_in_every_pair() -> None:
    assert bootstrap_interval([SAMPLE, 4 * SAMPLE], ratio_of_means) == pytest.approx((0.25, 0.25))


def test_the_interval_of_students_t() -> None:
    """1, 2, 6: mean 3, sample variance (4 + 1 + 9) / 2 = 7; Student's t for 2 degrees, 97.5 %, is 4.30265."""
    half = 4.30265 * 7**0.5 / 3**0.5
    assert student_interval(np.array([1.0, 2.0, 6.0])) == pytest.approx((3 - half, 3 + half), rel=1e-5)


def test_exact_intervals_of_shares() -> None:
    """All of n: the lower end is the share whose n-th power is the chance of error; none of n: the other way round."""
    assert share_interval(5, 5) == pytest.approx((0.025 ** (1 / 5), 1))
    assert share_interval(0, 3) == pytest.approx((0, 1 - 0.025 ** (1 / 3)))
    assert share_at_least(5, 5, 0.95) == pytest.approx(0.05 ** (1 / 5))
    assert share_at_least(0, 5, 0.95) == share_at_least(0, 0, 0.95) == 0


# --- targets that some runs missed ------------------------------------------------------------------------------

# Weeks of remission of 42 children with leukaemia, printed in Freireich et al. (Blood 21, 1963) and in most textbooks
# since. With 6-mercaptopurine 12 of 21 were still in remission when they were last seen (+); with a placebo none was.
MERCAPTOPURINE = "6 6 6 6+ 7 9+ 10 10+ 11+ 13 16 17+ 19+ 20+ 22 23 25+ 32+ 32+ 34+ 35+"
PLACEBO = "1 1 2 2 3 4 4 5 5 8 8 8 8 11 11 12 12 15 17 22 23"


def readings(text: str) -> Readings:
    """Return numbers of a text, of which those with a + were not reached, and inf never would have been."""
    words = text.split()
    return Readings(
        np.array([float(word.rstrip("+")) for word in words]), np.array([word[-1] not in "+f" for word in words])
    )


@pytest.mark.parametrize(("text", "printed"), [(MERCAPTOPURINE, (23, 13, INF)), (PLACEBO, (8, 4, 11))])
def test_printed_medians(text: str, printed: tuple[float, ...]) -> None:
    """Medians and 95 % intervals (log-minus-log) that packages print for these data."""
    assert median(*readings(text)) == printed


def test_a_median_by_hand() -> None:
    """1, 2+, 3, 4+: 3/4 exceed 1, 3/4 x 1/2 = 3/8 exceed 3. Of 1, 2+, 3+ 2/3 exceed all, so the median is beyond."""
    assert median(*readings("1 2+ 3 4+")).value == 3
    assert median(*readings("3+ 1 2+"))[::2] == (INF, INF)
    assert median(*readings("1 2 3+ 3+")).value == 2  # half of them do not exceed it
    assert median(*readings("9+ 7+")) == pytest.approx(MedianEstimate(INF, NAN, INF), nan_ok=True)


def test_runs_that_never_arrive_are_short_for_ever() -> None:
    """3 of 5 arrive at 1, 2 and 3, so half of them at 3, whenever the others ended. Of 2 of 5 there is no median."""
    assert median(*readings("1 2 3 inf inf")) == median(*readings("1 2 3 9+ 9+"))
    assert median(*readings("1 inf 3 inf inf")).value == INF
    assert median(*readings("inf inf")) == pytest.approx(MedianEstimate(INF, NAN, INF), nan_ok=True)
    # with another one, of which is known only that it needs more than 2: 4/5, then 4/5 x 2/3, then 4/5 x 1/3
    assert median(*readings("1 2+ 3 4 inf")).value == 4
    assert least_bound(*readings("1 2+ 3 4 inf")) == 2
    # without such a one all is known, and each that never arrives counts as the last that did
    assert least_bound(*readings("1 3 4 inf")) == 4
    assert restricted_mean(readings("1 3 4 inf").values, 4).value == 3
    assert least_bound(*readings("inf inf")) == INF


def test_few_runs_have_no_upper_end() -> None:
    """Of three runs the largest lies below the median in one case of eight: no number bounds it with 95 %."""
    assert median(*readings("1 2 3")) == (2, 1, INF)


def test_a_restricted_mean_is_the_area_below_the_curve() -> None:
    """4, 10, 7+, 20+: known up to 7, where means are (4 + 7 + 7 + 7) / 4; the curve is 1 to 4, then 3/4 to 7."""
    values, observed = readings("4 10 7+ 20+")
    bound = least_bound(values, observed)
    found = restricted_mean(values, bound)
    assert (bound, found.value) == (7, (4 + 7 + 7 + 7) / 4)
    assert found.value == 4 * 1 + 3 * 0.75
    curve = stats.ecdf(stats.CensoredData.right_censored(values, ~observed)).sf
    grid = np.linspace(0, 7, 70_001)[:-1]
    assert found.value == pytest.approx(curve.evaluate(grid).mean() * 7, abs=1e-3)
    assert (found.low, found.high) == bootstrap_interval([np.array([4.0, 7.0, 7.0, 7.0])])


def test_a_restricted_mean_of_runs_that_all_arrived_is_their_mean() -> None:
    values, observed = readings("1 2 6")
    assert least_bound(values, observed) == INF
    assert restricted_mean(values, INF).value == 3


# --- pairs ------------------------------------------------------------------------------------------------------

# Darwin's maize, as in Fisher's "The Design of Experiments": crossed less self-fertilised plants, in 1/8 inch.
MAIZE = np.array([49, -67, 8, 16, 6, 23, 28, 41, 14, 29, 56, 24, 75, 60, -48], dtype=float)


def test_the_printed_test_of_darwins_maize() -> None:
    """The negative ranks, 14 and 10, sum to 24; the exact two-sided p-value is 0.0413."""
    assert signed_rank(MAIZE) == pytest.approx(0.0413, abs=5e-5)


def test_signs_and_ranks_by_hand() -> None:
    """Of the 2^n patterns of signs, two are as extreme as n equal ones: 1/16 of five."""
    assert signed_rank(np.array([1.0, 2, 3, 4, 5])) == pytest.approx(1 / 16) == least_p(5)
    assert signed_rank(np.array([0.0, 0])) == 1
    # the largest rank is negative: 1 + 2 + 3 + 4 - 5, and the sum of negative ranks is 5 or less in 10 of 32 patterns
    assert signed_rank(np.array([1.0, 2, 3, 4, -INF])) == pytest.approx(2 * 10 / 32)


def test_holms_correction() -> None:
    """As `p.adjust` of R prints it for these four; what is no test does not count."""
    assert holm([0.01, 0.04, NAN, 0.03, 0.005]) == pytest.approx([0.03, 0.06, NAN, 0.06, 0.02], nan_ok=True)
    assert holm([0.9, 0.8]) == [1, 1]
    assert holm([]) == []


def test_a_comparison_by_hand() -> None:
    """Differences -1, -2, 1, 0: two wins, a loss, a tie, so better in 2.5 of 4; means 4 and 4.5."""
    one, other = (
        Readings(np.array([1.0, 2, 6, 7]), np.ones(4, bool)),
        Readings(np.array([2.0, 4, 5, 7]), np.ones(4, bool)),
    )
    found = compare(one, other)
    assert (found.wins, found.losses, found.ties, found.unsure) == (2, 1, 1, 0)
    assert (found.difference, found.ratio, found.p_better) == (-0.5, 4 / 4.5, 0.625)
    assert math.isnan(found.restricted_to)  # all arrived, and nothing was cut
    assert (found.low, found.high) == bootstrap_interval([one.values - other.values])
    half = (
        3.18245 * (5 / 3 / 4) ** 0.5
    )  # Student's t for 3 degrees, 97.5 %; sample variance (0.25 + 2.25 + 2.25 + 0.25) / 3
    assert (found.t_low, found.t_high) == pytest.approx((-0.5 - half, -0.5 + half), rel=1e-5)
    assert found.low < -0.5 < found.high and found.ratio_low < 4 / 4.5 < found.ratio_high
    higher = compare(one, other, higher_is_better=True)
    assert (higher.wins, higher.p_better, higher.difference, higher.p_value) == (1, 0.375, -0.5, found.p_value)


def test_pairs_of_which_some_never_arrived() -> None:
    """Who arrived wins over who did not, neither is a tie; all is cut at 10, the least spent without arriving.

    Pairs: 5 beats 9; 8 beats what stopped at 10; 12 beats what stopped at 11, which might have been earlier; what
    stopped at 20 and at 30 is a tie; what stopped at 15 loses against 14. Up to 10 the sums are 43 and 49.
    """
    found = compare(readings("5 8 12 20+ 15+"), readings("9 10+ 11+ 30+ 14"))
    assert (found.wins, found.losses, found.ties, found.unsure) == (3, 1, 1, 1)
    assert found.p_better == 3.5 / 5
    assert (found.restricted_to, found.difference) == (10, pytest.approx((-4 - 2) / 5))
    assert found.ratio == pytest.approx(43 / 49)
    # ranks: 4 is the least, the three that only one side reached share 3: 1 + 3 + 3 - 3. Of the 16 sums of 1, 3, 3
    # and 3 five are 7 or more, and five 3 or less.
    assert found.p_value == pytest.approx(10 / 16)


def test_runs_that_never_arrive_lose_for_sure() -> None:
    """Three that end at 5 s are no bound for those that take 20: if they would never arrive, nothing is unsure."""
    late, stopped, never = readings("20 21 22"), readings("5+ 5+ 5+"), readings("inf inf inf")
    found = compare(late, stopped)
    assert (found.wins, found.unsure, found.difference, found.restricted_to) == (3, 3, 0, 5)
    found = compare(late, never)
    assert (found.wins, found.unsure, found.difference, found.restricted_to) == (3, 0, -1, 22)
    assert compare(never, late).losses == 3
    found = compare(never, never)
    assert (found.ties, found.p_better, found.p_value) == (3, 0.5, 1) and math.isnan(found.difference)


def test_no_pairs() -> None:
    nothing = Readings(np.array([]), np.array([], dtype=bool))
    found = compare(nothing, nothing)
    assert (found.wins, found.ties) == (0, 0)
    assert math.isnan(found.p_better) and math.isnan(found.p_value)


# --- coverage ---------------------------------------------------------------------------------------------------

IDS = [f"{case.what}, {case.of}" for case in CASES]
# A share jumps from one count to the next, so that an exact interval covers more than it says.
INEXACT = [case for case in CASES if not case.what.endswith("exact")]


@pytest.mark.parametrize("case", spread(CASES, 1), ids=IDS)
def test_intervals_cover_about_what_they_say(case: Case) -> None:
    """A few hundred repetitions tell an interval of 90 % from one of 95: four standard errors are 4 %."""
    found = covered(case, 30, repetitions=500)
    assert 0.91 < found < (0.99 if case in INEXACT else 1)


def test_an_interval_that_is_too_narrow_is_noticed() -> None:
    """The same count finds out an interval of two thirds of the width."""
    [case] = [case for case in CASES if case.what == "mean, Student's t"]

    def narrow(generator: np.random.Generator, n: int) -> tuple[float, float]:
        low, high = case.draw(generator, n)
        middle, half = (low + high) / 2, (high - low) / 3
        return middle - half, middle + half

    assert covered(case._replace(draw=narrow), 30, repetitions=500) < 0.88


@full
@pytest.mark.parametrize("case", thinned(CASES, CASES[:1], CASES[::4]), ids=IDS)
def test_intervals_cover_95_percent(case: Case) -> None:
    """93 to 97 % in 2,000 repetitions, from the number of runs on from which the page says so."""
    for runs in (runs for runs in SIZES if runs >= case.honest_from):
        found = covered(case, runs, repetitions=sized(500, 2000, 10_000))
        assert HONEST[0] <= found <= (HONEST[1] if case in INEXACT else 1), runs


@full
def test_bca_intervals_of_few_runs_cover_less() -> None:
    """What the page and the note below the table warn of."""
    [case] = [case for case in CASES if (case.what, case.of) == ("mean, BCa", "normal")]
    assert covered(case, 3) < 0.85 and covered(case, 5) < 0.91
