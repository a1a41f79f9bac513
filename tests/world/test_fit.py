"""Fits of seconds by kind of work: against closed forms, scipy's own solvers and rows made from known coefficients."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from scipy.optimize import lsq_linear

from edgesim.core.work import interval_factor
from edgesim.world.clocks import fit


def made(rows: int, kinds: int, noise: float = 0.0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return amounts that differ by ten powers of ten between kinds, coefficients, and seconds with relative noise."""
    draws = np.random.default_rng(46)
    sizes = 10.0 ** np.linspace(11, 1, kinds)
    amounts = draws.lognormal(0, 1, (rows, kinds)) * sizes
    coefficients = draws.uniform(0.5, 2, kinds) / sizes
    return amounts, coefficients, amounts @ coefficients * np.exp(noise * draws.standard_normal(rows))


def test_finds_the_coefficients_that_made_the_seconds():
    amounts, coefficients, seconds = made(30, 5)
    assert fit.seconds_per_unit(amounts, seconds) == pytest.approx(coefficients, rel=1e-9)


def test_one_kind_has_a_closed_form():
    """b = sum(x/y) / sum((x/y)^2)."""
    amounts, _, seconds = made(12, 1, noise=0.3)
    ratio = amounts[:, 0] / seconds
    assert fit.seconds_per_unit(amounts, seconds) == pytest.approx([ratio.sum() / (ratio**2).sum()])


@pytest.mark.parametrize("noise", [0.1, 1.0])
def test_agrees_with_another_bounded_solver(noise):
    amounts, _, seconds = made(40, 6, noise)
    rows = amounts / seconds[:, None]
    sizes = np.linalg.norm(rows, axis=0)
    other = lsq_linear(rows / sizes, np.ones(40), bounds=(0, np.inf), tol=1e-14).x / sizes
    found = fit.seconds_per_unit(amounts, seconds)
    assert (found >= 0).all()
    assert amounts @ found == pytest.approx(amounts @ other, rel=1e-5)


def test_units_do_not_matter():
    amounts, _, seconds = made(20, 4, noise=0.2)
    units = np.array([1e3, 1e-6, 1.0, 1e9])
    assert fit.seconds_per_unit(amounts * units, seconds) == pytest.approx(
        fit.seconds_per_unit(amounts, seconds) / units
    )


def test_a_kind_without_amounts_takes_no_time():
    amounts, _, seconds = made(20, 3)
    amounts[:, 1] = 0
    assert fit.seconds_per_unit(amounts, seconds)[1] == 0


@pytest.mark.parametrize("bad", [0.0, -1.0, np.nan, np.inf])
def test_refuses_seconds_that_cannot_be(bad):
    amounts, _, seconds = made(5, 2)
    seconds[2] = bad
    with pytest.raises(ValueError, match="seconds above 0"):
        fit.seconds_per_unit(amounts, seconds)


def test_another_board_of_equal_proportions_needs_one_row():
    amounts, coefficients, seconds = made(10, 4)
    found = fit.seconds_per_unit(amounts[:1], 3 * seconds[:1], earlier=coefficients)
    assert found == pytest.approx(3 * coefficients)


def test_pull_leads_from_an_own_fit_to_one_factor():
    """Without pull the earlier fit does not matter, with much of it only its proportions do."""
    amounts, coefficients, seconds = made(30, 4, noise=0.3)
    earlier = coefficients * np.array([1, 2, 0.5, 3])
    free = fit.seconds_per_unit(amounts, seconds, earlier, pull=1e-9)
    stiff = fit.seconds_per_unit(amounts, seconds, earlier, pull=1e9)
    assert free == pytest.approx(fit.seconds_per_unit(amounts, seconds), rel=1e-4)
    assert stiff == pytest.approx(earlier * fit.factor(amounts @ earlier, seconds), rel=1e-4)


def test_pull_has_a_closed_form_for_one_row_and_two_kinds():
    """(b/c - 1)^2 for each kind and (x.b/y - 1)^2: the normal equations of three squares."""
    amounts, seconds, earlier = np.array([[3.0, 1.0], [1.0, 4.0]]), np.array([2.0, 3.0]), np.array([0.4, 0.5])
    scaled = earlier * fit.factor(amounts @ earlier, seconds)
    rows = amounts / seconds[:, None]
    left = rows.T @ rows + np.diag(0.7 / scaled**2)
    right = rows.sum(axis=0) + 0.7 / scaled
    assert fit.seconds_per_unit(amounts, seconds, earlier, 0.7) == pytest.approx(np.linalg.solve(left, right))


def test_a_kind_that_took_no_time_takes_none_on_the_new_board():
    amounts, coefficients, seconds = made(10, 3, noise=0.2)
    coefficients[1] = 0
    assert fit.seconds_per_unit(amounts, seconds, coefficients)[1] == 0


def test_rows_without_known_work_scale_nothing():
    with pytest.raises(ValueError, match="no work of a kind"):
        fit.seconds_per_unit(np.array([[0.0, 1.0]]), np.ones(1), earlier=np.array([1.0, 0.0]))


def test_no_row_is_predicted_by_a_fit_that_saw_its_group():
    amounts, _, seconds = made(12, 2, noise=0.2)
    groups = list("abcabcabcabd")

    def fitted(seen):
        assert seen.any() and len(set(np.array(groups)[~seen])) == 1
        return fit.seconds_per_unit(amounts[seen], seconds[seen])

    found = fit.left_out(amounts, groups, fitted)
    seen = np.array(groups) != "a"
    assert found[~seen] == pytest.approx(amounts[~seen] @ fit.seconds_per_unit(amounts[seen], seconds[seen]))


def test_greedy_choice_finds_the_kinds_that_matter():
    amounts, coefficients, _ = made(60, 6)
    coefficients[[0, 2, 5]] = 0
    assert set(fit.chosen_kinds(amounts, amounts @ coefficients, 3)) == {1, 3, 4}
    assert len(fit.chosen_kinds(amounts, amounts @ coefficients, 9)) == 6


def test_spread_and_interval_of_a_normal_law():
    draws = np.random.default_rng(1).normal(0, 0.2, 200_000)
    measured, predicted = np.exp(draws), np.ones(200_000)
    found = fit.spread(measured, predicted)
    assert found == pytest.approx(0.2, rel=0.01)
    width = interval_factor(found)
    assert width == pytest.approx(np.exp(1.6449 * 0.2), rel=0.01)
    assert ((measured < width) & (measured > 1 / width)).mean() == pytest.approx(0.9, abs=0.005)
    assert fit.covered(measured[:1000], predicted[:1000], list("abcde" * 200)) == pytest.approx(0.9, abs=0.03)


def test_an_interval_knows_nothing_of_its_own_group():
    measured = np.array([1.01, 0.99, 2.0])
    assert fit.covered(measured, np.ones(3), ["a", "a", "b"]) == pytest.approx(2 / 3)
    assert fit.spread(np.ones(2), np.array([0.0, 1.0])) == np.inf


def test_most_informative_rows_are_those_of_the_largest_determinant():
    amounts, coefficients, _ = made(12, 3)
    parts = amounts * coefficients
    shares = parts / parts.sum(axis=1, keepdims=True)

    def information(rows):
        return np.linalg.det(shares[rows].T @ shares[rows] + fit.PULL * np.eye(3))

    best = max((list(rows) for rows in combinations(range(12), 3)), key=information)
    assert fit.most_informative(amounts, coefficients, 3) == best
    assert fit.most_informative(amounts, coefficients, 20) == list(range(12))


def test_exchanges_come_close_to_the_best_of_many_sets(monkeypatch):
    amounts, coefficients, _ = made(14, 4)
    best = fit.most_informative(amounts, coefficients, 4)
    monkeypatch.setattr(fit, "EVERY_SET", 0)
    assert fit.most_informative(amounts, coefficients, 4) == best
