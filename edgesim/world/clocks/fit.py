"""Fits a device's seconds for one unit of each kind of work, and says how far such a fit can be trusted.

Amounts are an array of rows by kinds, seconds are measured, one a row. The fit is least squares of relative errors with
coefficients that are not negative. How far it can be trusted comes from rows whose group (a network, or a family of
networks) it did not see.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import combinations
from math import comb

import numpy as np
from scipy.optimize import nnls

from edgesim.core.arrays import Arr
from edgesim.core.work import LEVEL, interval_factor

Fitting = Callable[[Arr], Arr]  # rows that a fit may see -> coefficients

PULL = 0.1  # rows are predicted to a tenth, and boards differ by a third in their proportions: (0.1 / 0.33)^2
EVERY_SET = 5_000  # so many sets of rows are all tried by `most_informative`; of more it takes a greedy one


def seconds_per_unit(amounts: Arr, seconds: Arr, earlier: Arr | None = None, pull: float = PULL) -> Arr:
    """Coefficients in seconds for one unit of each kind.

    They make the sum of (predicted / measured - 1)^2 least, none below 0; a kind without amounts gets 0.

    With coefficients of an `earlier` fit, such as of another board, a few rows are enough. One factor scales all of
    them. Then each is free to leave its scaled value, at the price of `pull` x (coefficient / scaled value - 1)^2: at
    0.1 a coefficient that is a third too large costs as much as a row that is predicted 10 % too long. A kind that took
    no time before takes none.

    Raises ValueError if seconds are not positive, or if no row has work that took time before.
    """
    if not (np.isfinite(amounts).all() and np.isfinite(seconds).all() and (seconds > 0).all() and (amounts >= 0).all()):
        raise ValueError("amounts must be at least 0 and seconds above 0, and both finite")
    rows, target = amounts / seconds[:, None], np.ones(len(seconds))
    if earlier is not None:
        scaled = earlier * factor(amounts @ earlier, seconds)
        known = scaled > 0
        prior = np.diag(np.sqrt(pull) / np.where(known, scaled, 1.0))[known]
        rows = np.vstack([np.where(known, rows, 0.0), prior])
        target = np.concatenate([target, np.full(known.sum(), np.sqrt(pull))])
    sizes = np.linalg.norm(rows, axis=0)  # kinds differ by ten powers of ten: each column is brought to length 1
    sizes[sizes == 0] = np.inf
    return np.asarray(nnls(rows / sizes, target)[0] / sizes)


def factor(predicted: Arr, measured: Arr) -> float:
    """The number that brings predictions closest to measurements: least squares of relative errors."""
    ratio = predicted / measured
    if not ratio.any():
        raise ValueError("the measured steps have no work of a kind that took time in the earlier fit")
    return float(ratio.sum() / (ratio**2).sum())


def left_out(amounts: Arr, groups: Sequence[str], fitted: Fitting) -> Arr:
    """Predicted seconds of each row by a fit that saw no row of its group: `fitted(rows it may see)`."""
    names = np.asarray(groups)
    predicted = np.empty(len(amounts))
    for name in dict.fromkeys(groups):
        own = names == name
        predicted[own] = amounts[own] @ fitted(~own)
    return predicted


def chosen_kinds(amounts: Arr, seconds: Arr, count: int) -> list[int]:
    """Columns of `count` kinds, each the one that lowers the squared relative errors of the fit most (greedy).

    Call it inside of `left_out` to see what a choice of kinds costs that was made on the same data.
    """
    chosen: list[int] = []

    def loss(kind: int) -> float:
        columns = amounts[:, [*chosen, kind]]
        return float(((columns @ seconds_per_unit(columns, seconds) / seconds - 1) ** 2).sum())

    for _ in range(min(count, amounts.shape[1])):
        chosen.append(min((kind for kind in range(amounts.shape[1]) if kind not in chosen), key=loss))
    return chosen


def spread(measured: Arr, predicted: Arr) -> float:
    """Standard deviation of ln(measured / predicted), around 0, as an interval lies around what is predicted."""
    with np.errstate(divide="ignore"):
        return float(np.sqrt(np.mean(np.log(measured / predicted) ** 2)))


def covered(measured: Arr, predicted: Arr, groups: Sequence[str], level: float = LEVEL) -> float:
    """Share of rows inside of their interval, whose width comes from the rows of other groups alone."""
    names = np.asarray(groups)
    inside = 0
    for name in dict.fromkeys(groups):
        own = names == name
        width = np.log(interval_factor(spread(measured[~own], predicted[~own]), level))
        inside += int((np.abs(np.log(measured[own] / predicted[own])) <= width).sum())
    return inside / len(names)


def most_informative(amounts: Arr, coefficients: Arr, count: int, pull: float = PULL) -> list[int]:
    """Rows to measure so that a fit with `earlier` coefficients and this `pull` is surest (D-optimal), in order.

    The choice looks at amounts and earlier coefficients, at no measurement: the seconds of each kind as a share of the
    row's are S, and the rows have the largest det(S'S + pull x I). Up to EVERY_SET sets all are compared. Of more sets
    the rows are taken one by one, then exchanged while that helps.
    """
    parts = amounts * coefficients
    shares = (parts / parts.sum(axis=1, keepdims=True))[:, coefficients > 0]

    def information(rows: Iterable[int]) -> float:
        of = shares[list(rows)]
        return float(np.linalg.slogdet(of.T @ of + pull * np.eye(shares.shape[1]))[1])

    count = min(count, len(shares))
    if comb(len(shares), count) <= EVERY_SET:
        return list(max(combinations(range(len(shares)), count), key=information))
    chosen: list[int] = []
    for _ in range(count):
        others = [row for row in range(len(shares)) if row not in chosen]
        chosen.append(max(others, key=lambda row: information([*chosen, row])))
    while True:
        swaps = [sorted({*chosen, new} - {old}) for old in chosen for new in range(len(shares)) if new not in chosen]
        best = max(swaps, key=information)
        if information(best) <= information(chosen) + 1e-12:
            return sorted(chosen)
        chosen = best
