"""Confidence intervals, paired differences, and statistics of censored numbers."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from scipy import stats

from edgesim.core.rng import Key, Purpose

CONFIDENCE = 0.95
ENOUGH_RUNS = 30  # from which on BCa intervals of means cover 93 % or more: docs/explanation/statistics.md
RESAMPLES = 9999  # as SciPy has it; the ends of an interval then lie within a few thousandths of its width

Statistic: TypeAlias = Callable[..., np.ndarray]  # of samples, shape (..., n) each, over their last axis


class Interval(NamedTuple):
    """The ends of a confidence interval, in the unit of the numbers; NaN: there is none."""

    low: float
    high: float


NONE = Interval(math.nan, math.nan)


def mean_of(sample: np.ndarray, axis: int = -1) -> np.ndarray:
    """Return the mean over the last axis."""
    return np.asarray(np.mean(sample, axis=axis))


def bootstrap_interval(samples: Sequence[np.ndarray], statistic: Statistic = mean_of) -> Interval:
    """Return the 95 % BCa interval of a statistic of samples, shape (n,) each, whose places are drawn together.

    Of one place there is none; where all places are alike it is the statistic itself. It is none also where the
    statistic has no value in some resample. Few places cover less than 95 %: docs/explanation/statistics.md says how
    much less. Source: Efron, "Better bootstrap confidence intervals" (JASA 82(397), 1987), as scipy.stats.bootstrap.
    """
    places = np.array(samples, dtype=float)
    if places.shape[1] < 2:
        return NONE
    if (places == places[:, :1]).all():
        value = float(statistic(*places[:, :1]))
        return Interval(value, value)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore", stats.DegenerateDataWarning)  # the interval is NaN then
        found = stats.bootstrap(
            tuple(places), statistic, n_resamples=RESAMPLES, paired=len(places) > 1, vectorized=True,
            confidence_level=CONFIDENCE, method="BCa", rng=Key(0, (Purpose.BOOTSTRAP,)).numpy(),
        )  # fmt: skip
    drawn = found.bootstrap_distribution
    if np.isfinite(drawn).all() and np.ptp(drawn) <= 1e-12 * np.abs(drawn).max():  # one value but for rounding
        value = float(statistic(*places))
        return Interval(value, value)
    low, high = map(float, found.confidence_interval)
    return Interval(low, high) if math.isfinite(low) and math.isfinite(high) else NONE


def student_interval(sample: np.ndarray) -> Interval:
    """Return the 95 % interval of a mean by Student's t, shape (n,): right for normal numbers however few; none of one.

    Source: Student, "The probable error of a mean" (Biometrika 6(1), 1908).
    """
    if len(sample) < 2:
        return NONE
    error = float(stats.sem(sample))
    if error == 0:
        return Interval(float(sample[0]), float(sample[0]))
    low, high = stats.t.interval(CONFIDENCE, len(sample) - 1, loc=float(np.mean(sample)), scale=error)
    return Interval(float(low), float(high))


def share_interval(count: int, of: int) -> Interval:
    """Return the exact 95 % interval of the share that `count` of `of` runs stand for; none of no run.

    Source: Clopper and Pearson, "The use of confidence or fiducial limits" (Biometrika 26(4), 1934).
    """
    if not of:
        return NONE
    found = stats.binomtest(count, of).proportion_ci(CONFIDENCE, method="exact")
    return Interval(float(found.low), float(found.high))


def share_at_least(count: int, of: int, confidence: float) -> float:
    """Return the share that is reached with this confidence, one-sided and exact, if `count` of `of` runs did.

    It is 0 of no run.
    Source: as `share_interval`.
    """
    if not of:
        return 0.0
    found = stats.binomtest(count, of, alternative="greater").proportion_ci(confidence, method="exact")
    return float(found.low)


class Readings(NamedTuple):
    """Numbers of one configuration by pair, shape (n,), and whether they are numbers or what bounds them from below."""

    values: np.ndarray
    observed: np.ndarray


class Comparison(NamedTuple):
    """One configuration against another, the baseline; NaN: there is no such number.

    difference, ratio: of the means up to restricted_to (NaN: nothing was cut off), the one less the baseline and over
    it, with 95 % BCa intervals over pairs; t_low, t_high: of the difference by Student's t. p_better: share of pairs
    that it wins, a tie is half a pair. p_value: of Wilcoxon's two-sided signed-rank test that neither tends to win.
    """

    wins: int
    losses: int
    ties: int
    unsure: int
    difference: float
    low: float
    high: float
    t_low: float
    t_high: float
    ratio: float
    ratio_low: float
    ratio_high: float
    restricted_to: float
    p_better: float
    p_value: float


def compare(one: Readings, baseline: Readings, higher_is_better: bool = False, bound: float = math.inf) -> Comparison:
    """Return how one configuration does against another over pairs of runs, none of whose values is NaN.

    `bound`: where values are cut at the latest; see `least_bound`.
    """
    gains = _gains(one, baseline) * (1 if higher_is_better else -1)
    wins, losses, pairs = int((gains > 0).sum()), int((gains < 0).sum()), len(gains)
    ties = pairs - wins - losses
    if not pairs:
        nothing = (math.nan,) * 11
        return Comparison(0, 0, 0, 0, *nothing)
    values = np.concatenate([one.values, baseline.values])
    bound = min(bound, least_bound(values, np.concatenate([one.observed, baseline.observed])))
    cut = np.minimum(one.values, bound), np.minimum(baseline.values, bound)
    difference, student = bootstrap_interval([cut[0] - cut[1]]), student_interval(cut[0] - cut[1])
    ratio = bootstrap_interval(cut, ratio_of_means)
    with np.errstate(all="ignore"):
        means = float(np.mean(cut[0] - cut[1])), float(ratio_of_means(*cut))
    return Comparison(
        *(wins, losses, ties, _unsure(one, baseline)),
        *(means[0], *difference, *student, means[1] if math.isfinite(means[1]) else math.nan, *ratio, told(bound)),
        *((wins + ties / 2) / pairs, signed_rank(gains)),
    )


def ratio_of_means(one: np.ndarray, other: np.ndarray, axis: int = -1) -> np.ndarray:
    """Return the mean of one sample over that of the other, over the last axis."""
    with np.errstate(divide="ignore", invalid="ignore"):  # over 0 there is no ratio
        return np.asarray(np.mean(one, axis=axis) / np.mean(other, axis=axis))


def signed_rank(differences: np.ndarray) -> float:
    """Return the two-sided p-value of Wilcoxon's signed-rank test, shape (n,); infinite ones have the highest ranks.

    Differences of 0 are left out, as Wilcoxon does; if nothing is left it is 1. See `least_p`.
    """
    kept = differences[differences != 0]
    if not len(kept):
        return 1.0
    ranks = np.sign(kept) * stats.rankdata(np.abs(kept))  # finite, with the same signs and ranks
    return float(stats.wilcoxon(ranks).pvalue)


def least_p(pairs: int) -> float:
    """Return the p-value that `signed_rank` cannot go below with so many pairs."""
    return min(1.0, 2.0 * 0.5**pairs)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values corrected for being many, so that all hold at once; NaN is no test.

    Source: Holm, "A simple sequentially rejective multiple test procedure" (Scandinavian Journal of Statistics 6(2),
    1979): the i-th smallest of m, from 0, times m - i, at least as large as those before it, at most 1. SciPy has none.
    """
    given = np.array(p_values, dtype=float)
    order = [place for place in np.argsort(given, kind="stable") if not math.isnan(given[place])]
    found = np.full(len(given), math.nan)
    if order:
        found[order] = np.minimum(np.maximum.accumulate(given[order] * np.arange(len(order), 0, -1)), 1.0)
    return [float(value) for value in found]


def _gains(one: Readings, baseline: Readings) -> np.ndarray:
    """Return value less value, infinite if only one arrived, 0 if neither did."""
    mine, theirs = (np.where(each.observed, each.values, math.inf) for each in (one, baseline))
    with np.errstate(invalid="ignore"):
        return np.where(one.observed | baseline.observed, mine - theirs, 0.0)


def _unsure(one: Readings, baseline: Readings) -> int:
    """Return how many pairs have an arrival that came after the other's end."""
    after = one.observed & ~baseline.observed & (one.values > baseline.values)
    before = ~one.observed & baseline.observed & (baseline.values > one.values)
    return int((after | before).sum())


class Median(NamedTuple):
    """What half of all runs need at most, with its 95 % interval; inf: more than any run has spent.

    low is NaN if none arrived: then nothing says how far away the median may be.
    """

    value: float
    low: float
    high: float


def median(values: np.ndarray, observed: np.ndarray) -> Median:
    """Return the Kaplan-Meier median of what runs needed, shape (n,), or had spent without arriving.

    It is the least number that at most half of all runs exceed, its interval all numbers that are a median by the 95 %
    band (log-minus-log) of the share that exceeds them. Where that band is not defined, as after the last arrival, the
    interval has no end.
    Source: Kaplan and Meier, "Nonparametric estimation from incomplete observations" (JASA 53(282), 1958); Brookmeyer
    and Crowley, "A confidence interval for the median survival time" (Biometrics 38(1), 1982); as scipy.stats.ecdf.
    """
    if not observed.any():  # the band starts at the first arrival
        return Median(math.inf, math.nan, math.inf)
    exceeding = stats.ecdf(stats.CensoredData.right_censored(values, ~observed)).sf
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # where it is not defined
        band = exceeding.confidence_interval(CONFIDENCE, method="log-log")
    # the band is not defined where all exceed a number, or none does
    inside = (exceeding.probabilities > 0) & (exceeding.probabilities < 1)
    lower = np.where(inside, band.low.probabilities, exceeding.probabilities)
    upper = np.where(inside, band.high.probabilities, 1.0)
    shares = (exceeding.probabilities, lower, upper)
    return Median(*(_first(exceeding.quantiles, share) for share in shares))


def _first(places: np.ndarray, shares: np.ndarray) -> float:
    """Return the first place at which at most half exceed it, inf if there is none; rounding does not count."""
    reached = places[shares <= 0.5 + 1e-12]
    return float(reached[0]) if len(reached) else math.inf


def least_bound(values: np.ndarray, observed: np.ndarray) -> float:
    """Return up to what all runs, shape (n,), are known: the least spent without arriving; inf if all arrived."""
    bounds = values[~observed & ~np.isnan(values)]
    return float(bounds.min()) if len(bounds) else math.inf


class RestrictedMean(NamedTuple):
    """The mean of what runs had spent on arrival or, if they had not arrived by then, at `bound`; 95 % interval."""

    value: float
    low: float
    high: float
    bound: float  # NaN: nothing was cut off, it is the mean


def restricted_mean(values: np.ndarray, bound: float) -> RestrictedMean:
    """Return the mean of values, shape (n,), each at most `bound`, up to which all have to be known; see `least_bound`.

    Nothing is censored before the bound, so it is the area under the Kaplan-Meier curve up to there. Where none arrived
    before it nothing is known of how they scatter, and there is no interval.
    Source: Royston and Parmar, "Restricted mean survival time" (BMC Medical Research Methodology 13:152, 2013).
    """
    cut = np.minimum(values, bound)
    interval = bootstrap_interval([cut]) if (cut < bound).any() else NONE
    return RestrictedMean(float(np.mean(cut)), *interval, told(bound))


def told(bound: float) -> float:
    """Return a bound as tables have it: NaN if nothing was cut off."""
    return math.nan if math.isinf(bound) else bound
