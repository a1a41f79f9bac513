"""Confidence intervals, paired differences, and statistics of censored numbers."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from scipy import stats

from edgesim.core.rng import Key, Purpose

CONFIDENCE = 0.95
ENOUGH_RUNS = 30  # with so many runs BCa intervals of means cover 93 % or more: docs/explanation/statistics.md
RESAMPLES = 9999  # default of SciPy. The ends of an interval then vary by a few thousandths of its width

Statistic: TypeAlias = Callable[..., np.ndarray]  # function of samples, shape (..., n) each, over their last axis


class Interval(NamedTuple):
    """Ends of a confidence interval, in the unit of the numbers; NaN if there is no interval."""

    low: float
    high: float


NONE = Interval(math.nan, math.nan)


def mean_of(sample: np.ndarray, axis: int = -1) -> np.ndarray:
    """Return the mean over the last axis."""
    return np.asarray(np.mean(sample, axis=axis))


def bootstrap_interval(samples: Sequence[np.ndarray], statistic: Statistic = mean_of) -> Interval:
    """Return the 95 % BCa interval of a statistic of samples, shape (n,) each, whose places are resampled together.

    With one place there is no interval. If all places are equal, both ends are the statistic itself. There is no
    interval either if the statistic has no value in some resample. With few places the interval covers less than 95 %:
    docs/explanation/statistics.md says how much.
    Source: Efron, "Better bootstrap confidence intervals" (JASA 82(397), 1987), as scipy.stats.bootstrap.
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
    """Return the 95 % interval of a mean by Student's t, shape (n,). Exact for normal numbers. One number has none.

    Source: Student, "The probable error of a mean" (Biometrika 6(1), 1908).
    """
    if len(sample) < 2:
        return NONE
    error = float(stats.sem(sample))
    if error == 0:
        return Interval(float(sample[0]), float(sample[0]))
    low, high = stats.t.interval(CONFIDENCE, len(sample) - 1, loc=float(np.mean(sample)), scale=error)
    return Interval(float(low), float(high))


def told_interval(row: Mapping[Any, Any], runs: int) -> Interval:
    """Return the 95 % interval to report of a row with low, high (BCa), t_low and t_high (Student's t).

    With fewer than ENOUGH_RUNS runs or pairs it is Student's, because the bootstrap interval is then too short.
    """
    ends = ("t_low", "t_high") if runs < ENOUGH_RUNS else ("low", "high")
    return Interval(*(float(row[end]) for end in ends))


def share_interval(count: int, of: int) -> Interval:
    """Return the exact 95 % interval of a share, estimated by `count` of `of` runs. Without a run there is no interval.

    Source: Clopper and Pearson, "The use of confidence or fiducial limits" (Biometrika 26(4), 1934).
    """
    if not of:
        return NONE
    found = stats.binomtest(count, of).proportion_ci(CONFIDENCE, method="exact")
    return Interval(float(found.low), float(found.high))


def share_at_least(count: int, of: int, confidence: float) -> float:
    """Return the exact one-sided lower bound of a share with this confidence, if `count` of `of` runs succeeded.

    Without a run it is 0.
    Source: as `share_interval`.
    """
    if not of:
        return 0.0
    found = stats.binomtest(count, of, alternative="greater").proportion_ci(confidence, method="exact")
    return float(found.low)


class Readings(NamedTuple):
    """Values of one configuration by pair, shape (n,).

    If `observed` is False, the value is a lower bound, or inf for a run that would never reach the target.
    """

    values: np.ndarray
    observed: np.ndarray


class Comparison(NamedTuple):
    """Comparison of a configuration with a baseline; NaN: there is no such number.

    unsure: number of pairs in which one side reached the target after the other side's run had ended without it.
    difference, ratio: the mean minus the mean of the baseline, and the mean divided by it, with 95 % BCa intervals over
    pairs. Values are cut at restricted_to (NaN: nothing was cut). t_low, t_high: the interval of the difference by
    Student's t. p_better: share of pairs that the configuration wins, where a tie counts as half a pair. p_value:
    Wilcoxon's two-sided signed-rank test of the hypothesis that neither side tends to win.
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
    """Compare a configuration with a baseline over pairs of runs, none of whose values is NaN.

    `bound`: the largest value at which values are cut; see `least_bound`.
    """
    # infinite if only one side reached the target, 0 if neither did
    mine, theirs = (np.where(each.observed, each.values, math.inf) for each in (one, baseline))
    with np.errstate(invalid="ignore"):
        gains = np.where(one.observed | baseline.observed, mine - theirs, 0.0) * (1 if higher_is_better else -1)
    wins, losses, pairs = int((gains > 0).sum()), int((gains < 0).sum()), len(gains)
    ties = pairs - wins - losses
    values = np.concatenate([one.values, baseline.values])
    bound = min(bound, least_bound(values, np.concatenate([one.observed, baseline.observed])))
    if not pairs:
        return Comparison(0, 0, 0, 0, *(math.nan,) * 11)
    if math.isinf(min(bound, values.max())):  # no run of either side would ever reach the target
        return Comparison(0, 0, pairs, 0, *(math.nan,) * 9, p_better=0.5, p_value=1.0)
    cut = np.minimum(one.values, bound), np.minimum(baseline.values, bound)
    difference, student = bootstrap_interval([cut[0] - cut[1]]), student_interval(cut[0] - cut[1])
    ratio = bootstrap_interval(cut, ratio_of_means)
    with np.errstate(all="ignore"):
        means = float(np.mean(cut[0] - cut[1])), float(ratio_of_means(*cut))
    after = one.observed & ~baseline.observed & (one.values > baseline.values)
    before = ~one.observed & baseline.observed & (baseline.values > one.values)
    return Comparison(
        *(wins, losses, ties, int((after | before).sum())),
        *(means[0], *difference, *student, means[1] if math.isfinite(means[1]) else math.nan, *ratio, told(bound)),
        *((wins + ties / 2) / pairs, signed_rank(gains)),
    )


def ratio_of_means(one: np.ndarray, other: np.ndarray, axis: int = -1) -> np.ndarray:
    """Return the ratio of the means of two samples over the last axis."""
    with np.errstate(divide="ignore", invalid="ignore"):  # division by 0 gives no ratio
        return np.asarray(np.mean(one, axis=axis) / np.mean(other, axis=axis))


def signed_rank(differences: np.ndarray) -> float:
    """Return the two-sided p-value of Wilcoxon's signed-rank test of differences, shape (n,).

    Infinite differences have the highest ranks. Differences of 0 are left out, as in Wilcoxon's paper. If no difference
    is left, the p-value is 1. See `least_p`.
    """
    kept = differences[differences != 0]
    if not len(kept):
        return 1.0
    ranks = np.sign(kept) * stats.rankdata(np.abs(kept))  # finite, with the same signs and ranks
    return float(stats.wilcoxon(ranks).pvalue)


def least_p(pairs: int) -> float:
    """Return the smallest p-value that `signed_rank` can give with this number of pairs."""
    return min(1.0, 2.0 * 0.5**pairs)


def pairs_needed(tests: int, alpha: float = 1 - CONFIDENCE) -> int:
    """Return the smallest number of pairs with which `signed_rank` can fall below `alpha` after `holm` over `tests`."""
    pairs = 1
    while tests * least_p(pairs) >= alpha:
        pairs += 1
    return pairs


def holm(p_values: Sequence[float]) -> list[float]:
    """Return Holm-corrected p-values; NaN stands for no test.

    Source: Holm, "A simple sequentially rejective multiple test procedure" (Scandinavian Journal of Statistics 6(2),
    1979): the i-th smallest of m p-values, i from 0, is multiplied by m - i, raised to the largest value before it, and
    limited to 1. SciPy has no such function.
    """
    given = np.array(p_values, dtype=float)
    order = [place for place in np.argsort(given, kind="stable") if not math.isnan(given[place])]
    found = np.full(len(given), math.nan)
    if order:
        found[order] = np.minimum(np.maximum.accumulate(given[order] * np.arange(len(order), 0, -1)), 1.0)
    return [float(value) for value in found]


class MedianEstimate(NamedTuple):
    """Estimate of a median with its 95 % interval; inf: more than any run has spent, or never.

    low is NaN if no run reached the target, because then nothing bounds the median from below.
    """

    value: float
    low: float
    high: float


def median(values: np.ndarray, observed: np.ndarray) -> MedianEstimate:
    """Return the Kaplan-Meier median of the amounts that runs needed to reach a target, shape (n,).

    If `observed` is False, the value is censored: the run had spent it without reaching the target. It is inf for a run
    that would never reach it. The median is the least number that at most half of all runs exceed. Its interval has all
    numbers that are a median by the 95 % band (log-minus-log) of the share of runs that exceed them. Where the band is
    not defined, for example after the last observed value, the interval has no end.
    Source: Kaplan and Meier, "Nonparametric estimation from incomplete observations" (JASA 53(282), 1958); Brookmeyer
    and Crowley, "A confidence interval for the median survival time" (Biometrics 38(1), 1982); as scipy.stats.ecdf.
    """
    if not observed.any():  # the band starts at the first observed value
        return MedianEstimate(math.inf, math.nan, math.inf)
    until_last = np.minimum(values, values[observed].max())  # a run that never arrives outlasts all that do
    exceeding = stats.ecdf(stats.CensoredData.right_censored(until_last, ~observed)).sf
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # where the band is not defined
        band = exceeding.confidence_interval(CONFIDENCE, method="log-log")
    # the band is not defined where the share is 0 or 1
    inside = (exceeding.probabilities > 0) & (exceeding.probabilities < 1)
    lower = np.where(inside, band.low.probabilities, exceeding.probabilities)
    upper = np.where(inside, band.high.probabilities, 1.0)
    shares = (exceeding.probabilities, lower, upper)
    at_most_half = [exceeding.quantiles[share <= 0.5 + 1e-12] for share in shares]  # 1e-12: rounding
    return MedianEstimate(*(float(places[0]) if len(places) else math.inf for places in at_most_half))


def least_bound(values: np.ndarray, observed: np.ndarray) -> float:
    """Return the number up to which all values of runs are known, shape (n,): the smallest censored one.

    If none is censored but some runs would never reach the target (inf), it is the largest value of the others. inf:
    all reached it, or none ever would.
    """
    censored, arrived = values[~observed & np.isfinite(values)], values[observed]
    if len(censored):
        return float(censored.min())
    return float(arrived.max()) if np.isinf(values).any() and len(arrived) else math.inf


class RestrictedMean(NamedTuple):
    """Mean of the amounts spent until a target, where larger amounts count as `bound`, with its 95 % interval."""

    value: float
    low: float
    high: float
    bound: float  # NaN: nothing was cut, so it is the ordinary mean


def restricted_mean(values: np.ndarray, bound: float) -> RestrictedMean:
    """Return the mean of values, shape (n,), cut at `bound`. No value below the bound is censored: see `least_bound`.

    So the mean equals the area under the Kaplan-Meier curve up to the bound. If no value lies below the bound, their
    spread is unknown and there is no interval.
    Source: Royston and Parmar, "Restricted mean survival time" (BMC Medical Research Methodology 13:152, 2013).
    """
    cut = np.minimum(values, bound)
    interval = bootstrap_interval([cut]) if (cut < bound).any() else NONE
    return RestrictedMean(float(np.mean(cut)), *interval, told(bound))


def told(bound: float) -> float:
    """Return a bound for tables: NaN if nothing was cut."""
    return math.nan if math.isinf(bound) else bound
