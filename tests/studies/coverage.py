"""How often the intervals of a study's table hold what they are about: synthetic runs, of which the truth is known.

    python -m tests.studies.coverage [--repetitions N]    # the table of docs/explanation/statistics.md

Every repetition draws as many runs as a study might have, and asks whether the 95 % interval has the true value in it.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from edgesim.studies.statistics import (
    bootstrap_interval,
    least_bound,
    median,
    ratio_of_means,
    restricted_mean,
    share_interval,
    student_interval,
)

REPETITIONS = 2000
HONEST = (0.93, 0.97)
# the sample sizes from which on an interval is said to cover 93 to 97 %
SIZES = (3, 5, 10, 20, 30, 50, 100)

Draw = Callable[[np.random.Generator, int], tuple[float, float]]  # the interval of n runs


class Case(NamedTuple):
    """An interval, what the runs are drawn from, the truth, and from how many runs on the interval is honest."""

    what: str
    of: str
    truth: float
    draw: Draw
    honest_from: int


def covered(case: Case, runs: int, repetitions: int = REPETITIONS) -> float:
    """Return the share of repetitions in which the interval has the truth in it; no interval has not."""
    generator = np.random.default_rng([*f"{case.what}, {case.of}".encode(), runs])  # draws of its own
    intervals = (case.draw(generator, runs) for _ in range(repetitions))
    return sum(low <= case.truth <= high for low, high in intervals) / repetitions


# --- what is drawn ----------------------------------------------------------------------------------------------


def _normal(g: np.random.Generator, n: int) -> np.ndarray:
    return g.normal(100.0, 15.0, n)


def _log_normal(g: np.random.Generator, n: int) -> np.ndarray:
    return g.lognormal(math.log(100.0), 0.3, n)


def _weibull(g: np.random.Generator, n: int) -> np.ndarray:
    return 100.0 * g.weibull(2.0, n)


def _all_stop(g: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return times of which those above 125, a fifth, are not reached: all runs stop there."""
    times = _weibull(g, n)
    return np.minimum(times, 125.0), times <= 125.0


def _stop_anywhere(g: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return times of which a third is not reached: every run stops at a moment of its own."""
    times, ends = _weibull(g, n), g.uniform(60.0, 200.0, n)
    return np.minimum(times, ends), times <= ends


def _pairs(g: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return two configurations whose runs share most of their luck; the second takes a fifth more."""
    luck = g.normal(0.0, 0.25, n)
    return 100.0 * np.exp(luck + g.normal(0.0, 0.1, n)), 120.0 * np.exp(luck + g.normal(0.0, 0.1, n))


_SPREAD = math.exp((0.25**2 + 0.1**2) / 2)
_WEIBULL_MEDIAN = 100.0 * math.sqrt(math.log(2.0))


def _mean_up_to(bound: float) -> float:
    """Return the mean of min(T, bound) of the Weibull times: the area under exp(-(t / 100)^2), by error function."""
    return 100.0 * math.sqrt(math.pi) / 2 * math.erf(bound / 100.0)


def _bca(draw: Callable[[np.random.Generator, int], np.ndarray]) -> Draw:
    return lambda g, n: bootstrap_interval([draw(g, n)])


def _restricted(g: np.random.Generator, n: int) -> tuple[float, float]:
    values, observed = _all_stop(g, n)
    # where nobody was stopped the truth is another one; the bound is the end of all runs
    found = restricted_mean(values, min(125.0, least_bound(values, observed)))
    return found.low, found.high


def _difference(g: np.random.Generator, n: int) -> tuple[float, float]:
    one, other = _pairs(g, n)
    return bootstrap_interval([one - other])


def _ratio(g: np.random.Generator, n: int) -> tuple[float, float]:
    return bootstrap_interval(_pairs(g, n), ratio_of_means)


def _share(g: np.random.Generator, n: int) -> tuple[float, float]:
    return share_interval(int((g.random(n) < 0.7).sum()), n)


_KM = "Kaplan-Meier median"
_STOPPED = "Weibull 2, stopped at 125"
CASES = (
    Case("mean, Student's t", "normal", 100.0, lambda g, n: student_interval(_normal(g, n)), 3),
    Case("mean, BCa", "normal", 100.0, _bca(_normal), 50),
    Case("mean, BCa", "log-normal, sigma 0.3", 100.0 * math.exp(0.3**2 / 2), _bca(_log_normal), 50),
    Case("difference of pairs, BCa", "log-normal pairs", -20.0 * _SPREAD, _difference, 50),
    Case("ratio of pairs, BCa", "log-normal pairs", 1 / 1.2, _ratio, 50),
    Case("restricted mean, BCa", _STOPPED, _mean_up_to(125.0), _restricted, 50),
    Case(_KM, _STOPPED, _WEIBULL_MEDIAN, lambda g, n: median(*_all_stop(g, n))[1:], 30),
    Case(_KM, "Weibull 2, stopped anywhere", _WEIBULL_MEDIAN, lambda g, n: median(*_stop_anywhere(g, n))[1:], 30),
    Case("share, exact", "70 % arrive", 0.7, _share, 3),
)


def table(repetitions: int) -> Iterator[str]:
    """Yield the lines of a Markdown table: percent covered, by case and number of runs."""
    yield f"| interval | runs drawn from | {' | '.join(map(str, SIZES))} |"
    yield f"|---|---|{'---:|' * len(SIZES)}"
    for case in CASES:
        cells = (f"{100 * covered(case, runs, repetitions):.1f}" for runs in SIZES)
        yield f"| {case.what} | {case.of} | {' | '.join(cells)} |"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=REPETITIONS)
    for line in table(parser.parse_args().repetitions):
        print(line, flush=True)
