"""Scheduling by importance and channel against numbers by hand and scipy's general optimiser."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize

from edgesim.core.rng import Key
from edgesim.engine.selection.importance_channel import ImportanceChannel, balanced
from edgesim.engine.selection.norm_sampling import NormSampling
from tests.engine.by_knowledge import NAN, known_of

KEY = Key(5)


def test_probabilities_of_two_devices():
    """Norms 2 and 0 with a floor of their mean are 3 and 1, by their mean s = 1.5 and 0.5.

    With rho = 1/2 p is s / sqrt(T + lambda), so p = 0.78 and 0.22 where T differ by (0.5 / 0.22)^2 - (1.5 / 0.78)^2.
    """
    gap = (0.5 / 0.22) ** 2 - (1.5 / 0.78) ** 2
    known = known_of([4, 4], norm=[2.0, 0.0], up_bps=[1e6 / (1 - gap / 2), 1e6 / (1 + gap / 2)])
    rule = ImportanceChannel(count=1, floor=1.0)
    assert rule.probabilities(np.arange(2), known) == pytest.approx([0.78, 0.22], rel=1e-9)
    assert rule.weights(np.arange(2), known) == pytest.approx([1 / 0.78, 1 / 0.22], rel=1e-9)
    draws = [rule.choose(np.arange(2), known, KEY.at(draw)).tolist() for draw in range(2000)]
    assert draws.count([0]) / 2000 == pytest.approx(0.78, abs=0.03)


def test_probabilities_are_the_best():
    """No other probabilities have less of rho sum p T + (1 - rho) sum s^2 / p; some are certain."""
    draws, certain = np.random.default_rng(2), 0
    for count in (1, 2, 4):
        for rho in (0.0, 0.3, 0.9):
            size, seconds = draws.lognormal(0, 1, 6), draws.lognormal(0, 1, 6)

            def cost(p, size=size, seconds=seconds, rho=rho):
                return rho * p @ seconds + (1 - rho) * (size**2 / p).sum()

            found = balanced(size, seconds, rho, count)
            assert found.sum() == pytest.approx(count, rel=1e-9)
            total = {"type": "eq", "fun": lambda p, count=count: p.sum() - count}
            best = minimize(cost, np.full(6, count / 6), bounds=[(1e-6, 1)] * 6, constraints=total)
            assert cost(found) <= cost(best.x) * (1 + 1e-7)
            assert found == pytest.approx(best.x, abs=3e-3)
            certain += (found == 1).sum()
    assert certain


def test_without_channel_it_is_norm_sampling():
    """With rho = 0 and for a device without a report; all idle devices are certain if there are no more."""
    known = known_of([1, 2, 1, 1], norm=[3.0, 1.0, NAN, 2.0], up_bps=[1e6, 1e3, 1e9, np.inf])
    idle = np.arange(4)
    plain, rule = NormSampling(count=2).probabilities(idle, known), ImportanceChannel(count=2, rho=0.0)
    assert rule.probabilities(idle, known) == pytest.approx(plain, rel=1e-9)
    assert ImportanceChannel(count=4).probabilities(idle, known).tolist() == [1] * 4
    alike = known_of([1] * 4, norm=[1.0] * 4, up_bps=[np.inf] * 4)
    assert ImportanceChannel(count=1).probabilities(idle, alike) == pytest.approx([0.25] * 4, rel=1e-9)
