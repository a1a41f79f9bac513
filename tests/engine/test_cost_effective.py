"""Cost-effective E and K: the bound by hand, constants recovered from pilots, and the pair against brute force."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from edgesim.core.controller import Choice, ClosedRound, RoundHistory
from edgesim.core.errors import ConfigError
from edgesim.engine.controllers.cost_effective import CostEffective, fitted, rounds_to, spread
from edgesim.runs.simulation import check
from tests.plugins.one_number import scenario

DEVICES = 20


class _Setting:
    devices = DEVICES


def test_by_hand() -> None:
    """Five of nine devices: 1 + 4 / (5 x 8) = 1.1. With A = 3, B = 2, E = 10: (3 + 2 x 1.1 x 100) / 10 = 22.3."""
    assert spread(5, 9) == pytest.approx(1.1, rel=1e-12)
    assert (spread(9, 9), spread(1, 1)) == (1.0, 1.0)
    assert rounds_to(3.0, 2.0, 10, 5, 9) == pytest.approx(22.3, rel=1e-12)
    found = fitted(np.array([[1.0, 1.0], [1.0, 4.0], [1.0, 9.0]]), np.array([5.0, 11.0, 21.0]))
    assert found == pytest.approx((3.0, 2.0), rel=1e-9)


def chosen(a: float, b: float, weight: float) -> Choice:
    """Run the rule on losses that follow the bound; a step takes 1 s and 2 J, the rest of a round 5 s and 3 J."""
    rule, closed, ahead = CostEffective(weight=weight, most=40), list[ClosedRound](), 1 / 50.0
    state = None
    while True:
        choice = rule.adapt(RoundHistory(_Setting(), tuple(closed), 0.0, {}, {}, state))  # type: ignore[arg-type]
        if choice.state is not None:
            return choice
        steps, participants = choice.local_steps or 0, choice.participants or 0
        ahead += 1.0 / rounds_to(a, b, steps, participants, DEVICES)
        seconds, compute_j = steps + 5.0, 2.0 * steps * participants
        joules = 7.0 * seconds + compute_j + 3.0 * participants
        closed.append(
            ClosedRound(
                choice, seconds, joules, 7.0 * seconds, 0.0, 0, 0.0, participants, participants, 0, float(steps),
                compute_j, 1.0 / ahead, {},
            )
        )  # fmt: skip
        assert len(closed) <= 13


@pytest.mark.parametrize(
    ("a", "b", "weight"), [(50, 0.1, 0.5), (50, 0.1, 1.0), (50, 0.1, 0.0), (500, 3, 0.2), (9, 0, 1)]
)
def test_the_pair_is_the_cheapest_of_all(a: float, b: float, weight: float) -> None:
    """Brute force over all pairs, with the true constants and without the functions of the rule."""
    found = chosen(a, b, weight)
    costs = {}
    for e, k in product(range(1, 41), range(1, DEVICES + 1)):
        rounds = (a + b * (1 + (DEVICES - k) / (k * (DEVICES - 1))) * e**2) / e
        costs[e, k] = rounds * (weight * (e + 5) + (1 - weight) * k * (2 * e + 3))
    best = min(costs.values())
    assert costs[found.local_steps or 0, found.participants or 0] == pytest.approx(best, rel=1e-9)


def test_pilots_go_through_all_pairs_and_the_best_pair_stays() -> None:
    rule = CostEffective(steps=(1, 4), participants=(2, 5), rounds=2)
    pairs = []
    closed = ClosedRound(Choice(local_steps=1), 2.0, 9.0, 1.0, 0.0, 0, 0.0, 2, 2, 0, 1.0, 4.0, float("nan"), {})
    for done in range(9):
        choice = rule.adapt(RoundHistory(_Setting(), (closed,) * done, 0.0, {}, {}, None))  # type: ignore[arg-type]
        pairs.append((choice.local_steps, choice.participants))
    assert pairs == [(1, 2)] * 3 + [(1, 5)] * 2 + [(4, 2)] * 2 + [(4, 5)] * 2
    last = rule.adapt(RoundHistory(_Setting(), (closed,) * 9, 0.0, {}, {}, None))  # type: ignore[arg-type]
    assert last == Choice(local_steps=1, participants=2, state=(1, 2))  # no pilot has told anything
    kept = RoundHistory(_Setting(), (closed,) * 30, 0.0, {}, {}, (7, 3))  # type: ignore[arg-type]
    assert rule.adapt(kept) == Choice(local_steps=7, participants=3, state=(7, 3))


def test_more_participants_than_devices_are_refused() -> None:
    given = {"selection": {"name": "uniform", "count": 1}, "backend": "serial", "stop": {"rounds": 2}}
    controller = {"name": "cost_effective", "participants": [1, 3]}
    with pytest.raises(ConfigError, match=r"controller.participants: must be at most the 2 devices, found 3"):
        check(scenario([1, 1], controller=controller, **given))
